"""Which replica holds how far which segments, and is expected to: a router's index, by segments (``simulations.paths``).

Knows replicas and leases by number. Never knows load or time. It answers as ``indexer.tiers.TierIndex`` and
``indexer.predicted.PredictedBlocks`` do block by block, of replicas that tell at once what they hold: a lease expects what its
replica did not hold when it was given, until somebody has computed it there.
"""

from collections.abc import Mapping, Sequence


class Holdings:
    """Mutable; ``parts`` are the replicas' own tables of what they hold (``SegmentCache.held``), by replica.

    What lies in one of them, even in part, ``keep`` has been told of.
    """

    __slots__ = ("_begins", "_everyone", "_lengths", "_parts", "computed", "computing", "expected", "whole")

    def __init__(self, lengths: Sequence[int], parts: Sequence[Mapping[int, int]]) -> None:
        self._lengths = lengths
        self._parts = parts
        self._everyone = (1 << len(parts)) - 1
        # (segment, replica) -> for each lease that expects it, the block of it from which on
        self._begins: dict[tuple[int, int], dict[int, int]] = {}
        self.whole = [0] * len(lengths)  # by segment: the bits of those that hold it whole
        self.expected = [0] * len(lengths)  # by segment: the bits of those that are to compute it
        self.computed = bytearray(len(lengths))  # whether anybody ever has
        self.computing = [0] * len(lengths)  # by segment: the bits of those that compute it now

    def keep(self, replica: int, segments: Sequence[int]) -> None:
        """They are held whole there."""
        bit = 1 << replica
        for segment in segments:
            self.whole[segment] |= bit
            self.computed[segment] = 1
            if self.expected[segment] & bit:
                self.expected[segment] ^= bit
                del self._begins[segment, replica]

    def lose(self, replica: int, segments: Sequence[int]) -> None:
        """They are not held whole there any more."""
        keep = ~(1 << replica)
        for segment in segments:
            self.whole[segment] &= keep

    def expect(self, lease: int, replica: int, path: Sequence[int]) -> None:
        """A request was sent there that will compute what is lacking of the path."""
        bit, expected, part = 1 << replica, self.expected, self._parts[replica]
        for segment in path:
            if not self.whole[segment] & bit:
                expected[segment] |= bit
                self._begins.setdefault((segment, replica), {})[lease] = part.get(segment, 0)

    def expect_no_more(self, lease: int, replica: int, path: Sequence[int]) -> None:
        """The request has computed it, or has ended."""
        bit, expected = 1 << replica, self.expected
        for segment in path:
            begins = self._begins.get((segment, replica)) if expected[segment] & bit else None
            if begins is not None and begins.pop(lease, None) is not None and not begins:
                del self._begins[segment, replica]
                expected[segment] ^= bit

    def begin(self, replica: int, segments: Sequence[int]) -> None:
        """They are computed there from now on."""
        bit = 1 << replica
        for segment in segments:
            self.computing[segment] |= bit

    def end(self, replica: int, segments: Sequence[int]) -> None:
        """They are computed there no longer."""
        keep = ~(1 << replica)
        for segment in segments:
            self.computing[segment] &= keep

    def depths(self, path: Sequence[int], *, expecting: bool) -> list[int]:
        """How many leading blocks of the path each replica holds, by replica; what is expected counts if ``expecting``."""
        parts, lengths, whole, expected, begins = self._parts, self._lengths, self.whole, self.expected, self._begins
        computed = self.computed
        found = [0] * len(parts)
        left, blocks = self._everyone, 0
        for segment in path:
            holders = whole[segment]
            awaited = expected[segment] & ~holders & left if expecting else 0
            while awaited:
                bit = awaited & -awaited
                awaited ^= bit
                replica = bit.bit_length() - 1
                if parts[replica].get(segment, 0) >= min(begins[segment, replica].values()):
                    holders |= bit
            if not (holders or computed[segment]):
                break  # nobody holds a part of it, either
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
        if left == self._everyone:
            return [blocks] * len(parts)
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
                if not self.computed[segment]:
                    return blocks
                best = 0
                while left:
                    bit = left & -left
                    left ^= bit
                    best = max(best, self._parts[bit.bit_length() - 1].get(segment, 0))
                return blocks + best
            left = holders
            blocks += self._lengths[segment]
        return blocks
