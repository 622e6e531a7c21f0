"""How much is known of one replica's cache: exact, learned, partial or blind, and why.

Knows what the event stream, the recognition of keys, the index and the engine's own figures have said. Never knows how they
found out. A pure function of those facts; the time of the last change is kept by whoever asks again and again.

    exact    every event since the engine began has been applied, and its keys are what we compute
    learned  the same, with keys learned from its own events
    partial  something is missing or in doubt: what is known may be too much or too little
    blind    it tells nothing; only what was sent there is known
"""

from typing import Final

import msgspec

from balancer.core import Knowledge, Replica
from balancer.words import counted
from indexer.recognition import KeyState, Recognition
from indexer.stream import Standing

__all__ = ["FED", "Knowledge", "Losses", "View", "judge"]

FED: Final = Standing(is_connected=True, is_complete=True)
"""The standing of a replica without a subscription: whoever feeds the router its events feeds it all of them."""

TRUSTED_AGAIN: Final = 20
"""Exact predictions in a row after which an unexplained wrong one is held against a replica no longer."""


class Losses(msgspec.Struct):
    """What is missing or in doubt of one replica's GPU cache since it was last known to be empty. Changes.

    ``batches`` of events are lost for good, ``events`` could not be read, ``let_go`` blocks were taken out by the index's own
    bound. ``dropped`` chains were taken out because the engine had them no more; copies of their blocks may come back unseen.
    ``strangers`` are blocks that were removed and had never been stored: something before was not as it was told.
    ``untold`` are tokens that the engine has looked up in its cache while its publisher had nothing to tell, then or now.
    ``overfull``: how many blocks the engine has, of which more were counted; 0 where they were not. ``contradictions``: wrong
    predictions that nothing explains, until ``TRUSTED_AGAIN`` right ones in a row.
    """

    batches: int = 0
    events: int = 0
    let_go: int = 0
    strangers: int = 0
    untold: int = 0
    dropped: int = 0
    overfull: int = 0
    contradictions: int = 0
    exact_since: int = 0

    def contradicted(self) -> None:
        """The engine found something else than the index said, and nothing explains it."""
        self.contradictions += 1
        self.exact_since = 0

    def confirmed(self) -> bool:
        """The engine found what the index said; returns whether that ends the doubt."""
        if not self.contradictions:
            return False
        self.exact_since += 1
        if self.exact_since < TRUSTED_AGAIN:
            return False
        self.contradictions = self.exact_since = 0
        return True


class View(msgspec.Struct, frozen=True):
    """The state with its reason in words; ``since`` is when it began, on the caller's clock, in seconds."""

    state: Knowledge
    reason: str
    since: float = 0.0


def judge(replica: Replica, recognition: Recognition, standing: Standing, losses: Losses) -> View:
    """What holds now; the first reason that applies, worst first."""
    if not replica.has_prefix_caching:
        return View(Knowledge.BLIND, "prefix caching is off: nothing is cached there")
    if not replica.has_events:
        return View(Knowledge.BLIND, "no KV event source is known; only what was sent there is remembered")
    if standing.is_restored:
        unheard = "" if standing.is_connected else ", which cannot be reached"
        return View(Knowledge.PARTIAL, f"taken over from a snapshot, and not confirmed yet by its publisher{unheard}")
    if not standing.is_connected:
        return View(Knowledge.BLIND, "its event publisher cannot be reached")
    if standing.problem:
        return View(Knowledge.PARTIAL, standing.problem)
    missing = _missing(losses)
    if missing:
        return View(Knowledge.PARTIAL, missing)
    if not standing.is_complete:
        return View(Knowledge.PARTIAL, "events are missing, or it is not known yet whether any are")
    return _judge_keys(recognition)


def _missing(losses: Losses) -> str:
    if losses.batches:
        return f"{counted(losses.batches, 'batch', 'batches')} of events lost for good"
    if losses.events:
        return f"{counted(losses.events, 'event')} could not be read"
    if losses.overfull:
        return "its events name more blocks than it has: removals were lost, or a client asked for full cache reports"
    if losses.let_go:
        return f"{counted(losses.let_go, 'block')} let go at [index] max_blocks"
    if losses.dropped:
        return f"{counted(losses.dropped, 'time')} what it was said to hold was not there; copies may come back unseen"
    if losses.untold:
        return (
            f"it had computed {counted(losses.untold, 'token')} before its events were followed, and its publisher has none "
            "to show for them; the next one ends the doubt"
        )
    if losses.strangers:
        return f"{counted(losses.strangers, 'block')} removed that no event had stored"
    if losses.contradictions:
        return (
            f"its own figures contradicted the index {counted(losses.contradictions, 'time')}, and nothing explains it"
        )
    return ""


def _judge_keys(recognition: Recognition) -> View:
    if recognition.recipe is None:
        return View(Knowledge.PARTIAL, "how it hashes is not known, and no event has shown it yet")
    if recognition.doubt:
        return View(Knowledge.PARTIAL, recognition.doubt)
    if recognition.state is KeyState.LEARNED:
        if recognition.unplaced:
            return View(
                Knowledge.PARTIAL, f"{counted(recognition.unplaced, 'block')} could not be placed; {recognition.reason}"
            )
        if recognition.is_vague:
            return View(Knowledge.PARTIAL, recognition.reason)
        return View(Knowledge.LEARNED, recognition.reason)
    if recognition.state is KeyState.UNPROVEN:
        if recognition.reason:
            return View(Knowledge.PARTIAL, recognition.reason)
        return View(Knowledge.EXACT, "nothing has contradicted its recipe; no event has proven it yet")
    return View(Knowledge.EXACT, recognition.reason or "its recipe is proven by its own events")
