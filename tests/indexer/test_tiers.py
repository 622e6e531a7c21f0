"""One tier's table: corrections, images, what was removed lately. Counting and matching: ``test_index.py``."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import tiers
from indexer.events import AllBlocksCleared, BlockRemoved
from indexer.index import ReplicaId, TierImage, TierIndex
from indexer.slices import at_once
from indexer.tiers import REMEMBERED_REMOVALS
from tests.indexer.samples import index_of, removed, stored

A, B, C = (ReplicaId(name) for name in "ABC")


def test_a_correction_takes_all_copies_of_one_replica_and_tells_how_many_blocks() -> None:
    index = index_of(A, B)
    for replica in (A, B):
        index.apply(replica, [stored(0, 0, 1, 2)])
    assert index.gpu.discard(A, 0, [0, 0, 1, 9]) == 2
    assert (index.gpu.held(A), index.gpu.copies(A)) == (Counter({2: 1}), 1)
    assert index.gpu.held(B) == Counter({0: 2, 1: 1, 2: 1})
    assert index.gpu.discard(C, 0, [0]) == index.gpu.discard(A, 7, [2]) == 0
    assert index.gpu.unknown_removals == 0
    index.check()


def test_a_correction_of_everything_leaves_nothing() -> None:
    index = index_of(A)
    index.apply(A, [stored(0, 0, 1)])
    index.gpu.discard(A, 0, [0, 1])
    assert (index.gpu.groups, index.gpu.copies(A), index.size) == ({}, 0, 0)
    index.check()


def test_holds_is_of_one_replica_and_group() -> None:
    index = index_of(A, B)
    index.apply(A, [stored(0), stored(1, group=1)])
    index.apply(B, [stored(1)])
    tier = index.gpu
    assert (tier.holds(A, 0, 0), tier.holds(A, 1, 1)) == (True, True)
    assert not any((tier.holds(B, 0, 0), tier.holds(A, 0, 1), tier.holds(A, 2, 0), tier.holds(C, 0, 0)))


def test_only_the_latest_removals_of_a_replica_are_known() -> None:
    index = index_of(A, B)
    index.apply(A, [stored(*range(5)), removed(0), stored(0)])
    index.apply(B, [removed(7)])
    tier = index.gpu
    assert ((0 in tier.removed_lately(A)), (7 in tier.removed_lately(A)), (0 in tier.removed_lately(C))) == (
        True,
        False,
        False,
    )
    for start in range(100, 100 + 3 * REMEMBERED_REMOVALS, 64):
        index.apply(A, [removed(*range(start, start + 64))])
    last = 100 + 3 * REMEMBERED_REMOVALS
    assert last - 1 in tier.removed_lately(A)
    assert last - REMEMBERED_REMOVALS in tier.removed_lately(A)
    assert last - REMEMBERED_REMOVALS - 1 not in tier.removed_lately(A)
    assert len(tier._slots[A].removed) == REMEMBERED_REMOVALS


def test_a_correction_is_no_removal() -> None:
    index = index_of(A)
    index.apply(A, [stored(0)])
    index.gpu.discard(A, 0, [0])
    assert 0 not in index.gpu.removed_lately(A)


# How many copies are left ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "copies"), [(0, 0), (1, 1), (2, 2), (5, 5)])
def test_a_removal_that_says_how_many_copies_are_left_is_believed(left: int, copies: int) -> None:
    index = index_of(A, B)
    index.apply(B, [stored(0)])
    index.apply(A, [stored(0, 0, 0), BlockRemoved([0], "GPU", remaining_copy_counts=[left])])
    assert index.gpu.held(A)[0] == copies
    assert index.gpu.held(B) == Counter({0: 1})
    assert index.gpu.unknown_removals == 0
    index.check()


def test_copies_that_are_left_of_an_unknown_block_make_it_known() -> None:
    index = index_of(A)
    index.apply(A, [BlockRemoved([0, 1], "GPU", remaining_copy_counts=[2, 0])])
    assert (index.gpu.held(A), index.gpu.unknown_removals) == (Counter({0: 2}), 1)
    index.check()


@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0]])
def test_counts_that_do_not_fit_the_keys_say_nothing(counts: list[int]) -> None:
    index = index_of(A)
    index.apply(A, [stored(0, 0, 1, 1), BlockRemoved([0, 1], "GPU", remaining_copy_counts=counts)])
    assert index.gpu.held(A) == Counter({0: 1, 1: 1})


def test_where_a_removal_means_gone_it_ends_all_copies_of_that_replica_alone() -> None:
    index = index_of(A, B)
    index.removal_means_gone.add(A)
    for replica in (A, B):
        index.apply(replica, [stored(0, 0, 1), removed(0, 9)])
    assert (index.gpu.held(A), index.gpu.held(B)) == (Counter({1: 1}), Counter({0: 1, 1: 1}))
    assert index.gpu.unknown_removals == 2
    assert 0 in index.gpu.removed_lately(A)
    index.forget(A)
    assert A in index.removal_means_gone, "it may be what the replay is asked for"
    index.remove(A)
    assert not index.removal_means_gone
    index.check()


# Images ---------------------------------------------------------------------------------------------------------------


def pieces(image: TierImage) -> dict[int, list[tuple[int, int]]]:
    """Group -> keys with their bit sets."""
    return {
        group: [(key, piece.sets[at]) for piece in some for key, at in zip(piece.keys, piece.which, strict=True)]
        for group, some in image.groups.items()
    }


def test_an_image_is_what_was_there_whatever_comes_after() -> None:
    index = index_of(A, B)
    index.apply(A, [stored(0, 1, 1), stored(5, group=2)])
    index.apply(B, [stored(1)])
    image = at_once(index.gpu.export())
    a, b = index.gpu.bit(A), index.gpu.bit(B)
    index.apply(A, [AllBlocksCleared(), stored(9)])
    assert pieces(image) == {0: [(0, a), (1, a | b)], 2: [(5, a)]}
    assert {replica: (slot.bit, slot.copies) for replica, slot in image.replicas.items()} == {
        A: (a, {0: {1: 1}}),
        B: (b, {}),
    }


def test_what_changes_while_an_image_is_made_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "EXPORTED_AT_ONCE", 2)
    table = TierIndex()
    for replica in (A, B):
        table.store(replica, 0, range(10))
        table.store(replica, 1, [1])
    table.store(A, 0, [20])
    making = table.export()
    next(making)
    table.discard(A, 0, [20])
    table.clear(B)
    table.store(B, 0, [7])
    image = at_once(making)
    assert list(image.replicas) == [A], "what is known of the other is of another life"
    bit = image.replicas[A].bit
    assert [key for key, bits in pieces(image)[0] if bits & bit] == list(range(10))
    assert list(image.groups) == [0, 1]


HELD = st.dictionaries(st.integers(0, 30), st.integers(1, 3))


@given(st.lists(st.tuples(HELD, HELD), min_size=1, max_size=3))
def test_what_is_restored_from_an_image_is_what_was_exported(of: list[tuple[dict[int, int], dict[int, int]]]) -> None:
    table, again = TierIndex(), TierIndex()
    names = [ReplicaId(str(at)) for at in range(len(of))]
    for name, groups in zip(names, of, strict=True):
        for group, counts in enumerate(groups):
            table.store(name, group, list(Counter(counts).elements()))
    table.clear(names[0])
    image = at_once(table.export())
    for name, slot in image.replicas.items():
        for group, holders in pieces(image).items():
            mine = [key for key, held in holders if held & slot.bit]
            again.restore(name, group, mine, slot.copies.get(group, {}))
    again.check()
    for name in names:
        assert (again.blocks(name), again.copies(name)) == (table.blocks(name), table.copies(name))
        for group in (0, 1):
            assert again.held(name, group) == table.held(name, group)


def test_copies_of_what_is_not_restored_are_not_counted() -> None:
    table = TierIndex()
    table.restore(A, 0, [1], {1: 2, 2: 5})
    assert table.held(A) == Counter({1: 3})
    table.check()
