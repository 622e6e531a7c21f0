"""Blocks that a replica is about to hold: from the decision that sends it a prompt until its events say so.

Knows keys, bits (as ``index.TierIndex`` gives them) and leases by number. Never knows time: whoever routes says when an
expectation has become stale. Between calls: a bit is set under a key only if some lease expects that block there and no
event has named it.

Without this, requests that share a prefix and arrive before the first event are scattered over the fleet; vLLM itself lets
the second one hit the first one's blocks within the same step (0.32.0, blocks are hashed when they are scheduled).
"""

from collections.abc import Iterable, Mapping, Sequence


class _Expected:
    __slots__ = ("bit", "keys")

    def __init__(self, bit: int, keys: Sequence[int]) -> None:
        self.bit = bit
        self.keys = keys


class PredictedBlocks:
    """Key -> bits of the replicas that will hold the block. Changes with every call but ``holders``."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._leases: dict[int, _Expected] = {}
        self._counts: dict[tuple[int, int], int] = {}  # (bit, key) -> leases beyond the first

    def __len__(self) -> int:
        return len(self._holders)

    def __repr__(self) -> str:
        return f"<PredictedBlocks {len(self._leases)} leases, {len(self._holders)} keys>"

    @property
    def holders(self) -> Mapping[int, int]:
        """For ``TierIndex.depths(also=...)``; read only."""
        return self._holders

    def expect(self, lease: int, bit: int, keys: Sequence[int]) -> None:
        """This lease's prompt will make the replica hold these blocks; what it expected before is replaced."""
        self.drop(lease)
        if not keys:
            return
        keys = tuple(keys)  # a chain's own list grows later on
        self._leases[lease] = _Expected(bit, keys)
        holders, counts = self._holders, self._counts
        for key in keys:
            held = holders.get(key, 0)
            if held & bit:
                counts[bit, key] = counts.get((bit, key), 0) + 1
            else:
                holders[key] = held | bit

    def confirm(self, bit: int, keys: Iterable[int]) -> None:
        """The replica's own events named these blocks: from here on the index speaks for them."""
        if not self._holders:
            return
        for key in keys:
            held = self._holders.get(key, 0)
            if held & bit:
                self._counts.pop((bit, key), None)
                self._drop_bit(bit, key, held)

    def drop(self, lease: int) -> None:
        """The lease expects nothing any more; what it expected and never came is forgotten."""
        expected = self._leases.pop(lease, None)
        if expected is None:
            return
        bit = expected.bit
        for key in expected.keys:
            held = self._holders.get(key, 0)
            if not held & bit:
                continue
            others = self._counts.get((bit, key), 0)
            if others > 1:
                self._counts[bit, key] = others - 1
            elif others:
                del self._counts[bit, key]
            else:
                self._drop_bit(bit, key, held)

    def forget(self, bit: int) -> None:
        """The replica's cache began empty again: nothing that was expected of it comes."""
        for lease in [lease for lease, expected in self._leases.items() if expected.bit == bit]:
            self.drop(lease)

    def _drop_bit(self, bit: int, key: int, held: int) -> None:
        if held == bit:
            del self._holders[key]
        else:
            self._holders[key] = held ^ bit
