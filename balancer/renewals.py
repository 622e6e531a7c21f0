"""When a replica's events are followed anew because they have become another engine's.

Knows times and replicas. Never knows how that is found out, nor who follows events. Engines that take turns behind one address
never end: each renewal makes the next one wait longer, until one has held for an hour.
"""

from typing import Final

from indexer.index import ReplicaId

FIRST_PAUSE: Final = 10.0
"""Seconds; longer than a new subscription and its replay take."""

LONGEST_PAUSE: Final = 3_600.0


class Renewals:
    """Changes with every call; times are the caller's, in seconds."""

    def __init__(self) -> None:
        self._next: dict[ReplicaId, tuple[float, float]] = {}  # not before, and the pause after that

    def is_due(self, replica: ReplicaId, now: float) -> bool:
        """Whether to follow it anew now, which then counts as done."""
        at, pause = self._next.get(replica, (now, FIRST_PAUSE))
        if now < at:
            return False
        if now > at + LONGEST_PAUSE:
            pause = FIRST_PAUSE
        self._next[replica] = now + pause, min(2 * pause, LONGEST_PAUSE)
        return True

    def forget(self, replica: ReplicaId) -> None:
        """The replica is gone."""
        self._next.pop(replica, None)
