"""The limit of the index: it holds, what is in use stays, and what was let go is told."""

import random
from collections import Counter

import pytest

from indexer import bound
from indexer.bound import MATCHED, SLACK
from indexer.events import AllBlocksCleared
from indexer.index import CacheIndex, ReplicaId, Tier
from tests.indexer.samples import index_of, removed, stored

A, B = (ReplicaId(name) for name in "AB")


def fill(index: CacheIndex, *keys: int, replica: ReplicaId = A) -> None:
    for key in keys:
        index.apply(replica, [stored(key)])


def test_nothing_is_let_go_up_to_the_limit() -> None:
    index = index_of(A, B, max_blocks=100)
    fill(index, *range(100))
    assert (index.size, index.evicted, index.let_go(A)) == (100, 0, 0)


def test_beyond_the_limit_the_oldest_go_first() -> None:
    index = index_of(A, B, max_blocks=100)
    fill(index, *range(150))
    assert index.evicted + index.size == 150
    assert 90 <= index.size <= 100
    assert list(index.gpu.groups[0]) == list(range(150 - index.size, 150))
    index.check()


@pytest.mark.parametrize("max_blocks", [1, 2, 7, 5_000])
def test_the_limit_holds_however_much_comes_at_once(max_blocks: int) -> None:
    index = index_of(A, B, max_blocks=max_blocks)
    for start in range(0, 30_000, 3_000):
        index.apply(A, [stored(*range(start, start + 3_000))])
        assert 0 < index.size <= max_blocks
        index.check()
    assert index.size > max_blocks - SLACK - 1


def test_what_was_matched_lately_stays_for_another_round() -> None:
    index = index_of(A, B, max_blocks=100)
    fill(index, *range(100))
    index.touch(0, range(10))
    fill(index, *range(100, 180))
    assert all(index.gpu.holds(A, 0, key) for key in range(10))
    fill(index, *range(180, 300))
    assert not any(index.gpu.holds(A, 0, key) for key in range(10)), "matched once, long ago"


def test_what_is_matched_again_and_again_stays() -> None:
    index = index_of(A, B, max_blocks=1_000)
    fill(index, *range(700))
    for start in range(1_000, 9_000, 50):
        index.touch(0, range(100))
        index.apply(A, [stored(*range(start, start + 50))])
    assert all(index.gpu.holds(A, 0, key) for key in range(100))
    assert not index.gpu.holds(A, 0, 101)


def test_what_another_replica_stores_again_stays() -> None:
    index = index_of(A, B, max_blocks=100)
    fill(index, *range(100))
    fill(index, *range(10), replica=B)
    fill(index, *range(200, 280))
    assert all(index.gpu.holds(A, 0, key) and index.gpu.holds(B, 0, key) for key in range(10))


def test_below_half_of_the_limit_matches_are_not_noted() -> None:
    index = index_of(A, B, max_blocks=100)
    fill(index, *range(40))
    index.touch(0, range(40))
    assert not index._bound._matched
    fill(index, *range(40, 60))
    index.touch(0, range(40))
    assert index._bound._matched or index._bound._matched_before


def test_what_is_noted_of_matches_is_bounded() -> None:
    index = index_of(A, B, max_blocks=800)
    fill(index, *range(800))
    for start in range(0, 8_000, 10):
        index.touch(0, range(start, start + 10))
        noted = len(index._bound._matched) + len(index._bound._matched_before)
        assert noted <= 2 * (800 // MATCHED + 10)


def test_everything_is_let_go_if_need_be_even_if_all_of_it_was_matched() -> None:
    index = index_of(A, B, max_blocks=10)
    for start in range(0, 1_000, 10):
        index.apply(A, [stored(*range(start, start + 10))])
        index.touch(0, range(start + 10))
    assert 0 < index.size <= 10
    index.check()


def test_what_was_let_go_is_told_of_each_replica_until_it_is_whole_again() -> None:
    index = index_of(A, B, max_blocks=100)
    fill(index, *range(50))
    fill(index, *range(25, 75), replica=B)
    index.apply(B, [stored(1_000, 1_001, medium="CPU"), stored(30), stored(30)])
    fill(index, *range(100, 160))
    lost = {
        replica: [key for key in keys if not index.gpu.holds(replica, 0, key)]
        for replica, keys in ((A, [*range(50), *range(100, 160)]), (B, range(25, 75)))
    }
    assert {replica: index.let_go(replica) for replica in (A, B)} == {A: len(lost[A]), B: len(lost[B])}
    assert len({*lost[A], *lost[B]}) == index.evicted
    assert index.gpu.held(B) == Counter({key: 3 if key == 30 else 1 for key in range(25, 75) if key not in lost[B]})
    index.apply(B, [AllBlocksCleared()])
    assert index.let_go(B) == 0 < index.let_go(A)
    index.forget(A)
    assert index.let_go(A) == 0
    index.check()


def test_copies_go_with_their_block_and_a_late_removal_is_harmless() -> None:
    index = index_of(A, B, max_blocks=4)
    index.apply(A, [stored(0, 0, 0), stored(1), stored(2), stored(3), stored(4)])
    assert (index.gpu.copies(A), index.let_go(A)) == (4, 1)
    index.apply(A, [removed(0), removed(0)])
    assert (index.gpu.copies(A), index.gpu.unknown_removals) == (4, 2)
    index.apply(A, [stored(0)])
    assert index.gpu.held(A)[0] == 1
    index.check()


def test_the_largest_table_gives_first() -> None:
    """A leak in one tier or group costs that one."""
    index = index_of(A, B, max_blocks=100)
    fill(index, *range(20))
    index.apply(A, [stored(*range(20), group=1)])
    for start in range(0, 1_000, 10):
        index.apply(A, [stored(*range(start, start + 10), medium="CPU")])
    assert len(index.gpu.groups[0]) == len(index.gpu.groups[1]) == 20
    assert index.let_go(A) == 0 < index.tiers[Tier("CPU")].let_go(A)


def test_a_tier_that_goes_away_gives_its_room_back() -> None:
    index = index_of(A, B, max_blocks=100)
    index.apply(B, [stored(*range(90), medium="CPU")])
    fill(index, *range(30))
    index.remove(B)
    fill(index, *range(1_000, 1_070))
    assert (index.size, index.let_go(A)) == (100, 0)
    index.check()


def test_restoring_more_than_the_limit_keeps_the_last_of_it() -> None:
    index = index_of(A, B, max_blocks=100)
    for start in range(0, 1_000, 50):
        index.gpu.restore(A, 0, range(start, start + 50), {start: 3})
    assert index.size <= 100
    assert index.gpu.holds(A, 0, 999)
    assert index.let_go(A) == 1_000 - index.size
    index.check()


def test_a_hot_set_survives_a_flood_that_leaks() -> None:
    """Removals that never come, for a hundred times the limit; one replica's working set is matched all the time."""
    index, dice = index_of(A, B, max_blocks=2_000), random.Random(1)
    hot = [dice.getrandbits(64) for _ in range(200)]
    index.apply(A, [stored(*hot)])
    for _ in range(2_000):
        index.apply(B, [stored(*(dice.getrandbits(64) for _ in range(100)))])
        index.touch(0, hot)
    assert index.gpu.blocks(A) == 200
    assert index.let_go(A) == 0
    index.check()


def test_what_is_spared_in_one_call_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "SPARED_AT_ONCE", 5)
    index = index_of(A, B, max_blocks=100)
    fill(index, *range(100))
    index.touch(0, range(12))
    fill(index, 200)
    assert [index.gpu.holds(A, 0, key) for key in range(12)] == [True] * 5 + [False] * index.evicted + [True] * (
        7 - index.evicted
    )
    index.check()
