"""The index against the recipe as it is written, through everything that can happen to it, with and without a limit."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from indexer.events import AllBlocksCleared, BlockRemoved
from indexer.index import CacheIndex, ReplicaId, Tier
from indexer.tiers import TierIndex
from tests.indexer.samples import removed, stored

REPLICAS = [ReplicaId(name) for name in "ABC"]
MEDIA = ["GPU", "CPU"]
GROUPS = [0, 1]
REPLICA, MEDIUM, GROUP = st.sampled_from(REPLICAS), st.sampled_from(MEDIA), st.sampled_from(GROUPS)
HASH = st.integers(0, 11)
HASHES = st.lists(HASH, max_size=6)


class Chain:
    """Blocks 0 to 11, in this order."""

    def keys(self, count: int, /) -> Sequence[int]:
        return range(count)


class IndexMachine(RuleBasedStateMachine):
    """(replica, tier, group, hash) -> count, never below zero; but for blocks that were let go at the limit."""

    MAX_BLOCKS = 1_000

    @initialize()
    def start(self) -> None:
        self.index = CacheIndex(self.MAX_BLOCKS)
        self.added: set[ReplicaId] = set()
        self.model: dict[tuple[ReplicaId, str, int], Counter[int]] = {}
        self.let_go: Counter[ReplicaId] = Counter()
        self.evicted = 0

    def counts(self, replica: ReplicaId, medium: str, group: int) -> Counter[int]:
        return self.model.setdefault((replica, medium, group), Counter())

    def drop(self, replica: ReplicaId, media: Sequence[str]) -> None:
        self.model = {at: counts for at, counts in self.model.items() if not (at[0] == replica and at[1] in media)}
        self.let_go[replica] = 0

    @rule(replica=REPLICA)
    def add(self, replica: ReplicaId) -> None:
        self.index.add(replica)
        self.added.add(replica)

    @rule(replica=REPLICA)
    def remove_replica(self, replica: ReplicaId) -> None:
        self.index.remove(replica)
        self.added.discard(replica)
        self.drop(replica, MEDIA)

    @rule(replica=REPLICA)
    def forget(self, replica: ReplicaId) -> None:
        self.index.forget(replica)
        self.drop(replica, MEDIA)

    @rule(replica=REPLICA, medium=MEDIUM, group=GROUP, hashes=HASHES)
    def store(self, replica: ReplicaId, medium: str, group: int, hashes: list[int]) -> None:
        self.index.apply(replica, [stored(*hashes, medium=medium, group=group)])
        if replica in self.added:
            self.counts(replica, medium, group).update(hashes)

    @rule(replica=REPLICA, medium=MEDIUM, group=GROUP, hashes=HASHES)
    def remove(self, replica: ReplicaId, medium: str, group: int, hashes: list[int]) -> None:
        self.index.apply(replica, [removed(*hashes, medium=medium, group=group)])
        if replica in self.added:
            counts = self.counts(replica, medium, group)
            for hash in hashes:
                counts[hash] = max(0, counts[hash] - 1)

    @rule(replica=REPLICA, medium=MEDIUM, group=GROUP, hash=HASH, left=st.integers(0, 3))
    def remove_all_but(self, replica: ReplicaId, medium: str, group: int, hash: int, left: int) -> None:
        self.index.apply(replica, [BlockRemoved([hash], medium, group, remaining_copy_counts=[left])])
        if replica in self.added:
            self.counts(replica, medium, group)[hash] = left

    @rule(replica=REPLICA, medium=MEDIUM, group=GROUP, hashes=HASHES)
    def correct(self, replica: ReplicaId, medium: str, group: int, hashes: list[int]) -> None:
        tier = self.index.tiers.get(Tier(medium))
        if tier is None:
            return
        counts = self.counts(replica, medium, group)
        assert tier.discard(replica, group, hashes) == sum(counts[hash] > 0 for hash in set(hashes))
        for hash in hashes:
            counts[hash] = 0

    @rule(group=GROUP, depth=st.integers(0, 12))
    def touch(self, group: int, depth: int) -> None:
        self.index.touch(group, range(depth))

    @rule(replica=REPLICA)
    def clear(self, replica: ReplicaId) -> None:
        self.index.apply(replica, [AllBlocksCleared()])
        if replica in self.added:
            self.drop(replica, ["GPU"])

    @rule(at_most=st.integers(1, 5))
    def sweep(self, at_most: int) -> None:
        for tier in self.index.tiers.values():
            tier.sweep(at_most)

    def strike_what_was_let_go(self) -> None:
        """Blocks of the model that are in no table any more; no more of them than the index says it let go."""
        struck = set()
        for (replica, medium, group), counts in self.model.items():
            tier = self.index.tiers.get(Tier(medium))
            table = {} if tier is None else tier.groups.get(group, {})
            for hash in [hash for hash in +counts if hash not in table]:
                counts[hash] = 0
                struck.add((medium, group, hash))
                self.let_go[replica] += medium == "GPU"
        assert len(struck) <= self.index.evicted - self.evicted, "lost without a word"
        self.evicted = self.index.evicted

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "index"):
            return
        self.index.check()
        self.strike_what_was_let_go()
        assert {replica: self.index.let_go(replica) for replica in REPLICAS} == {
            replica: self.let_go[replica] for replica in REPLICAS
        }
        for medium in MEDIA:
            tier = self.index.tiers.get(Tier(medium))
            if tier is not None:
                self.agrees_in(medium, tier)

    def agrees_in(self, medium: str, tier: TierIndex) -> None:
        bits = {replica: tier.bit(replica) for replica in self.added}
        for replica in self.added:
            expected = {group: +self.counts(replica, medium, group) for group in GROUPS}
            assert {group: tier.held(replica, group) for group in GROUPS} == expected
            assert tier.blocks(replica) == sum(len(counts) for counts in expected.values())
            assert tier.copies(replica) == sum(counts.total() for counts in expected.values())
            assert all(
                tier.holds(replica, group, key) == (key in expected[group]) for group in GROUPS for key in range(12)
            )
        for group in GROUPS:
            for bit, depth in tier.depths(Chain(), 12, sum(bits.values()), group):
                for replica in (replica for replica in bits if bits[replica] & bit):
                    counts = self.counts(replica, medium, group)
                    assert all(counts[key] > 0 for key in range(depth))
                    assert depth == 12 or not counts[depth]

    def teardown(self) -> None:
        if not hasattr(self, "index"):
            return
        for replica in REPLICAS:
            self.index.remove(replica)
        for tier in self.index.tiers.values():
            while tier.has_retired:
                tier.sweep(1_000)
        self.index.sweep()
        assert self.index.tiers == {Tier(): self.index.gpu}
        assert (self.index.gpu.groups, self.index.size) == ({}, 0)


class BoundedMachine(IndexMachine):
    """Ten blocks, where 48 could be held."""

    MAX_BLOCKS = 10


@pytest.mark.parametrize("machine", [IndexMachine, BoundedMachine])
def test_the_index_agrees_with_the_recipe_through_everything(
    machine: type[IndexMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = TierIndex.sweep
    monkeypatch.setattr(TierIndex, "sweep", lambda self, at_most=0: sweep(self, at_most))
    run_state_machine_as_test(machine, settings=settings(max_examples=120, stateful_step_count=40))
