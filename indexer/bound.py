"""The limit on what the index keeps, and what goes first when it is reached.

Knows tables of keys in the order in which they were first stored, and which keys were matched or stored again lately. Never
knows replicas, bits or events. Between calls: the tables together have at most ``max_blocks`` keys.

Second chance: the oldest keys of the largest table go, but one that was matched since it came goes to the end instead. A match
moves nothing, so that what is hot costs a set's ``update`` and no table is ever rebuilt for it; and below half of the limit
nothing is noted at all.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

MAX_BLOCKS: Final = 25_000_000
"""500 replicas of 50,000 blocks each, none of them shared: 2.2 GB at 90 bytes a block. More is a leak, not a fleet."""

SLACK: Final = 1_024
"""Keys let go beyond what is needed, so that not every event looks for room; about 0.5 ms."""

BATCH: Final = 100
"""The oldest 1 % of a table are looked up at once: finding the front of a dict walks over all that was deleted there."""

MATCHED: Final = 8
"""The last eighth of ``max_blocks`` keys that were matched is kept apart, twice: what is noted is a tenth of the memory."""

SPARED_AT_ONCE: Final = 32_768
"""Matched keys put to the end within one call, about 7 ms; further ones go all the same, so that no event waits longer."""


class Table(Protocol):
    """What is bounded: a tier."""

    @property
    def groups(self) -> Mapping[int, dict[int, int]]:
        """Group -> key -> anything."""
        ...

    def evict(self, group: int, keys: Sequence[int], /) -> None:
        """Let go of these keys, each of them held."""
        ...


class Bound:
    """One limit over all tables. Changes with ``add``, ``discard``, ``touch`` and ``look``."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self.evicted = 0
        """Keys let go since the start."""
        self.is_crowded = False
        """Whether more than half of the limit is used: only then is it worth noting what is in use."""
        self._tables: list[Table] = []
        self.room = max_blocks // 2
        """Keys that may be added before ``look``: tables count it down themselves, for it is counted with every event."""
        self._matched: set[int] = set()
        self._matched_before: set[int] = set()
        self._oldest: list[int] = []  # keys of one table that go next, the oldest at the end
        self._from: tuple[Table, int] | None = None

    @property
    def size(self) -> int:
        """Keys in all tables."""
        return sum(len(keys) for table in self._tables for keys in table.groups.values())

    def add(self, table: Table) -> None:
        """From now on this table's keys count."""
        self._tables.append(table)

    def discard(self, table: Table) -> None:
        """This table is gone."""
        self._tables.remove(table)
        if self._from is not None and self._from[0] is table:
            self._from, self._oldest = None, []

    def touch(self, keys: Iterable[int]) -> None:
        """These keys are in use."""
        if not self.is_crowded:
            return
        self._matched.update(keys)
        if len(self._matched) > self.max_blocks // MATCHED:
            self._matched_before, self._matched = self._matched, set()

    def look(self) -> None:
        """There may be no room: see, and let go of what is beyond the limit."""
        size = self.size
        self.is_crowded = size > self.max_blocks // 2
        if not self.is_crowded:
            self._matched.clear()
            self._matched_before.clear()
            self.room = self.max_blocks // 2 - size
            return
        if size > self.max_blocks:
            size -= self._evict(size - self.max_blocks + min(SLACK, self.max_blocks // BATCH))
        self.room = self.max_blocks - size

    def _evict(self, wanted: int) -> int:
        """Let go of so many keys."""
        left, spared = wanted, 0
        while left:
            table, group, keys = self._next(left)
            held = table.groups.get(group, {})
            going: list[int] = []
            for key in keys:
                if key not in held:
                    continue
                if spared < SPARED_AT_ONCE and (key in self._matched or key in self._matched_before):
                    spared += 1
                    self._matched.discard(key)
                    self._matched_before.discard(key)
                    held[key] = held.pop(key)
                else:
                    going.append(key)
            if going:
                table.evict(group, going)
                left -= len(going)
        self.evicted += wanted
        return wanted

    def _next(self, count: int) -> tuple[Table, int, list[int]]:
        """A table and group, and up to so many of its oldest keys; some may be gone since they were looked up."""
        if self._from is None or not self._oldest:
            _, at, group = max(
                (len(keys), at, group) for at, table in enumerate(self._tables) for group, keys in table.groups.items()
            )
            table = self._tables[at]
            keys = table.groups[group]
            self._from = table, group
            self._oldest = list(islice(keys, max(1, len(keys) // BATCH)))
            self._oldest.reverse()
        oldest = self._oldest[-count:]
        del self._oldest[-count:]
        return *self._from, oldest[::-1]
