"""What a whole answer says of its replica: how the lease ends, what the engine told, and whether it failed.

Knows what ``balancer.sse`` has seen go by, and the status. Never knows who passed the answer on: the gateway itself, or a proxy
that showed it to the endpoint picker.
"""

from typing import Final

import msgspec

from balancer.core import Failure, Fault, Outcome, Truth
from balancer.http.fields import Named
from balancer.sse import BodyWatch, StreamWatch

MAX_DIGITS: Final = 9
"""Of a ``Retry-After`` that is believed; a date is not."""


def failure_of(status: int, named: Named) -> Failure:
    """What an answer with this status, which is a failure, and these headers says of its replica.

    Only 503 says when the replica, and not the client, may be asked again.
    """
    told = named.get(b"retry-after") if status == 503 else None
    is_told = told is not None and told.isdigit() and len(told) <= MAX_DIGITS
    return Failure(Fault.STATUS, status, float(told) if is_told and told is not None else None)


class Answered(msgspec.Struct, frozen=True):
    """``failure`` is None unless the replica has done something wrong."""

    outcome: Outcome
    truth: Truth
    failure: Failure | None


def judge(watch: StreamWatch | BodyWatch, status: int) -> Answered:
    """Of an answer that has come to its end, with this status."""
    told = watch.truth()
    truth = Truth(  # as ``structs.replace``, in a third of its time
        told.prompt_tokens, told.cached_tokens, told.completion_tokens, told.finish_reason, status
    )
    if truth.finish_reason == "abort":
        return Answered(Outcome.ERROR, truth, Failure(Fault.ABORT))
    is_good = status < 400 and watch.is_done and not watch.has_failed
    return Answered(Outcome.OK if is_good else Outcome.ERROR, truth, None)
