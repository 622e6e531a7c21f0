"""One tier's table: block hash -> replicas, as bit sets, for every cache group.

Knows block keys (64-bit hashes, each naming a whole prefix), replicas by name and groups. Never knows tokens, parents, events,
order of arrival or policy. Between calls: a replica's bit is set under a key exactly if it holds at least one copy of that
block, as far as it was told (copies: one ``store`` and one ``remove`` for each physical block) and nothing had to be let go.

A block whose parent is unknown is simply kept: its hash is its position. A clear or a restart costs nothing at once: the
replica's bit is retired, the replica gets another one, and ``sweep`` takes the old bit out of the table piece by piece.
"""

from array import array
from collections import Counter, deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from operator import or_
from typing import Final

from indexer.bound import Bound
from indexer.places import Keys, Piece, ReplicaId, SlotImage, TierImage
from indexer.slices import at_once
from indexer.tallies import tally

SWEEP_AT_ONCE: Final = 20_000
"""Keys looked at within one call: about 2 ms of Python on a 2026 server core, so that no request waits longer."""

EXPORTED_AT_ONCE: Final = 16_384
"""Keys copied without a pause: 1 to 2 ms."""

MAX_SHARED_SETS: Final = 16_384
"""Bit sets kept to be shared by the keys that have the same holders; beyond that the keeping starts over."""

MAX_GROUPS: Final = 256
"""Cache groups; vLLM makes one for each kind of layer and repetition of it, a dozen at most so far."""

REMEMBERED_REMOVALS: Final = 4_096
"""Keys per replica and tier: more than an engine evicts between a decision and its prefill; 160 KiB."""


class _Slot:
    """One replica's bit in one tier, with what the bit sets cannot say."""

    __slots__ = ("bit", "blocks", "copies", "extra", "groups", "let_go", "removed")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.blocks = 0  # (group, key) pairs held
        self.extra = 0  # copies beyond the first, over all keys
        self.groups: set[int] = set()  # in which it has stored anything
        self.copies: dict[int, dict[int, int]] = {}  # group -> key -> copies beyond the first
        self.let_go = 0  # blocks that the bound took
        self.removed: deque[int] = deque(maxlen=REMEMBERED_REMOVALS)


LOOK_UP_AT_ONCE: Final = 64
"""Keys looked up before any holder is looked at: few are looked up in vain, and the lookups wait for memory together."""

_ZEROS: Final = repeat(0)


class TierIndex:
    """One tier's table. Changes with ``store``, ``remove``, ``discard``, ``restore``, ``clear``, ``evict`` and ``sweep``."""

    def __init__(self, bound: Bound | None = None) -> None:
        self.groups: dict[int, dict[int, int]] = {}  # group -> key -> bits of the holders
        self.unknown_removals = 0
        self._bound = Bound() if bound is None else bound
        self._bound.add(self)
        self._slots: dict[ReplicaId, _Slot] = {}
        self._owners: dict[int, _Slot] = {}  # bit -> slot
        self._free: list[int] = []  # bits that no key carries
        self._next_bit = 1
        self._shared: dict[int, int] = {}  # bit set -> its one int object, so that ``depths`` can compare by identity
        self._retired = 0  # bits whose replica is gone, still in the table, not yet being swept
        self._sweeping = 0
        self._sweep: Iterator[None] | None = None

    def bit(self, replica: ReplicaId) -> int:
        """The replica's bit in this tier; given on first use, changed by ``clear``."""
        return self._slot(replica).bit

    def _slot(self, replica: ReplicaId) -> _Slot:
        slot = self._slots.get(replica)
        if slot is None:
            if self._free:
                bit = self._free.pop()
            else:
                bit, self._next_bit = self._next_bit, self._next_bit << 1
            slot = self._slots[replica] = self._owners[bit] = _Slot(bit)
        return slot

    # What replicas hold

    def store(self, replica: ReplicaId, group: int, keys: Collection[int]) -> bool:
        """One more copy of each key; False if the group is one too many: their numbers are whatever a publisher says."""
        if not keys:
            return True
        slot = self._slot(replica)
        bit = slot.bit
        if group not in slot.groups:
            if len(slot.groups) >= MAX_GROUPS:
                return False
            slot.groups.add(group)
        holders = self.groups.get(group)
        if holders is None:
            holders = self.groups[group] = {}
        bound = self._bound
        if bound.is_crowded:
            bound.touch([key for key in keys if key in holders])
        get, shared = holders.get, self._shared
        if len(shared) > MAX_SHARED_SETS:
            shared.clear()
        before, new = len(holders), 0
        for key in keys:
            held = get(key)
            if held is None:
                holders[key] = bit  # the one int object of this bit: single holders, the usual case, cost no memory
                new += 1
            elif held & bit:
                copies = slot.copies.setdefault(group, {})
                copies[key] = copies.get(key, 0) + 1
                slot.extra += 1
            else:
                both = held | bit
                holders[key] = shared.setdefault(both, both)
                new += 1
        slot.blocks += new
        bound.room -= len(holders) - before
        if bound.room < 0:
            bound.look()
        return True

    def remove(
        self, replica: ReplicaId, group: int, keys: Collection[int], remaining: Sequence[int] | None = None
    ) -> None:
        """One copy of each key less, or as many left as ``remaining`` says, one number a key.

        What was never stored is counted and otherwise ignored. A ``remaining`` of another length says nothing.
        """
        slot = self._slots.get(replica) or self._slot(replica)
        if remaining is not None and len(remaining) == len(keys):
            slot.removed.extend(key for key, copies_left in zip(keys, remaining, strict=True) if not copies_left)
            for key, copies_left in zip(keys, remaining, strict=True):
                self._set_copies(replica, group, key, copies_left)
            return
        slot.removed.extend(keys)
        bit = slot.bit
        holders = self.groups.get(group, {})
        copies = slot.copies.get(group)
        shared = self._shared
        for key in keys:
            held = holders.get(key, 0)
            if not held & bit:
                self.unknown_removals += 1
            elif copies and key in copies:
                slot.extra -= 1
                copies[key] -= 1
                if not copies[key]:
                    del copies[key]
            else:
                slot.blocks -= 1
                if held == bit:
                    del holders[key]
                else:
                    rest = held ^ bit
                    holders[key] = shared.setdefault(rest, rest)
        if not holders or copies is not None:
            self._tidy(slot, group)

    def remove_wholly(self, replica: ReplicaId, group: int, keys: Collection[int]) -> None:
        """No copy of each key is left, as a removal says whose publisher announces only the last one's end."""
        self.remove(replica, group, keys, [0] * len(keys))

    def discard(self, replica: ReplicaId, group: int, keys: Iterable[int]) -> int:
        """A correction: the replica holds no copy of these. Returns how many of them it was thought to hold."""
        slot, holders = self._slots.get(replica), self.groups.get(group)
        if slot is None or holders is None:
            return 0
        copies = slot.copies.get(group, {})
        before = slot.blocks
        for key in keys:
            if (held := holders.get(key, 0)) & slot.bit:
                slot.blocks -= 1
                slot.extra -= copies.pop(key, 0)
                self._set_holders(holders, key, held ^ slot.bit)
        self._tidy(slot, group)
        return before - slot.blocks

    def restore(self, replica: ReplicaId, group: int, keys: Collection[int], copies: Mapping[int, int]) -> None:
        """The replica holds these keys, and of those in ``copies`` as many copies beyond the first; it held none of them."""
        self.store(replica, group, keys)
        if not copies:
            return
        slot, holders = self._slot(replica), self.groups.get(group, {})
        known = slot.copies.setdefault(group, {})
        for key, extra in copies.items():
            if extra > 0 and holders.get(key, 0) & slot.bit:
                known[key] = known.get(key, 0) + extra
                slot.extra += extra
        self._tidy(slot, group)

    def restore_sets(self, group: int, keys: Sequence[int], which: Sequence[int], sets: Sequence[int]) -> None:
        """Each key is held by all of its bit set, the one of this number among ``sets``; no further copy of those who held it.

        Costs keys and holders, and not their product: a block of a prompt that all share is held by a whole fleet.
        """
        holders = self.groups.get(group)
        if holders is None:
            if len(self.groups) >= MAX_GROUPS:
                return
            holders = self.groups[group] = {}
        get, before = holders.get, len(holders)
        own = [self._shared.setdefault(bits, bits) for bits in sets]
        news = [0] * len(own)
        grown: list[int] = []
        for key, at in zip(keys, which, strict=True):
            bits, held = own[at], get(key, 0)
            if not held:
                if bits:
                    holders[key] = bits
                    news[at] += 1
            elif more := bits & ~held:
                self._set_holders(holders, key, held | more)
                grown.append(more)
        planes = tally(zip([*own, *grown], [*news, *([1] * len(grown))], strict=True))
        for slot in self._slots.values():
            slot.blocks += sum(1 << at for at, plane in enumerate(planes) if plane & slot.bit)
        if not holders:
            del self.groups[group]
        self._bound.room -= len(holders) - before
        if self._bound.room < 0:
            self._bound.look()

    def restore_let_go(self, replica: ReplicaId, blocks: int) -> None:
        """So many of the replica's blocks had been let go before what is restored was exported."""
        if blocks:
            self._slot(replica).let_go += blocks

    def _set_copies(self, replica: ReplicaId, group: int, key: int, copies: int) -> None:
        was_held = self.discard(replica, group, [key])
        if copies > 0:
            self.restore(replica, group, [key], {key: copies - 1})
        elif not was_held:
            self.unknown_removals += 1

    def _set_holders(self, holders: dict[int, int], key: int, bits: int) -> None:
        if bits:
            holders[key] = self._shared.setdefault(bits, bits)
        else:
            del holders[key]

    def _tidy(self, slot: _Slot, group: int) -> None:
        """What has become empty goes away: publishers choose the numbers of groups."""
        if not slot.copies.get(group, True):
            del slot.copies[group]
        if not self.groups.get(group, True):
            del self.groups[group]
            slot.groups.discard(group)

    # Losing much at once

    def clear(self, replica: ReplicaId) -> None:
        """The replica holds nothing in this tier any more."""
        slot = self._slots.pop(replica, None)
        if slot is None:
            return
        del self._owners[slot.bit]
        if slot.blocks:
            self._retired |= slot.bit
            self.sweep()
        else:
            self._free.append(slot.bit)

    @property
    def has_retired(self) -> bool:
        """Whether ``sweep`` has work to do."""
        return bool(self._retired or self._sweeping)

    def sweep(self, at_most: int = SWEEP_AT_ONCE) -> None:
        """Take retired bits out of up to ``at_most`` keys; call again while ``has_retired``."""
        if self._sweep is None:
            if not self._retired:
                return
            self._sweeping, self._retired = self._retired, 0
            self._sweep = self._sweep_keys(self._sweeping)
        for _ in islice(self._sweep, at_most):
            pass
        if self._sweeping == 0:
            self._sweep = None

    def _sweep_keys(self, gone: int) -> Iterator[None]:
        for group, holders in list(self.groups.items()):
            for key in list(holders):  # a copy, for events change the table meanwhile; 13 ms for each million keys
                if (held := holders.get(key, 0)) & gone:
                    self._set_holders(holders, key, held & ~gone)
                yield
            if not holders and self.groups.get(group) is holders:
                del self.groups[group]
        self._free += [1 << at for at in range(gone.bit_length()) if gone >> at & 1]
        self._sweeping = 0

    def evict(self, group: int, keys: Sequence[int]) -> None:
        """Let go of these keys, which are all in the table, whoever holds them."""
        holders = self.groups[group]
        by_holders: dict[int, list[int]] = {}
        for key in keys:
            by_holders.setdefault(holders.pop(key), []).append(key)
        for held, gone in by_holders.items():
            bits = held
            while bits:
                bit = bits & -bits
                bits ^= bit
                if (slot := self._owners.get(bit)) is not None:
                    self._let_go(slot, group, gone)
        if not holders:
            del self.groups[group]

    def _let_go(self, slot: _Slot, group: int, keys: Sequence[int]) -> None:
        slot.blocks -= len(keys)
        slot.let_go += len(keys)
        if (copies := slot.copies.get(group)) is not None:
            slot.extra -= sum(copies.pop(key, 0) for key in keys)
            if not copies:
                del slot.copies[group]

    # Questions

    @property
    def is_empty(self) -> bool:
        """Whether nobody has or had anything here that is still in the table."""
        return not self._slots and not self.groups

    def holders(self, replicas: Iterable[ReplicaId]) -> dict[int, ReplicaId]:
        """Bit -> replica, of those that hold anything here."""
        slots = ((self._slots.get(replica), replica) for replica in replicas)
        return {slot.bit: replica for slot, replica in slots if slot is not None and slot.blocks}

    def knows(self, replica: ReplicaId) -> bool:
        """Whether the replica has been here since it last held nothing."""
        return replica in self._slots

    def blocks(self, replica: ReplicaId) -> int:
        """How many different blocks the replica holds here, over all groups."""
        slot = self._slots.get(replica)
        return slot.blocks if slot else 0

    def copies(self, replica: ReplicaId) -> int:
        """How many physical blocks of the replica are named by hashes; on GPU at most ``num_gpu_blocks`` - 1."""
        slot = self._slots.get(replica)
        return slot.blocks + slot.extra if slot else 0

    def let_go(self, replica: ReplicaId) -> int:
        """How many of its blocks were evicted from the index since the replica last held nothing."""
        slot = self._slots.get(replica)
        return slot.let_go if slot else 0

    def holds(self, replica: ReplicaId, group: int, key: int) -> bool:
        """Whether the replica holds this block."""
        slot = self._slots.get(replica)
        return slot is not None and bool(self.groups.get(group, {}).get(key, 0) & slot.bit)

    def lacking(self, bit: int, group: int, keys: Sequence[int]) -> list[int]:
        """Those of the keys that the holder of this bit does not hold, in their order."""
        get = self.groups.get(group, {}).get
        holders = list(map(get, keys, _ZEROS))
        if holders and holders.count(holders[0]) == len(holders):  # all or none, as it mostly is: at the speed of C
            return [] if holders[0] & bit else list(keys)
        return [key for key, held in zip(keys, holders, strict=True) if not held & bit]

    def removed_lately(self, replica: ReplicaId) -> frozenset[int]:
        """The last 4,096 keys that removals have named since the replica last held nothing."""
        slot = self._slots.get(replica)
        return frozenset(slot.removed) if slot is not None else frozenset()

    def held(self, replica: ReplicaId, group: int = 0) -> Counter[int]:
        """Key -> copies of one replica. Looks at the whole table: for tests and dumps."""
        slot = self._slots.get(replica)
        if slot is None:
            return Counter()
        extra = slot.copies.get(group, {})
        return Counter(
            {key: 1 + extra.get(key, 0) for key, held in self.groups.get(group, {}).items() if held & slot.bit}
        )

    def export(self) -> Generator[None, None, TierImage]:
        """A copy of the table, made in slices: some 80 ms and 12 bytes for each million keys.

        Between two slices nothing may be stored or removed by events. What changes all the same does no harm: a correction has
        its group copied at once, and a replica that was cleared is not in the image.
        """
        slots = dict(self._slots)
        images = {
            replica: SlotImage(slot.bit, {group: dict(copies) for group, copies in slot.copies.items()}, slot.let_go)
            for replica, slot in slots.items()
        }
        groups: dict[int, deque[Piece]] = {}
        for group, holders in list(self.groups.items()):
            try:
                groups[group] = yield from _sliced(holders)
            except RuntimeError:  # its size has changed
                groups[group] = at_once(_sliced(holders))
        return TierImage(
            groups, {replica: image for replica, image in images.items() if self._slots.get(replica) is slots[replica]}
        )

    def depths(
        self, chain: Keys, limit: int, among: int, group: int = 0, also: Mapping[int, int] | None = None
    ) -> list[tuple[int, int]]:
        """How far each replica of the bit set ``among`` holds the chain, from block 0, within ``limit`` blocks.

        Returns pairs (bits, blocks): every replica of ``bits`` holds exactly that many. ``also`` names further holders by
        key (``indexer.predicted``). The chain is asked for 1, 8, 64, 512 ... keys: one that misses at once is barely hashed.
        """
        found: list[tuple[int, int]] = []
        get = self.groups.get(group, {}).get
        and_get = also.get if also else None
        depth, until, alive = 0, min(1, limit), among
        same = alive  # the last bit set looked at that holds all of ``alive``
        while depth < until and alive:
            keys = chain.keys(until)[depth:until]
            for start in range(0, len(keys), LOOK_UP_AT_ONCE):
                part = keys[start : start + LOOK_UP_AT_ONCE]
                holders = list(map(get, part, _ZEROS))
                if and_get is not None and any(expected := list(map(and_get, part, _ZEROS))):
                    holders = list(map(or_, holders, expected))
                if holders.count(same) == len(holders):  # the usual case, at the speed of C
                    depth += len(holders)
                    continue
                for held in holders:
                    if held is not same:
                        rest = held & alive
                        if rest != alive:
                            found.append((alive ^ rest, depth))
                            alive = rest
                            if not alive:
                                break
                        same = held
                    depth += 1
                if not alive:
                    break
            if not keys:
                break
            until = min(limit, depth * 8)
        if alive:
            found.append((alive, depth))
        return found

    def check(self) -> None:
        """Assert what holds between calls; looks at the whole table."""
        counted: Counter[int] = Counter()
        known = self._retired | self._sweeping
        for slot in self._slots.values():
            assert not slot.bit & known, "two owners of one bit"
            assert self._owners[slot.bit] is slot, "a bit that leads to another"
            known |= slot.bit
        assert len(self._owners) == len(self._slots), "a bit of nobody"
        for free in self._free:
            assert not free & known, "a free bit is in use"
        for holders in self.groups.values():
            assert holders or self._sweeping, "an empty group"
            for held in holders.values():
                assert held, "a key without a holder"
                assert not held & ~known, "a holder that nobody is"
                counted.update(slot.bit for slot in self._slots.values() if held & slot.bit)
        for replica, slot in self._slots.items():
            assert counted[slot.bit] == slot.blocks, (
                f"{replica}: {slot.blocks} blocks counted, {counted[slot.bit]} held"
            )
            extra = sum(sum(copies.values()) for copies in slot.copies.values())
            assert extra == slot.extra, f"{replica}: {slot.extra} copies counted, {extra} noted"
            for group, copies in slot.copies.items():
                for key, count in copies.items():
                    assert count > 0, "a copy counted to nothing"
                    assert self.groups[group][key] & slot.bit, "a copy of what is not held"


def _sliced(holders: dict[int, int]) -> Generator[None, None, deque[Piece]]:
    pieces: deque[Piece] = deque()
    keys, held = iter(holders), iter(holders.values())
    while some := array("Q", islice(keys, EXPORTED_AT_ONCE)):
        bits = tuple(islice(held, EXPORTED_AT_ONCE))
        number = {each: at for at, each in enumerate(dict.fromkeys(bits))}
        pieces.append(Piece(some, tuple(number), array("I", map(number.__getitem__, bits))))
        yield
    return pieces
