"""Which replica holds which block: counted from events, in every tier and group, through clears and restarts."""

from collections import Counter, deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import tiers as tiers_module
from indexer.events import EMPTY, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.index import MAX_TIERS, MAX_TIERS_EACH, CacheIndex, ReplicaId, Tier, TierIndex
from indexer.places import is_on_gpu
from indexer.tiers import MAX_GROUPS
from tests.indexer.samples import index_of, removed, stored

A, B, C = (ReplicaId(name) for name in "ABC")
CLEARED = AllBlocksCleared()


class Prompt:
    """A prompt of these keys, which tells how far it was asked for."""

    def __init__(self, *keys: int) -> None:
        self._keys = keys
        self.asked: list[int] = []

    def keys(self, count: int, /) -> Sequence[int]:
        self.asked.append(count)
        return self._keys[:count]


def depths(index: CacheIndex, *keys: int, tier: Tier | None = None, group: int = 0) -> dict[ReplicaId, int]:
    """Replica -> leading blocks held."""
    table = index.tiers[tier or Tier()]
    bits = {replica: table.bit(replica) for replica in index.replicas}
    found = table.depths(Prompt(*keys), len(keys), sum(bits.values()), group)
    return {replica: depth for replica, bit in bits.items() for held, depth in found if held & bit}


# Counting -------------------------------------------------------------------------------------------------------------


def test_one_replicas_removal_leaves_the_others_alone() -> None:
    index = index_of(A, B)
    for replica in (A, B):
        index.apply(replica, [stored(0, 1)])
    index.apply(A, [removed(0)])
    assert depths(index, 0, 1) == {A: 0, B: 2}
    index.check()


def test_a_block_that_lies_twice_must_be_removed_twice() -> None:
    """vLLM stores the last block of a block-aligned prompt again with every repeat, and names each copy's end."""
    index = index_of(A)
    index.apply(A, [stored(0), stored(0), stored(0)])
    assert (index.gpu.blocks(A), index.gpu.copies(A)) == (1, 3)
    index.apply(A, [removed(0)])
    index.apply(A, [removed(0)])
    assert depths(index, 0) == {A: 1}
    index.apply(A, [removed(0)])
    assert (depths(index, 0), index.gpu.blocks(A), index.gpu.copies(A)) == ({A: 0}, 0, 0)
    index.check()


def test_copies_are_counted_within_one_event_too() -> None:
    index = index_of(A)
    index.apply(A, [stored(5, 5), removed(5)])
    assert index.gpu.held(A) == Counter({5: 1})
    index.apply(A, [removed(5, 5)])
    assert (index.gpu.held(A), index.gpu.unknown_removals) == (Counter(), 1)
    index.check()


def test_copies_of_one_replica_are_not_anothers() -> None:
    index = index_of(A, B)
    index.apply(A, [stored(0), stored(0)])
    index.apply(B, [stored(0)])
    index.apply(B, [removed(0)])
    assert depths(index, 0) == {A: 1, B: 0}
    assert index.gpu.held(A) == Counter({0: 2})


def test_removals_of_what_was_never_stored_are_counted_and_harmless() -> None:
    index = index_of(A, B)
    index.apply(B, [stored(0)])
    index.apply(A, [removed(0, 1), removed(0), removed(9, group=4)])
    assert (index.gpu.unknown_removals, index.gpu.blocks(A), index.gpu.copies(A)) == (4, 0, 0)
    assert depths(index, 0) == {A: 0, B: 1}
    index.check()


def test_a_replica_of_which_nothing_is_known_holds_nothing() -> None:
    index = index_of(A)
    assert (index.gpu.blocks(A), index.gpu.copies(A), index.gpu.held(A)) == (0, 0, Counter())


# Matching -------------------------------------------------------------------------------------------------------------


def test_a_hole_ends_the_match_and_healing_it_brings_the_tail_back() -> None:
    index = index_of(A, B)
    index.apply(A, [stored(0, 1, 2, 3), removed(0)])
    index.apply(B, [stored(0)])
    assert depths(index, 0, 1, 2, 3) == {A: 0, B: 1}
    index.apply(A, [removed(0)])
    index.apply(A, [stored(0)])
    assert depths(index, 0, 1, 2, 3) == {A: 4, B: 1}


def test_an_orphan_counts_once_its_prefix_is_known() -> None:
    index = index_of(A)
    index.apply(A, [BlockStored([3], 2, EMPTY, 4)])
    assert depths(index, 0, 1, 2, 3) == {A: 0}
    index.apply(A, [stored(0, 1, 2)])
    assert depths(index, 0, 1, 2, 3) == {A: 4}


def test_a_partial_block_that_is_promoted_leaves_the_full_one() -> None:
    index = index_of(A)
    index.apply(A, [stored(70), removed(70), stored(7)])
    assert index.gpu.held(A) == Counter({7: 1})


def test_depths_look_only_at_the_replicas_asked_about() -> None:
    index = index_of(A, B)
    for replica in (A, B):
        index.apply(replica, [stored(0)])
    bit = index.gpu.bit(A)
    assert index.gpu.depths(Prompt(0), 1, bit) == [(bit, 1)]
    assert index.gpu.depths(Prompt(0), 1, 0) == []


def test_depths_stop_at_the_limit() -> None:
    index = index_of(A)
    index.apply(A, [stored(*range(20))])
    for limit in (0, 1, 7, 8, 9, 20):
        assert index.gpu.depths(Prompt(*range(20)), limit, index.gpu.bit(A)) == [(index.gpu.bit(A), limit)]


@pytest.mark.parametrize("length", [0, 1, 5, 8, 9])
def test_a_limit_beyond_the_end_of_the_chain_ends_with_the_chain(length: int) -> None:
    index = index_of(A)
    index.apply(A, [stored(*range(20))])
    assert index.gpu.depths(Prompt(*range(length)), 100, index.gpu.bit(A)) == [(index.gpu.bit(A), length)]


def test_a_chain_is_hashed_no_further_than_the_match_goes() -> None:
    index = index_of(A)
    index.apply(A, [stored(*range(10))])
    bit = index.gpu.bit(A)
    for keys, asked in (((99, *range(1, 1_000)), [1]), (tuple(range(1_000)), [1, 8, 64])):
        prompt = Prompt(*keys[:10], *(key + 5_000 for key in keys[10:]))
        index.gpu.depths(prompt, 1_000, bit)
        assert prompt.asked == asked


def test_expected_blocks_count_as_held() -> None:
    index = index_of(A, B)
    index.apply(A, [stored(0, 1)])
    index.apply(B, [stored(1)])
    a, b = index.gpu.bit(A), index.gpu.bit(B)
    also = {0: b, 2: a, 3: a}
    assert sorted(index.gpu.depths(Prompt(0, 1, 2, 3, 4), 5, a | b, also=also)) == sorted([(b, 2), (a, 4)])


@given(st.data())
def test_depths_are_what_counting_by_hand_gives(data: st.DataObject) -> None:
    """Any chain, any holders, with and without expectations, against the obvious loop."""
    table = TierIndex()
    names = [ReplicaId(str(number)) for number in range(data.draw(st.integers(1, 5)))]
    bits = {name: table.bit(name) for name in names}
    chain = data.draw(st.lists(st.integers(0, 30), unique=True, max_size=20))
    held = {name: set(data.draw(st.lists(st.sampled_from(chain))) if chain else []) for name in names}
    expected = {name: set(data.draw(st.lists(st.sampled_from(chain), max_size=3)) if chain else []) for name in names}
    for name in names:
        prefix = data.draw(st.integers(0, len(chain)))
        held[name] |= set(chain[:prefix])
        table.store(name, 0, held[name])
    also = {key: sum(bits[name] for name in names if key in expected[name]) for key in chain}
    also = {key: bit for key, bit in also.items() if bit}
    asked = data.draw(st.lists(st.sampled_from(names), unique=True))
    limit = data.draw(st.integers(0, 25))
    got = table.depths(Prompt(*chain), limit, sum(bits[name] for name in asked), also=also or None)

    def by_hand(name: ReplicaId) -> int:
        depth = 0
        while depth < min(limit, len(chain)) and chain[depth] in held[name] | expected[name]:
            depth += 1
        return depth

    assert Counter({name: depth for name in names for bits_, depth in got if bits_ & bits[name]}) == Counter(
        {name: by_hand(name) for name in asked}
    )
    assert sum(bits_.bit_count() for bits_, _ in got) == len(asked), "each replica asked about is named once"


# Tiers and groups -----------------------------------------------------------------------------------------------------


def test_the_same_hash_in_two_groups_is_two_blocks() -> None:
    index = index_of(A)
    index.apply(A, [stored(0, group=0), stored(0, 1, group=1), removed(0, group=1)])
    assert (depths(index, 0), depths(index, 0, 1, group=1)) == ({A: 1}, {A: 0})
    assert index.gpu.blocks(A) == 2


def test_no_group_is_group_0() -> None:
    index = index_of(A)
    index.apply(A, [stored(0), removed(0, group=0)])
    assert index.gpu.blocks(A) == 0


def test_tiers_are_apart_whatever_the_case_and_default_to_gpu() -> None:
    index = index_of(A)
    index.apply(A, [stored(0, medium="CPU"), stored(0, medium="cpu"), stored(1, medium=None), stored(2, medium="gpu")])
    assert set(index.tiers) == {Tier("GPU"), Tier("CPU")}
    assert index.tiers[Tier("CPU")].held(A) == Counter({0: 2})
    assert index.gpu.held(A) == Counter({1: 1, 2: 1})


def test_an_offloaded_copy_outlives_the_one_on_gpu_in_either_order() -> None:
    placeholder = BlockStored([0], None, EMPTY, 0, medium="CPU")
    for events in ([placeholder, stored(0)], [stored(0), placeholder]):
        index = index_of(A)
        index.apply(A, [*events, removed(0)])
        assert (depths(index, 0), depths(index, 0, tier=Tier("CPU"))) == ({A: 0}, {A: 1})


def test_stores_of_different_owners_are_different_tiers() -> None:
    index = index_of(A)
    for owner in ("one", "two"):
        index.apply(A, [BlockStored([0], None, EMPTY, 0, medium="STORAGE", locality="REMOTE", ownership=owner)])
    index.apply(A, [BlockRemoved([0], "STORAGE", None, "REMOTE", "one")])
    assert index.tiers[Tier("STORAGE", "one", "REMOTE")].blocks(A) == 0
    assert index.tiers[Tier("STORAGE", "two", "REMOTE")].blocks(A) == 1


def test_a_clear_empties_every_group_of_gpu_and_no_other_tier() -> None:
    index = index_of(A)
    index.apply(A, [stored(0), stored(1, group=3), stored(2, medium="CPU"), CLEARED])
    assert (index.gpu.blocks(A), index.tiers[Tier("CPU")].blocks(A)) == (0, 1)
    index.check()


def test_a_restart_empties_every_tier() -> None:
    index = index_of(A, B)
    for replica in (A, B):
        index.apply(replica, [stored(0), stored(0, medium="CPU")])
    index.forget(A)
    assert (depths(index, 0), depths(index, 0, tier=Tier("CPU"))) == ({A: 0, B: 1}, {A: 0, B: 1})
    index.check()


@pytest.mark.parametrize(("events", "left"), [([CLEARED, stored(7)], {7: 1}), ([stored(7), CLEARED], {})])
def test_a_clear_counts_where_it_stands_in_its_batch(events: list[KVEvent], left: dict[int, int]) -> None:
    index = index_of(A)
    index.apply(A, [stored(0, 1)])
    index.apply(A, events)
    assert index.gpu.held(A) == Counter(left)


# Clearing piece by piece ----------------------------------------------------------------------------------------------


@pytest.fixture
def small_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear sweeps nothing by itself; tests say how much."""
    sweep = TierIndex.sweep
    monkeypatch.setattr(TierIndex, "sweep", lambda self, at_most=0: sweep(self, at_most))


@pytest.mark.usefixtures("small_sweeps")
def test_depths_are_right_while_a_cleared_replica_is_swept_and_its_bit_waits() -> None:
    index = index_of(A, B)
    table = index.gpu
    for replica in (A, B):
        index.apply(replica, [stored(*range(10))])
    old = table.bit(A)
    index.apply(A, [CLEARED, stored(0, 1)])
    assert table.has_retired
    for _ in range(15):
        assert depths(index, *range(10)) == {A: 2, B: 10}
        if table.has_retired:
            assert old not in {table.bit(A), table.bit(B), table.bit(C)}, "given away before it was swept"
        index._replicas.add(C)  # its bit was just asked for
        index.check()
        index.remove(C)
        table.sweep(1)
    assert not index.has_retired
    index.add(C)
    assert table.bit(C) <= 8, "bits are used again once they are swept"
    assert depths(index, *range(10)) == {A: 2, B: 10, C: 0}


@pytest.mark.usefixtures("small_sweeps")
def test_a_second_clear_during_a_sweep_is_swept_after_it() -> None:
    index = index_of(A, B)
    for replica in (A, B):
        index.apply(replica, [stored(*range(6))])
    index.apply(A, [CLEARED])
    index.gpu.sweep(3)
    index.apply(B, [CLEARED, stored(9)])
    while index.gpu.has_retired:
        index.gpu.sweep(2)
        index.check()
    assert index.gpu.groups == {0: {9: index.gpu.bit(B)}}


@pytest.mark.usefixtures("small_sweeps")
def test_a_block_removed_and_stored_again_during_a_sweep_survives_it() -> None:
    index = index_of(A, B)
    for replica in (A, B):
        index.apply(replica, [stored(0, 1, 2)])
    index.apply(A, [CLEARED])
    index.gpu.sweep(1)
    index.apply(B, [removed(2), stored(2, 3)])
    index.apply(A, [stored(2)])
    while index.gpu.has_retired:
        index.gpu.sweep(1)
    assert (index.gpu.held(A), index.gpu.held(B)) == (Counter({2: 1}), Counter({0: 1, 1: 1, 2: 1, 3: 1}))
    index.check()


def test_the_sweep_of_a_large_cache_is_spread_over_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers_module, "SWEEP_AT_ONCE", 100)
    index = index_of(A)
    index.apply(A, [stored(*range(50_000)), CLEARED])
    calls = 0
    while index.has_retired:
        index.sweep()
        calls += 1
    assert calls == 2, "20,000 with the clear, 20,000 and the rest"
    assert index.gpu.groups == {}


def test_clearing_what_is_empty_leaves_nothing_to_sweep() -> None:
    index = index_of(A)
    index.apply(A, [CLEARED, stored(0), removed(0), CLEARED])
    assert not index.has_retired
    assert index.gpu.bit(A) == index.gpu.bit(A)
    index.check()


# Coming and going -----------------------------------------------------------------------------------------------------


def test_events_of_a_replica_that_was_never_added_or_is_gone_are_dropped() -> None:
    index = index_of(A)
    index.apply(B, [stored(0)])
    index.apply(A, [stored(0)])
    index.remove(A)
    index.apply(A, [stored(0)])
    assert index.events_dropped == 2
    assert index.gpu.groups == {}
    index.check()


def test_a_replica_that_comes_back_starts_empty() -> None:
    index = index_of(A)
    index.apply(A, [stored(0), stored(0), stored(1, medium="CPU")])
    index.remove(A)
    index.add(A)
    assert (depths(index, 0), index.gpu.copies(A), set(index.tiers)) == ({A: 0}, 0, {Tier()})
    index.apply(A, [removed(0)])
    assert index.gpu.unknown_removals == 1


def test_removing_an_unknown_replica_changes_nothing() -> None:
    index = index_of(A)
    index.apply(A, [stored(0)])
    index.remove(B)
    assert depths(index, 0) == {A: 1}


def items(value: object, seen: set[int]) -> int:
    """Everything in every container that is reached from here."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, dict):
        return len(value) + sum(items(each, seen) for each in value.values())
    if isinstance(value, list | set | deque):
        return len(value) + sum(items(each, seen) for each in value)
    slots = getattr(type(value), "__slots__", ())
    parts = [getattr(value, name) for name in slots] or list(getattr(value, "__dict__", {}).values())
    return sum(items(part, seen) for part in parts)


def test_200_rollouts_leave_nothing_behind() -> None:
    index = index_of(A)
    index.apply(A, [stored(*range(100))])

    def roll_out(cycle: int) -> None:
        name = ReplicaId(f"replica-{cycle}")
        index.add(name)
        index.removal_means_gone.add(name)
        index.apply(name, [stored(*range(50, 550)), stored(1, 1, group=2), stored(3, medium="CPU"), CLEARED, stored(1)])
        index.apply(name, [stored(7, medium=f"tier {cycle}"), removed(8), stored(5, group=cycle)])
        index.remove(name)
        index.apply(name, [stored(4)])
        while index.has_retired:
            index.sweep()

    roll_out(0)
    baseline = items(index, set())
    for cycle in range(1, 201):
        roll_out(cycle)
    index.check()
    assert items(index, set()) == baseline
    assert index.replicas == {A}
    assert index.gpu.groups == {0: dict.fromkeys(range(100), index.gpu.bit(A))}
    assert index.tiers == {Tier(): index.gpu}


def test_the_sets_kept_for_sharing_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers_module, "MAX_SHARED_SETS", 10)
    names = [ReplicaId(str(number)) for number in range(8)]
    index = index_of(*names)
    for number, name in enumerate(names):
        for key in range(256):
            if key >> number & 1:
                index.apply(name, [stored(key)])
        assert len(index.gpu._shared) <= 11
    index.check()


def test_keys_with_the_same_holders_share_one_bit_set() -> None:
    """What memory per block and the speed of ``depths`` rest on."""
    names = [ReplicaId(str(number)) for number in range(40)]
    index = index_of(*names)
    for name in names:
        index.apply(name, [stored(*range(100))])
    assert len({id(held) for held in index.gpu.groups[0].values()}) == 1
    index.apply(names[3], [removed(*range(50))])
    assert len({id(held) for held in index.gpu.groups[0].values()}) == 2


def test_check_finds_what_does_not_hold() -> None:
    index = index_of(A)
    index.apply(A, [stored(0, 1)])
    index.gpu.groups[0][5] = index.gpu.bit(A)
    with pytest.raises(AssertionError, match="2 blocks counted, 3 held"):
        index.check()
    index.gpu.groups[0][5] = 1 << 40
    with pytest.raises(AssertionError, match="a holder that nobody is"):
        index.check()


def test_what_publishers_call_their_tiers_does_not_grow_without_bound() -> None:
    index = CacheIndex()
    index.add(A)
    for at in range(1000):
        index.apply(A, [BlockStored([at], None, EMPTY, 16, medium=f"tier {at}"), BlockStored([at], None, EMPTY, 16)])
    assert len(index.tiers) == MAX_TIERS_EACH
    assert index.events_dropped == 1000 - (MAX_TIERS_EACH - 1)
    assert index.gpu.blocks(A) == 1000, "the tiers that there are go on"


def test_one_publisher_leaves_tiers_and_groups_to_the_others() -> None:
    index = index_of(A, B)
    index.apply(A, [stored(at, group=at) for at in range(1, MAX_GROUPS + 1)])
    index.apply(A, [stored(at, medium=f"tier {at}") for at in range(1000)])
    assert index.apply(B, [stored(1, 2, 3), stored(4, medium="CPU"), stored(5, group=300)]) == 0
    assert (index.gpu.blocks(B), index.tiers[Tier("CPU")].blocks(B)) == (4, 1)
    index.check()


def test_events_without_room_are_told() -> None:
    index = index_of(A)
    assert index.apply(A, [stored(at, group=at) for at in range(MAX_GROUPS + 3)]) == 3


@pytest.mark.parametrize("medium", ["gpu", "GPU", ""])
@pytest.mark.parametrize("locality", [None, "LOCAL", ""])
def test_a_gpu_is_a_gpu_however_it_is_spelt(medium: str, locality: str | None) -> None:
    index = index_of(A)
    event = BlockStored([1], None, EMPTY, 16, medium=medium, locality=locality)
    index.apply(A, [event])
    assert is_on_gpu(event)
    assert index.gpu.blocks(A) == 1


def test_a_tier_that_nobody_uses_any_more_makes_room_for_another() -> None:
    index = index_of(A, B)
    others = [ReplicaId(f"other {at}") for at in range(MAX_TIERS)]
    for at, other in enumerate(others):
        index.add(other)
        index.apply(other, [stored(at, medium=f"tier {at}")])
    index.apply(B, [stored(1, medium="CPU")])
    assert (len(index.tiers), index.events_dropped) == (MAX_TIERS, 2)
    for other in others:
        index.remove(other)
    while index.has_retired:
        index.sweep()
    index.apply(B, [stored(1, medium="CPU"), stored(2, medium="tier 3")])
    assert set(index.tiers) == {Tier(), Tier("CPU"), Tier("TIER 3")}
    assert index.tiers[Tier("TIER 3")].held(B) == Counter({2: 1})
    index.check()


def test_the_numbers_of_groups_are_bounded_and_come_back() -> None:
    index = index_of(A)
    index.apply(A, [stored(at, group=at) for at in range(MAX_GROUPS + 5)])
    assert (len(index.gpu.groups), index.events_dropped) == (MAX_GROUPS, 5)
    index.apply(A, [removed(at, group=at) for at in range(5)])
    index.apply(A, [stored(7, 8, group=1_000), stored(9, group=10)])
    assert index.gpu.held(A, 1_000) == Counter({7: 1, 8: 1})
    assert index.gpu.held(A, 10) == Counter({9: 1, 10: 1})
    index.apply(A, [CLEARED])
    assert index.gpu.groups == {}


def test_an_event_without_blocks_leaves_nothing() -> None:
    index = index_of(A)
    index.apply(A, [stored(group=5), removed(group=6)])
    assert (index.gpu.groups, index.gpu.blocks(A)) == ({}, 0)
