"""Which replica holds which block: block hash -> replicas, as bit sets, for every tier and cache group.

Knows block keys (64-bit hashes, each naming a whole prefix), replicas by name, tiers and groups. Never knows tokens, parents,
order of arrival or policy. Between calls: a replica's bit is set under a key exactly if it holds at least one copy of that
block, as counted from its own events (copies: one ``BlockStored`` and one ``BlockRemoved`` for each physical block).

A block whose parent is unknown is simply kept: its hash is its position. A clear or a restart costs nothing at once: the
replica's bit is retired, the replica gets another one, and ``sweep`` takes the old bit out of the table piece by piece.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NewType, Protocol

import msgspec

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent

ReplicaId = NewType("ReplicaId", str)
"""Names one KV cache: an endpoint and a data-parallel rank of it."""

GPU: Final = "GPU"

SWEEP_AT_ONCE: Final = 20_000
"""Keys looked at within one call: about 2 ms of Python on a 2026 server core, so that no request waits longer."""


MAX_SHARED_SETS: Final = 16_384
"""Bit sets kept to be shared by the keys that have the same holders; beyond that the keeping starts over."""


MAX_TIERS: Final = 32
"""More than all media, owners and localities of a fleet; each is a table and a row in the metrics."""


class Keys(Protocol):
    """A prompt's block keys, computed as far as they are asked for (``hashing.chain.Chain``)."""

    def keys(self, count: int, /) -> Sequence[int]:
        """The keys of at least the first ``count`` blocks, or of all when there are fewer."""
        ...


class Tier(msgspec.Struct, frozen=True):
    """Where blocks lie: the medium (``GPU``, ``CPU``, ``STORAGE``), and whose it is when it is a shared store's."""

    medium: str = GPU
    ownership: str = ""
    locality: str = ""

    @property
    def label(self) -> str:
        """Its name in metrics: the medium, and what else tells it from tiers of the same medium."""
        return "/".join(part for part in (self.medium, self.locality, self.ownership) if part)


class _Slot:
    """One replica's bit in one tier, with what the bit sets cannot say."""

    __slots__ = ("bit", "blocks", "copies", "extra")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.blocks = 0  # (group, key) pairs held
        self.extra = 0  # copies beyond the first, over all keys
        self.copies: dict[int, dict[int, int]] = {}  # group -> key -> copies beyond the first


class TierIndex:
    """One tier's table. Changes with ``store``, ``remove``, ``clear`` and ``sweep``."""

    def __init__(self) -> None:
        self.groups: dict[int, dict[int, int]] = {}  # group -> key -> bits of the holders
        self.unknown_removals = 0
        self._slots: dict[ReplicaId, _Slot] = {}
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
            slot = self._slots[replica] = _Slot(bit)
        return slot

    def store(self, replica: ReplicaId, group: int, keys: Iterable[int]) -> None:
        """One more copy of each key."""
        slot = self._slot(replica)
        bit = slot.bit
        holders = self.groups.get(group)
        if holders is None:
            holders = self.groups[group] = {}
        get, shared = holders.get, self._shared_sets()
        new = 0
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

    def remove(self, replica: ReplicaId, group: int, keys: Iterable[int]) -> None:
        """One copy of each key less; what was never stored is counted and otherwise ignored."""
        slot = self._slot(replica)
        bit = slot.bit
        holders = self.groups.get(group, {})
        copies = slot.copies.get(group)
        shared = self._shared_sets()
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

    def _shared_sets(self) -> dict[int, int]:
        if len(self._shared) > MAX_SHARED_SETS:
            self._shared.clear()
        return self._shared

    def clear(self, replica: ReplicaId) -> None:
        """The replica holds nothing in this tier any more."""
        slot = self._slots.pop(replica, None)
        if slot is None:
            return
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
        for holders in list(self.groups.values()):
            for key in list(holders):
                held = holders.get(key, 0)
                if held & gone:
                    rest = held & ~gone
                    if rest:
                        holders[key] = self._shared.setdefault(rest, rest)
                    else:
                        del holders[key]
                yield
        self._free += [1 << at for at in range(gone.bit_length()) if gone >> at & 1]
        self._sweeping = 0

    def blocks(self, replica: ReplicaId) -> int:
        """How many different blocks the replica holds here, over all groups."""
        slot = self._slots.get(replica)
        return slot.blocks if slot else 0

    def copies(self, replica: ReplicaId) -> int:
        """How many physical blocks of the replica are named by hashes; on GPU at most ``num_gpu_blocks`` - 1."""
        slot = self._slots.get(replica)
        return slot.blocks + slot.extra if slot else 0

    def held(self, replica: ReplicaId, group: int = 0) -> Counter[int]:
        """Key -> copies of one replica. Looks at the whole table: for tests and dumps."""
        slot = self._slots.get(replica)
        if slot is None:
            return Counter()
        extra = slot.copies.get(group, {})
        return Counter(
            {key: 1 + extra.get(key, 0) for key, held in self.groups.get(group, {}).items() if held & slot.bit}
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
            for key in keys:
                held = get(key, 0)
                if and_get is not None and (expected := and_get(key, 0)):
                    held |= expected
                if held is not same:
                    rest = held & alive
                    if rest != alive:
                        found.append((alive ^ rest, depth))
                        alive = rest
                        if not alive:
                            break
                    same = held
                depth += 1
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
            known |= slot.bit
        for free in self._free:
            assert not free & known, "a free bit is in use"
        for holders in self.groups.values():
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


class CacheIndex:
    """All tiers of all replicas. Changes with ``add``, ``apply``, ``forget``, ``remove`` and ``sweep``."""

    def __init__(self) -> None:
        self.tiers: dict[Tier, TierIndex] = {Tier(): TierIndex()}
        self.gpu = self.tiers[Tier()]
        self.events_dropped = 0
        self._replicas: set[ReplicaId] = set()
        self._by_fields: dict[tuple[str | None, str | None, str | None], TierIndex] = {}

    def __repr__(self) -> str:
        blocks = sum(len(holders) for holders in self.gpu.groups.values())
        return f"<CacheIndex {len(self._replicas)} replicas, {blocks:,} blocks on GPU>"

    @property
    def replicas(self) -> frozenset[ReplicaId]:
        return frozenset(self._replicas)

    def add(self, replica: ReplicaId) -> None:
        """From now on events of this replica count; those that come before are dropped."""
        self._replicas.add(replica)

    def remove(self, replica: ReplicaId) -> None:
        """Forget the replica and every event of it that may still be queued."""
        self.forget(replica)
        self._replicas.discard(replica)

    def forget(self, replica: ReplicaId) -> None:
        """The replica's caches began empty again, in every tier of its own."""
        for tier in self.tiers.values():
            tier.clear(replica)

    def apply(self, replica: ReplicaId, events: Iterable[KVEvent]) -> None:
        """Count these events, in this order."""
        if replica not in self._replicas:
            self.events_dropped += 1
            return
        for event in events:
            match event:
                case BlockStored():
                    if (tier := self._tier(event)) is not None:
                        tier.store(replica, event.group_idx or 0, event.block_hashes)
                case BlockRemoved():
                    if (tier := self._tier(event)) is not None:
                        tier.remove(replica, event.group_idx or 0, event.block_hashes)
                case AllBlocksCleared():
                    # Names no medium; other tiers announce their own losses (vLLM 0.32: or nothing at all).
                    self.gpu.clear(replica)

    def _tier(self, event: BlockStored | BlockRemoved) -> TierIndex | None:
        """The event's tier; None for one too many: their names are whatever a publisher says."""
        fields = (event.medium, event.ownership, event.locality)
        tier = self._by_fields.get(fields)
        if tier is None:
            name = Tier((event.medium or GPU).upper(), event.ownership or "", event.locality or "")
            if name not in self.tiers and len(self.tiers) >= MAX_TIERS:
                self.events_dropped += 1
                return None
            tier = self.tiers.setdefault(name, TierIndex())
            if len(self._by_fields) < 4 * MAX_TIERS:
                self._by_fields[fields] = tier
        return tier

    @property
    def has_retired(self) -> bool:
        """Whether ``sweep`` has work to do."""
        return any(tier.has_retired for tier in self.tiers.values())

    def sweep(self) -> None:
        """A slice of the work that clears and restarts have left; call again while ``has_retired``."""
        for tier in self.tiers.values():
            tier.sweep()

    def check(self) -> None:
        """Assert what holds between calls; looks at everything."""
        for tier in self.tiers.values():
            tier.check()
            assert set(tier._slots) <= self._replicas, "a replica that was never added holds blocks"
