"""What is wrong with a replica, and who has noticed.

Knows the signals of health and the words for each. Never notices anything itself, and never decides: whether a replica can
be used is the fleet's, whether it is left out the ejections' to say.
"""

from enum import StrEnum

import msgspec

from balancer.ejection import Cause, Ejected
from balancer.silence import SILENT_AFTER


class Signal(StrEnum):
    """How something was noticed."""

    PROBE = "probe"  # asked, the endpoint did not answer, or not as an engine that can be used
    CONNECTION = "connection"  # a request found nobody there
    ANSWERS = "answers"  # requests failed there
    STALL = "stall"  # it has work, and nothing comes
    EVENTS = "events"  # it answers, and tells nothing of what it caches


class Sign(msgspec.Struct, frozen=True):
    """One thing that is wrong, in words."""

    signal: Signal
    reason: str


def signs(problem: Sign | None, ejected: Ejected | None, unheard: int) -> list[Sign]:
    """Everything that is wrong with one replica, the gravest first.

    ``problem`` is the endpoint's, ``unheard`` counts requests that must have filled a block since the last event.
    """
    found = [] if problem is None else [problem]
    if ejected is not None:
        found.append(Sign(Signal.STALL if ejected.cause is Cause.STALLED else Signal.ANSWERS, ejected.reason))
    if unheard >= SILENT_AFTER:
        found.append(Sign(Signal.EVENTS, f"has answered {unheard} requests and published nothing"))
    return found
