"""One request on its way through the gateway: who asks for what, what each attempt works with, and how one can fail.

Knows values. Never sends anything.
"""

import asyncio

import msgspec

from balancer.admission import Claim
from balancer.brain import Brain
from balancer.core import Decision, Failure, Fault
from balancer.decisions import Origin
from balancer.errors import NoReplica, RequestError, UpstreamTimeout
from balancer.gateway.access import Visit
from balancer.gateway.reading import Asked
from balancer.http.client import HttpClient
from balancer.http.exchange import ExchangeFailed, NotConnected, TimedOut
from balancer.http.messages import Request
from balancer.limits import Permit
from balancer.observer import Observer
from balancer.records import Record
from balancer.request_counts import RequestCounts
from balancer.timeouts import Timeouts


class Means(msgspec.Struct, frozen=True):
    """What every attempt works with; ``expose`` says whether clients are told of decisions."""

    service: Brain
    counts: RequestCounts
    client: HttpClient
    observer: Observer
    loop: asyncio.AbstractEventLoop
    expose: bool


class Asking(msgspec.Struct, frozen=True):
    """One request, its sender, what is made of it, and what it may have; times are the loop's."""

    request: Request
    visit: Visit
    asked: Asked
    origin: Origin
    claim: Claim
    permit: Permit
    timeouts: Timeouts
    started: float
    deadline: float
    record: Record


class Failed(Exception):
    """An attempt has failed, and the client has had nothing; ``told`` is what to tell it if this was the last one."""

    def __init__(self, failure: Failure, told: RequestError, *, may_retry: bool) -> None:
        super().__init__(told.message)
        self.failure = failure
        self.told = told
        self.may_retry = may_retry


class DecodeLeg(msgspec.Struct, frozen=True):
    """What an attempt has of its own that answers with a prompt that another replica computes (``balancer.gateway.legs``).

    ``request_id`` goes to the replica instead of the client's, ``prefill`` is the decision for the prompt.
    """

    body: bytes
    prefill: Decision
    request_id: str | None = None
    has_params: bool = False

    @property
    def foretold(self) -> int:
        """The tokens that the prefill replica was to find cached: what the client is told where the answer is there before
        that replica's own figure, as it may be when both legs are under way together. The decode engine counts all as cached
        that it was sent.
        """
        return self.prefill.cached_tokens if self.prefill.knows_tokens else 0


def too_late(timeouts: Timeouts) -> UpstreamTimeout:
    """What a client is told whose request has had all the time that it may have."""
    return UpstreamTimeout(
        f"the request has not been answered within {timeouts.total:g} s, which is all the time it has"
    )


def ending() -> NoReplica:
    """What a client is told whose request is given up because kvlb ends."""
    return NoReplica(
        "kvlb is shutting down, and the answer has not come to its end; send the request again", retry_after=1
    )


def fault_of(error: ExchangeFailed, *, has_begun: bool) -> Fault:
    """What the replica did; ``has_begun`` when the client has had a byte of its answer."""
    if isinstance(error, NotConnected):
        return Fault.CONNECT
    if isinstance(error, TimedOut):
        return Fault.STALLED if has_begun else Fault.NO_ANSWER
    return Fault.BROKE_OFF if has_begun else Fault.RESET
