"""A KV cache by segments (``simulations.paths``): which of them it holds how far, who uses them, and what goes next.

Knows vLLM's order: blocks that nobody uses any more go to the back of one list, the tail of a prompt before its head; empty
blocks are given away first, then those at the front. A segment is used whole, so it lies in the list as one; it is taken
apart from its end. Never knows requests, replicas or time. It does what ``simulations.block_pool`` does block by block (a
test holds them against each other), but for copies: who computes what is held already keeps its own blocks to itself, and
gives them back empty.
"""

from collections import OrderedDict
from collections.abc import Sequence


class SegmentCache:
    """Mutable. Between calls: each held segment is either used or in the list; ``empty + idle`` and what is in use make all."""

    __slots__ = ("_idle", "_lengths", "_uses", "capacity", "empty", "held", "idle")

    def __init__(self, capacity: int, lengths: Sequence[int]) -> None:
        """``capacity`` in blocks; ``lengths`` of all segments."""
        if capacity < 1:
            raise ValueError(f"a cache needs at least 1 block, got {capacity}")
        self._lengths = lengths
        self._uses: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.capacity = capacity
        self.empty = capacity
        self.idle = 0  # blocks that are held and not used
        self.held: dict[int, int] = {}  # segment -> blocks of it, from its beginning; read only

    @property
    def usage(self) -> float:
        """Share of the blocks that requests use, 0 to 1."""
        return 1 - (self.empty + self.idle) / self.capacity

    def find(self, path: Sequence[int]) -> tuple[int, int]:
        """How many leading segments of the path are held at least in part, and how many blocks that is."""
        held, lengths = self.held, self._lengths
        blocks = 0
        for at, segment in enumerate(path):
            found = held.get(segment, 0)
            if not found:
                return at, blocks
            blocks += found
            if found < lengths[segment]:
                return at + 1, blocks
        return len(path), blocks

    def take(self, used: Sequence[int], count: int) -> list[int] | None:
        """Use these segments, which are held, and ``count`` blocks more.

        Returns:
            The segments that are no longer held whole for that, or None (and nothing is done) while too few blocks are free.
        """
        held, uses, idle = self.held, self._uses, self._idle
        kept = sum([held[segment] for segment in used if segment not in uses])
        if count > self.empty + self.idle - kept:
            return None
        for segment in used:
            if segment in uses:
                uses[segment] += 1
            else:
                uses[segment] = 1
                del idle[segment]
        self.idle -= kept
        if count <= self.empty:
            self.empty -= count
            return []
        count -= self.empty
        self.empty = 0
        self.idle -= count
        broken = []
        lengths = self._lengths
        while count:
            segment = next(iter(idle))
            found = held[segment]
            if found == lengths[segment]:
                broken.append(segment)
            if found > count:
                held[segment] = found - count
                break
            del held[segment], idle[segment]
            count -= found
        return broken

    def keep(self, path: Sequence[int], used: int) -> tuple[list[int], int]:
        """The whole path is computed now; of its first ``used`` segments ``take`` was told.

        Returns:
            The segments that are held whole from now on and were not before, and the number of blocks that hold them.
        """
        held, uses, lengths = self.held, self._uses, self._lengths
        new, blocks = [], 0
        for at, segment in enumerate(path):
            found = held.get(segment, 0)
            if at >= used:
                if found and segment not in uses:  # somebody else has computed it meanwhile, and ended
                    del self._idle[segment]
                    self.idle -= found
                uses[segment] = uses.get(segment, 0) + 1
            if found < lengths[segment]:
                blocks += lengths[segment] - found
                held[segment] = lengths[segment]
                new.append(segment)
        return new, blocks

    def free(self, path: Sequence[int], others: int) -> None:
        """A request has ended that used the path, and ``others`` blocks that hold nothing."""
        held, uses, idle = self.held, self._uses, self._idle
        self.empty += others
        for segment in reversed(path):
            count = uses[segment] - 1
            if count:
                uses[segment] = count
            else:
                del uses[segment]
                idle[segment] = None
                self.idle += held[segment]

    def drop(self, path: Sequence[int], used: int, others: int) -> None:
        """A request has ended before it was computed: it used the first segments of the path and ``others`` blocks."""
        self.free(path[:used], others)

    def check(self) -> None:
        """Verify what must hold between calls.

        Raises:
            AssertionError: it does not hold.
        """
        assert self._idle.keys() == self.held.keys() - self._uses.keys(), "a segment is neither used nor in the list"
        assert self.idle == sum([self.held[segment] for segment in self._idle]), "idle blocks are counted wrongly"
        assert self.empty >= 0, "more blocks are used than there are"
        assert all(0 < blocks <= self._lengths[segment] for segment, blocks in self.held.items()), "a part is too long"
