"""The last decisions and what came of them.

Knows decisions, their outcomes and what the engines said. Never knows prompts, salts, sockets or files, and renders nothing
before someone asks: a request costs one small object. Between calls: no more decisions are kept than were asked for, besides
those whose requests have not ended.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from balancer.core import Decision, Outcome, Truth
from balancer.explain import NO_VIEWS, Explanation, explain
from balancer.knowledge import View
from balancer.policies.base import Policy
from indexer.index import ReplicaId

MAX_ID: Final = 256
"""Longest request id that is remembered, in characters; the replica gets it whole."""


class Origin(msgspec.Struct, frozen=True):
    """Which request it was; ``salt`` is its ``cache_salt``, of which only a fingerprint is kept."""

    request_id: str = ""
    path: str = ""
    salt: str | None = None


NOBODY: Final = Origin()


class Salts(msgspec.Struct, frozen=True):
    """Of the requests that are remembered: how many had a ``cache_salt``, and how many different ones."""

    requests: int
    salted: int
    distinct: int


class Entry(msgspec.Struct):
    """One decision; ``outcome`` and ``truth`` come at its end. ``at`` is in seconds since 1970."""

    request_id: str
    path: str
    salt: int | None
    model: str
    at: float
    decision: Decision
    views: Mapping[ReplicaId, View]
    outcome: Outcome | None = None
    truth: Truth | None = None

    def explained(self, policy: Policy) -> Explanation:
        """The same for people, with what has come of it."""
        told = explain(
            self.decision,
            policy,
            request_id=self.request_id,
            time=self.at,
            path=self.path,
            model=self.model,
            views=self.views,
        )
        return msgspec.structs.replace(told, outcome=self.outcome, truth=self.truth)


class DecisionLog:
    """The last ``at_most`` decisions. Changes with every call but the questions."""

    def __init__(self, at_most: int) -> None:
        self._kept: deque[Entry] = deque(maxlen=at_most)
        self._open: dict[int, Entry] = {}
        self._views: Mapping[ReplicaId, View] = NO_VIEWS

    def __repr__(self) -> str:
        return f"<DecisionLog {len(self._kept)} kept, {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._kept)

    def know(self, views: Mapping[ReplicaId, View]) -> None:
        """How much is known of each cache from now on. The mapping is kept, and must not change any more."""
        if views != self._views:
            self._views = views

    def opened(self, decision: Decision, model: str, origin: Origin, now: float) -> None:
        """A request has been sent somewhere; ``now`` is in seconds since 1970."""
        entry = Entry(
            origin.request_id[:MAX_ID],
            origin.path,
            None if origin.salt is None else hash(origin.salt),
            model,
            now,
            decision,
            self._views,
        )
        self._kept.append(entry)
        self._open[decision.lease] = entry

    def closed(self, lease: int, outcome: Outcome, truth: Truth | None) -> Entry | None:
        """It has ended; the whole entry, or None when nobody opened it here."""
        entry = self._open.pop(lease, None)
        if entry is not None:
            entry.outcome, entry.truth = outcome, truth
        return entry

    def last(self, limit: int, request_id: str | None = None) -> list[Entry]:
        """The newest first; of one request, each of its attempts."""
        found: Iterator[Entry] = reversed(self._kept)
        if request_id is not None:
            wanted = request_id[:MAX_ID]
            found = (entry for entry in found if entry.request_id == wanted)
        return list(islice(found, limit))

    def salts(self) -> Salts:
        """Whether requests can share anything at all."""
        salted = [entry.salt for entry in self._kept if entry.salt is not None]
        return Salts(len(self._kept), len(salted), len(set(salted)))
