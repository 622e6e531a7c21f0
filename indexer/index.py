"""Which replica holds which block, in every tier and cache group.

Knows replicas by name, tiers, and what the three events do to them. Never knows tokens, order of arrival or policy. Between
calls: only replicas that were added hold anything, and all tables together are within the limit.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from indexer.bound import MAX_BLOCKS, Bound
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.places import GPU, Keys, ReplicaId, Tier, TierImage, tier_of
from indexer.stores import StoreIndex
from indexer.tiers import TierIndex

__all__ = ["GPU", "MAX_BLOCKS", "CacheIndex", "Keys", "ReplicaId", "Tier", "TierImage", "TierIndex"]

MAX_TIERS: Final = 32
"""More than all media, owners and localities of a fleet; each is a table and a row in the metrics."""

MAX_TIERS_EACH: Final = 8
"""Of one replica: one that names more of them than any engine has must leave room for the others."""


class CacheIndex:
    """All tiers of all replicas. Changes with ``add``, ``apply``, ``touch``, ``forget``, ``remove`` and ``sweep``."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._bound = Bound(max_blocks)
        self.tiers: dict[Tier, TierIndex] = {Tier(): TierIndex(self._bound)}
        self.gpu = self.tiers[Tier()]
        self.stores = StoreIndex(self._bound)
        """What lies in stores that no replica owns; it is nobody's when a replica is forgotten."""
        self.events_dropped = 0
        self.clears: Counter[ReplicaId] = Counter()
        """How often each replica's GPU tier was cleared by an event."""
        self.removal_means_gone: set[ReplicaId] = set()
        """Replicas whose removals end all copies of a block: of an engine that announces only the last one's end."""
        self._replicas: set[ReplicaId] = set()
        self._by_fields: dict[tuple[str | None, str | None, str | None], TierIndex] = {}

    def __repr__(self) -> str:
        blocks = sum(len(holders) for holders in self.gpu.groups.values())
        return f"<CacheIndex {len(self._replicas)} replicas, {blocks:,} blocks on GPU>"

    @property
    def size(self) -> int:
        """Keys in all tables: blocks, however many replicas hold them."""
        return self._bound.size

    @property
    def replicas(self) -> frozenset[ReplicaId]:
        return frozenset(self._replicas)

    def knows(self, replica: ReplicaId) -> bool:
        """Whether events of this replica count."""
        return replica in self._replicas

    @property
    def max_blocks(self) -> int:
        """The most that ``size`` will ever be."""
        return self._bound.max_blocks

    @property
    def evicted(self) -> int:
        """Keys that were let go because the limit was reached."""
        return self._bound.evicted

    def let_go(self, replica: ReplicaId) -> int:
        """Blocks on the replica's GPU that were let go since it was last known to hold nothing.

        Those of other tiers do not count: storage tiers never announce a removal (vLLM 0.32), and leak until they are let go.
        """
        return self.gpu.let_go(replica)

    def has_other_tiers(self, replica: ReplicaId) -> bool:
        """Whether the replica holds anything outside its GPU."""
        return len(self.tiers) > 1 and any(tier.blocks(replica) for tier in self.tiers.values() if tier is not self.gpu)

    def forget_tier(self, replica: ReplicaId, medium: str) -> None:
        """The replica holds nothing more in its own tiers of this medium."""
        for tier, table in self.tiers.items():
            if tier.medium == medium:
                table.clear(replica)
        self._drop_empty_tiers()

    def add(self, replica: ReplicaId) -> None:
        """From now on events of this replica count; those that come before are dropped."""
        self._replicas.add(replica)

    def remove(self, replica: ReplicaId) -> None:
        """Forget the replica and every event of it that may still be queued."""
        self.forget(replica)
        self._replicas.discard(replica)
        self.clears.pop(replica, None)
        self.removal_means_gone.discard(replica)

    def forget(self, replica: ReplicaId) -> None:
        """The replica's caches began empty again, in every tier of its own."""
        for tier in self.tiers.values():
            tier.clear(replica)
        self._drop_empty_tiers()

    def apply(self, replica: ReplicaId, events: Iterable[KVEvent]) -> int:
        """Count these events, in this order; returns how many had no room, in tiers or groups one too many."""
        if replica not in self._replicas:
            self.events_dropped += 1
            return 0
        before = self.events_dropped
        for event in events:
            match event:
                case BlockStored():
                    tier = self._tier(replica, event)
                    if tier is None or not tier.store(replica, event.group_idx or 0, event.block_hashes):
                        self.events_dropped += 1
                case BlockRemoved():
                    if (tier := self._tier(replica, event)) is None:
                        self.events_dropped += 1
                    elif replica in self.removal_means_gone:
                        tier.remove_wholly(replica, event.group_idx or 0, event.block_hashes)
                    else:
                        tier.remove(replica, event.group_idx or 0, event.block_hashes, event.remaining_copy_counts)
                case AllBlocksCleared():
                    # Names no medium; other tiers announce their own losses (vLLM 0.32: or nothing at all).
                    self.gpu.clear(replica)
                    self.clears[replica] += 1
        return self.events_dropped - before

    def touch(self, group: int, keys: Iterable[int]) -> None:
        """These keys of the GPU tier were matched just now; costs nothing while less than half of the limit is used."""
        if group in self.gpu.groups:
            self._bound.touch(keys)

    def tier(self, name: Tier) -> TierIndex | None:
        """The tier's table, made on first use; None for one too many."""
        if name not in self.tiers:
            if len(self.tiers) >= MAX_TIERS:
                return None
            self.tiers[name] = TierIndex(self._bound)
        return self.tiers[name]

    def _tier(self, replica: ReplicaId, event: BlockStored | BlockRemoved) -> TierIndex | None:
        """The event's tier; None for one too many: their names are whatever a publisher says."""
        fields = (event.medium, event.ownership, event.locality)
        tier = self._by_fields.get(fields)
        if tier is None:
            name = tier_of(event)
            if name not in self.tiers and sum(each.knows(replica) for each in self.tiers.values()) >= MAX_TIERS_EACH:
                return None
            tier = self.tier(name)
            if tier is not None and len(self._by_fields) < 4 * MAX_TIERS:
                self._by_fields[fields] = tier
        return tier

    def _drop_empty_tiers(self) -> None:
        """Names that nobody uses any more make room for others."""
        for name, tier in list(self.tiers.items()):
            if tier is not self.gpu and tier.is_empty:
                del self.tiers[name]
                self._bound.discard(tier)
                self._by_fields = {fields: of for fields, of in self._by_fields.items() if of is not tier}

    @property
    def has_retired(self) -> bool:
        """Whether ``sweep`` has work to do."""
        return self.stores.has_retired or any(tier.has_retired for tier in self.tiers.values())

    def sweep(self) -> None:
        """A slice of the work that clears and restarts have left; call again while ``has_retired``."""
        for tier in self.tiers.values():
            tier.sweep()
        self.stores.sweep()
        self._drop_empty_tiers()

    def check(self) -> None:
        """Assert what holds between calls; looks at everything."""
        for tier in self.tiers.values():
            tier.check()
            assert set(tier._slots) <= self._replicas, "a replica that was never added holds blocks"
        self.stores.check()
        assert self.size <= self.max_blocks, "more blocks than the limit"
