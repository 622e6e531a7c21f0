"""Replicas that have work and give nothing: their process lives, so that probes find no fault, and their engine stands still.

Knows which answers are under way, how much of each has come, and moved time (seconds, any monotonic clock). Never counts
bytes itself. A sign of life is a byte of any answer or a KV event; with neither for too long, while answers are owed, a replica
has stalled.
"""

from typing import Protocol

from indexer.index import ReplicaId


class Answer(Protocol):
    """An answer under way, as whoever relays it keeps it."""

    @property
    def arrived(self) -> int:
        """Bytes that have come of it."""
        ...


class _UnderWay:
    """One request at one replica; ``seen`` are the bytes at the last look."""

    __slots__ = ("answer", "replica", "seen")

    def __init__(self, replica: ReplicaId, answer: Answer) -> None:
        self.replica = replica
        self.answer = answer
        self.seen = 0


class Stalls:
    """Watches for signs of life. Changes with every call; times never go back.

    An answer that has begun goes on with every step of the engine, and a prompt that is computed is told block by block where
    events come. Where none do, the silence of a long prefill says nothing.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._open: dict[int, _UnderWay] = {}
        self._since: dict[ReplicaId, float] = {}  # last sign of life, of those that owe one
        self._heard: set[ReplicaId] = set()
        self._telling: set[ReplicaId] = set()

    def sent(self, lease: int, replica: ReplicaId, answer: Answer) -> None:
        """A request has been sent there."""
        self._open[lease] = _UnderWay(replica, answer)

    def ended(self, lease: int, *, is_good: bool) -> None:
        """It has ended; a good end is a sign of life, and a client that leaves is none."""
        ended = self._open.pop(lease, None)
        if ended is not None and is_good:
            self._heard.add(ended.replica)

    def told(self, replica: ReplicaId) -> None:
        """A KV event has come: from now on its silence says something."""
        self._telling.add(replica)
        self._heard.add(replica)

    def unheard(self, replica: ReplicaId) -> None:
        """Its events cannot be heard any more, or another engine has begun there."""
        self._telling.discard(replica)

    def look(self, now: float) -> tuple[dict[ReplicaId, float], set[ReplicaId]]:
        """Those that have stalled, with the seconds since their last sign of life; and those that have given one just now."""
        alive, self._heard = self._heard, set()
        owing: set[ReplicaId] = set()
        for each in self._open.values():
            arrived = each.answer.arrived
            if arrived > each.seen:
                each.seen = arrived
                alive.add(each.replica)
            if arrived or each.replica in self._telling:
                owing.add(each.replica)
        self._since = {replica: now if replica in alive else self._since.get(replica, now) for replica in owing}
        stalled = {replica: now - since for replica, since in self._since.items() if now - since >= self._seconds}
        return stalled, alive
