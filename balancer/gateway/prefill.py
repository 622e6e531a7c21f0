"""The first leg of a split request: one replica computes the prompt for another one, and says how its blocks are fetched.

Knows what an answer says of the replica. Gives the client nothing. Whatever happens, the lease is released exactly once.
"""

from typing import Final

import msgspec

from balancer.answered import failure_of
from balancer.core import Decision, Failure, Fault, Outcome, RouteRequest, Truth
from balancer.disaggregation import bodies, counts
from balancer.disaggregation.plan import Answered, Leg
from balancer.gateway import headers
from balancer.gateway.asking import Asking, Means, fault_of, too_late
from balancer.gateway.collecting import Collected
from balancer.http.exchange import ExchangeFailed, Limits, NotConnected
from balancer.http.messages import Head, Outgoing

UNREADABLE: Final = Failure(Fault.BROKE_OFF)
"""What it has answered with status 200 is no answer of an engine."""


class Refused(msgspec.Struct, frozen=True):
    """The replica will not have the request: that is for the client to know."""

    head: Head
    body: bytes


class PrefillLeg:
    """``run`` it once. An ``Answer`` (``balancer.stalls``): a replica that stands still is left."""

    def __init__(self, means: Means, asking: Asking, wanted: RouteRequest, decision: Decision, seconds: float) -> None:
        """``seconds`` is how long it may take."""
        self._means = means
        self._asking = asking
        self._wanted = wanted
        self._decision = decision
        self._seconds = seconds
        self._collected = Collected()
        self._noted = means.observer.tried(asking.record, decision)

    @property
    def arrived(self) -> int:
        """Bytes that have come of its answer."""
        return self._collected.arrived

    def leave(self) -> None:
        if self._collected.connection is not None:
            self._collected.connection.give_up(_Left())

    async def run(self, body: bytes, leg: Leg) -> Answered | Refused | Failure:
        """What has come of it.

        Raises:
            UpstreamTimeout: the time of the whole request is over.
        """
        means, decision = self._means, self._decision
        began, outcome, truth, failure = means.loop.time(), Outcome.CANCELLED, None, None
        ending, seconds = counts.Ending.CANCELLED, None
        means.service.follow(decision, self)
        try:
            try:
                await means.client.exchange(
                    decision.replica.endpoint, self._outgoing(body, leg), self._collected, self._limits(began)
                )
                result = self._read()
            except _Left:
                result = Failure(Fault.HUNG)
            except ExchangeFailed as error:
                result = self._failed(error)
            match result:
                case Failure():
                    ending, outcome, failure = counts.Ending.FAILED, Outcome.ERROR, result
                    if result.fault in {Fault.CONNECT, Fault.RESET}:
                        outcome = Outcome.UNREACHABLE
                case Refused():
                    ending, outcome = counts.Ending.REFUSED, Outcome.ERROR
                case Answered():
                    seconds = means.loop.time() - began
                    ending, outcome = counts.Ending.OK, Outcome.OK
                    truth = Truth(result.prompt_tokens, result.cached_tokens, None, result.finish_reason, 200)
                    means.service.started(decision.lease)
            return result
        finally:
            self._noted.outcome, self._noted.truth, self._noted.end = outcome, truth, self._asking.record.stages.now()
            means.counts.legs.ended(counts.Leg.PREFILL, ending, seconds)
            means.counts.prefilled(self._wanted.model, decision, outcome, truth)
            means.service.release_at_once(decision.lease, outcome, truth, failure)

    def _outgoing(self, body: bytes, leg: Leg) -> Outgoing:
        request, origin, visit = self._asking.request, self._asking.origin, self._asking.visit
        lines = headers.to_replica(
            request.headers,
            self._decision,
            origin.request_id,
            visit.kept_back | self._asking.record.replaced_headers | {b"accept-encoding"},
            visit.key,
            self._noted.span,
            leg.request_id,
        )
        return Outgoing(b"POST", origin.path.encode("latin-1"), lines, body)

    def _limits(self, now: float) -> Limits:
        left = self._asking.deadline - now
        if left <= 0:
            raise too_late(self._asking.timeouts)
        seconds = min(self._seconds, left)
        return Limits(min(self._asking.timeouts.connect, left), seconds, seconds, seconds)

    def _read(self) -> Answered | Refused | Failure:
        head, body = self._collected.answer, self._collected.body
        if head.status >= 500 or head.status == 429:
            return failure_of(head.status, head.named)
        if head.status >= 400:
            return Refused(head, body)
        answered = bodies.read_answered(body) if head.status == 200 else None
        if answered is None:
            return UNREADABLE
        return Failure(Fault.ABORT) if answered.finish_reason == "abort" else answered

    def _failed(self, error: ExchangeFailed) -> Failure:
        service, endpoint = self._means.service, self._decision.replica.endpoint
        if self._means.loop.time() >= self._asking.deadline:
            raise too_late(self._asking.timeouts) from error
        failure = Failure(fault_of(error, has_begun=False))
        if isinstance(error, NotConnected):
            service.unreachable(endpoint)
        elif failure.fault is Fault.RESET:
            service.broke_off(endpoint)
        return failure


class _Left(Exception):
    """The replica stands still."""
