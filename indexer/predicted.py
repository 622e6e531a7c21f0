"""Blocks that a replica holds or is about to hold although no event has said so.

Two reasons: a request was sent there and its blocks are *expected*, from the decision until events name them; or they were
*remembered*, because a finished request or the engine's own figures imply them (where events are missing or there are none).
Knows keys, bits (as ``TierIndex`` gives them) and leases by number. Never knows time: whoever routes says when an
expectation has become stale. Between calls: a bit is set under a key exactly if some lease expects that block there, or it is
remembered, and no event has named it since.

Without this, requests that share a prefix and arrive before the first event are scattered over the fleet; vLLM itself lets
the second one hit the first one's blocks within the same step (0.32.0, blocks are hashed when they are scheduled).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

FORGOTTEN_AT_ONCE: Final = 16
"""A sixteenth of what is remembered goes at once: finding the front of a dict walks over all that was deleted there."""


class _Expected:
    __slots__ = ("bit", "keys", "serial")

    def __init__(self, bit: int, keys: Sequence[int], serial: int) -> None:
        self.bit = bit
        self.keys = keys
        self.serial = serial


class _Blocks:
    """Those of one replica."""

    __slots__ = ("leases", "others", "remembered", "since")

    def __init__(self) -> None:
        self.since: dict[int, int] = {}  # expected key -> serial of the first lease that has expected it since then
        self.others: dict[int, int] = {}  # expected key -> leases beyond the first
        self.remembered: dict[int, None] = {}  # least recently remembered first
        self.leases: set[int] = set()


class PredictedBlocks:
    """Key -> bits of the replicas that will hold the block. Changes with every call but ``holders``."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._leases: dict[int, _Expected] = {}
        self._of: dict[int, _Blocks] = {}  # by bit
        self._serial = 0

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
        self._serial = serial = self._serial + 1
        self._leases[lease] = _Expected(bit, keys, serial)
        blocks = self._blocks(bit)
        blocks.leases.add(lease)
        holders, since, others = self._holders, blocks.since, blocks.others
        for key in keys:
            if key in since:
                others[key] = others.get(key, 0) + 1
            else:
                since[key] = serial
                holders[key] = holders.get(key, 0) | bit

    def remember(self, bit: int, keys: Iterable[int], at_most: int) -> None:
        """The replica must hold these; of more than ``at_most`` the least recently remembered are forgotten."""
        blocks = self._blocks(bit)
        remembered, holders = blocks.remembered, self._holders
        for key in keys:
            if key in remembered:
                del remembered[key]  # to the end
            remembered[key] = None
            holders[key] = holders.get(key, 0) | bit
        if len(remembered) > at_most:
            beyond = len(remembered) - at_most + at_most // FORGOTTEN_AT_ONCE
            for key in list(islice(remembered, beyond)):
                del remembered[key]
                if key not in blocks.since:
                    self._drop_bit(bit, key)
        self._tidy(bit, blocks)

    def confirm(self, bit: int, keys: Iterable[int]) -> None:
        """The replica's own events named these blocks: from here on the index speaks for them."""
        blocks = self._of.get(bit)
        if blocks is None:
            return
        since, others, remembered = blocks.since, blocks.others, blocks.remembered
        for key in keys:
            if key in since:
                del since[key]
                others.pop(key, None)
                remembered.pop(key, None)
            elif key in remembered:
                del remembered[key]
            else:
                continue
            self._drop_bit(bit, key)
        self._tidy(bit, blocks)

    deny = confirm
    """The replica's own events removed these blocks: the index speaks for them too, and nobody expects them any more."""

    def drop(self, lease: int) -> None:
        """The lease expects nothing any more; what it expected and never came is forgotten."""
        expected = self._leases.pop(lease, None)
        if expected is None:
            return
        bit, serial = expected.bit, expected.serial
        blocks = self._of[bit]
        blocks.leases.discard(lease)
        since, others, remembered = blocks.since, blocks.others, blocks.remembered
        for key in expected.keys:
            began = since.get(key)
            if began is None or began > serial:
                continue  # an event has named it since; what is expected now is expected by later leases
            count = others.get(key, 0)
            if count > 1:
                others[key] = count - 1
            elif count:
                del others[key]
            else:
                del since[key]
                if key not in remembered:
                    self._drop_bit(bit, key)
        self._tidy(bit, blocks)

    def forget(self, bit: int) -> None:
        """The replica's cache began empty again: nothing that was expected of it comes."""
        blocks = self._of.pop(bit, None)
        if blocks is None:
            return
        for lease in blocks.leases:
            del self._leases[lease]
        for key in blocks.since.keys() | blocks.remembered.keys():
            self._drop_bit(bit, key)

    def forget_remembered(self, bit: int) -> None:
        """All that the replica holds is known now: only what leases expect may be there besides."""
        blocks = self._of.get(bit)
        if blocks is None:
            return
        for key in blocks.remembered.keys() - blocks.since.keys():
            self._drop_bit(bit, key)
        blocks.remembered.clear()
        self._tidy(bit, blocks)

    def _blocks(self, bit: int) -> _Blocks:
        blocks = self._of.get(bit)
        if blocks is None:
            blocks = self._of[bit] = _Blocks()
        return blocks

    def _tidy(self, bit: int, blocks: _Blocks) -> None:
        if not blocks.leases and not blocks.remembered:
            del self._of[bit]

    def _drop_bit(self, bit: int, key: int) -> None:
        held = self._holders[key]
        if held == bit:
            del self._holders[key]
        else:
            self._holders[key] = held ^ bit
