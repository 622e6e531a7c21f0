"""How much is known of one replica's cache: exact, learned, partial or blind, and why.

Knows what the event stream and the recognition of keys have said. Never knows how they found out. A pure function of those
facts; the time of the last change is kept by whoever asks again and again.

    exact    every event since the engine began has been applied, and its keys are what we compute
    learned  the same, with keys learned from its own events
    partial  something is missing: what is known may be too much or too little
    blind    it tells nothing; only what was sent there is known
"""

from enum import StrEnum

import msgspec

from balancer.core import Replica
from indexer.recognition import KeyState, Recognition
from indexer.stream import Standing


class Knowledge(StrEnum):
    """How much is known of a replica's cache."""

    EXACT = "exact"
    LEARNED = "learned"
    PARTIAL = "partial"
    BLIND = "blind"


FED = Standing(is_connected=True, is_complete=True)
"""The standing of a replica without a subscription: whoever feeds the router its events feeds it all of them."""


class View(msgspec.Struct, frozen=True):
    """The state with its reason in words; ``since`` is when it began, on the caller's clock, in seconds."""

    state: Knowledge
    reason: str
    since: float = 0.0


def judge(replica: Replica, recognition: Recognition, standing: Standing, lost_batches: int) -> View:
    """What holds now; the first reason that applies, worst first."""
    if not replica.has_events:
        return View(Knowledge.BLIND, "no KV event source is known")
    if standing.is_restored:
        return View(Knowledge.PARTIAL, "taken over from a snapshot, and not confirmed by its publisher yet")
    if not standing.is_connected:
        return View(Knowledge.BLIND, "its event publisher cannot be reached")
    if lost_batches:
        return View(Knowledge.PARTIAL, f"{lost_batches} batches of events are lost for good")
    if not standing.is_complete:
        return View(Knowledge.PARTIAL, "events are missing, or it is not known yet whether any are")
    if recognition.recipe is None:
        return View(Knowledge.PARTIAL, "how it hashes is not known, and no event has shown it yet")
    if recognition.is_hybrid:
        return View(Knowledge.PARTIAL, "it has sliding-window or other caches, whose hits follow a rule not known here")
    if recognition.state is KeyState.LEARNED:
        if recognition.unplaced:
            return View(Knowledge.PARTIAL, f"{recognition.unplaced} blocks could not be placed; {recognition.reason}")
        return View(Knowledge.LEARNED, recognition.reason)
    if recognition.state is KeyState.UNPROVEN:
        if recognition.reason:
            return View(Knowledge.PARTIAL, recognition.reason)
        return View(Knowledge.EXACT, "nothing has contradicted its recipe; no event has proven it yet")
    return View(Knowledge.EXACT, recognition.reason or "its recipe is proven by its own events")
