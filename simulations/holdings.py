"""Which replica holds how far which segments, and is expected to: a router's index, by segments (``simulations.paths``).

Knows replicas by number. Never knows load or time. It answers as ``indexer.tiers.TierIndex`` and
``indexer.predicted.PredictedBlocks`` do block by block, of replicas that tell at once what they hold.
"""

from collections.abc import Mapping, Sequence


class Holdings:
    """Mutable; ``parts`` are the replicas' own tables of what they hold (``SegmentCache.held``), by replica."""

    __slots__ = ("_counts", "_everyone", "_lengths", "_parts", "computed", "expected", "whole")

    def __init__(self, lengths: Sequence[int], parts: Sequence[Mapping[int, int]]) -> None:
        self._lengths = lengths
        self._parts = parts
        self._everyone = (1 << len(parts)) - 1
        self._counts: dict[tuple[int, int], int] = {}
        self.whole = [0] * len(lengths)  # by segment: the bits of those that hold it whole
        self.expected = [0] * len(lengths)  # by segment: the bits of those that are to compute it
        self.computed = bytearray(len(lengths))  # whether anybody ever has

    def keep(self, replica: int, segments: Sequence[int]) -> None:
        """They are held whole there."""
        bit = 1 << replica
        for segment in segments:
            self.whole[segment] |= bit
            self.computed[segment] = 1

    def lose(self, replica: int, segments: Sequence[int]) -> None:
        """They are not held whole there any more."""
        keep = ~(1 << replica)
        for segment in segments:
            self.whole[segment] &= keep

    def expect(self, replica: int, path: Sequence[int]) -> None:
        """A request was sent there that will compute what is lacking of the path."""
        bit, counts, expected = 1 << replica, self._counts, self.expected
        for segment in path:
            name = (segment, replica)
            counts[name] = counts.get(name, 0) + 1
            expected[segment] |= bit

    def expect_no_more(self, replica: int, path: Sequence[int]) -> None:
        """The request has computed it, or has ended."""
        keep, counts, expected = ~(1 << replica), self._counts, self.expected
        for segment in path:
            name = (segment, replica)
            count = counts[name] - 1
            if count:
                counts[name] = count
            else:
                del counts[name]
                expected[segment] &= keep

    def is_awaited(self, segment: int, but: int) -> bool:
        """Whether anybody is to compute it, one request at replica ``but`` not counted."""
        expected = self.expected[segment]
        return bool(expected & ~(1 << but)) or self._counts.get((segment, but), 0) > 1

    def depths(self, path: Sequence[int], *, expecting: bool) -> list[int]:
        """How many leading blocks of the path each replica holds, by replica; what is expected counts if ``expecting``."""
        parts, lengths, whole, expected = self._parts, self._lengths, self.whole, self.expected
        found = [0] * len(parts)
        left, blocks = self._everyone, 0
        for segment in path:
            holders = whole[segment]
            if expecting:
                holders |= expected[segment]
            ended = left & ~holders
            while ended:
                bit = ended & -ended
                ended ^= bit
                replica = bit.bit_length() - 1
                found[replica] = blocks + parts[replica].get(segment, 0)
            left &= holders
            if not left:
                return found
            blocks += lengths[segment]
        while left:
            bit = left & -left
            left ^= bit
            found[bit.bit_length() - 1] = blocks
        return found

    def longest(self, path: Sequence[int]) -> int:
        """How many leading blocks of the path somebody holds."""
        blocks = 0
        left = self._everyone
        for segment in path:
            holders = left & self.whole[segment]
            if not holders:
                best = 0
                while left:
                    bit = left & -left
                    left ^= bit
                    best = max(best, self._parts[bit.bit_length() - 1].get(segment, 0))
                return blocks + best
            left = holders
            blocks += self._lengths[segment]
        return blocks
