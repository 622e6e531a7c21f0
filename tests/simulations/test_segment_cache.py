"""``simulations/segment_cache.py``: blocks are counted right, and the right ones go first, whatever happens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.segment_cache import SegmentCache

LENGTHS = [3, 2, 4, 1, 5, 2]
PATHS = [[0], [0, 1], [0, 1, 2], [0, 3], [4], [4, 5], []]


def cache(capacity: int) -> SegmentCache:
    return SegmentCache(capacity, LENGTHS)


def compute(of: SegmentCache, path: list[int], others: int = 0) -> None:
    """A request that is computed and ends at once."""
    used, found = of.find(path)
    needed = sum([LENGTHS[segment] for segment in path]) - found + others
    assert of.take(path[:used], needed) is not None
    _, blocks = of.keep(path, used)
    of.free(path, needed - blocks)
    of.check()


def test_what_was_computed_is_found_from_its_beginning() -> None:
    of = cache(20)
    compute(of, [0, 1])
    assert of.find([0, 1, 2]) == (2, 5)
    assert of.find([0, 3]) == (1, 3)
    assert of.find([4]) == (0, 0)


def test_empty_blocks_are_given_away_before_any_that_hold_something() -> None:
    of = cache(5)
    compute(of, [0])
    compute(of, [5])
    assert of.find([0]) == (1, 3)


def test_the_tail_of_a_prompt_goes_before_its_head_and_from_its_end() -> None:
    of = cache(9)
    compute(of, [0, 1, 2])
    assert of.take([], 2) == [2]
    assert of.find([0, 1, 2]) == (3, 7)
    assert of.take([], 3) == [1]
    assert of.find([0, 1, 2]) == (2, 4)


def test_who_was_used_last_goes_last() -> None:
    of = cache(5)
    compute(of, [0])
    compute(of, [5])
    compute(of, [0])
    assert of.take([], 2) == [5]


def test_what_is_used_does_not_go_and_does_not_count_as_free() -> None:
    of = cache(5)
    compute(of, [0])
    assert of.take([0], 3) is None, "three are free only without those that are used"
    assert of.take([0], 2) == []
    assert of.usage == 1.0
    assert of.take([], 1) is None
    of.check()


def test_what_two_use_is_used_until_both_have_ended() -> None:
    of = cache(5)
    compute(of, [0])
    of.take([0], 0)
    of.take([0], 0)
    of.free([0], 0)
    assert of.take([], 3) is None
    of.free([0], 0)
    assert of.take([], 3) == [0]


def test_who_computes_what_somebody_else_has_computed_meanwhile_keeps_nothing() -> None:
    of = cache(10)
    of.take([], 3)
    of.take([], 3)
    assert of.keep([0], 0) == ([0], 3)
    assert of.keep([0], 0) == ([], 0)
    of.free([0], 0)
    of.free([0], 3)
    of.check()
    assert (of.empty, of.idle) == (7, 3)


def test_who_computes_what_somebody_else_has_computed_and_left_meanwhile_uses_it() -> None:
    of = cache(10)
    of.take([], 3)
    of.take([], 3)
    of.keep([0], 0)
    of.free([0], 0)
    assert of.keep([0], 0) == ([], 0)
    of.check()
    assert of.take([], 5) is None, "four are empty, and three are in use again"
    of.free([0], 3)
    of.check()
    assert (of.empty, of.idle) == (7, 3)


def test_one_that_ends_before_it_was_computed_leaves_what_it_found() -> None:
    of = cache(10)
    compute(of, [0])
    of.take([0], 5)
    of.drop([0, 1], 1, 5)
    of.check()
    assert (of.empty, of.idle, of.find([0, 1])) == (7, 3, (1, 3))


def test_no_cache_has_no_blocks() -> None:
    with pytest.raises(ValueError, match="at least 1 block, got 0"):
        cache(0)


@settings(max_examples=300)
@given(
    st.integers(1, 30),
    st.lists(
        st.tuples(st.sampled_from(["begin", "begin", "compute", "end", "drop"]), st.integers(0, 99), st.integers(0, 4)),
        max_size=60,
    ),
)
def test_every_block_is_empty_idle_or_used_after_any_operations(
    capacity: int, orders: list[tuple[str, int, int]]
) -> None:
    of = cache(capacity)
    begun: list[tuple[list[int], int, int]] = []  # path, segments used, blocks taken
    computed: list[tuple[list[int], int]] = []  # path, other blocks
    whole: set[int] = set()
    for order, which, more in orders:
        if order == "begin":
            path = PATHS[which % len(PATHS)]
            used, found = of.find(path)
            needed = sum([LENGTHS[segment] for segment in path]) - found + more
            free = of.empty + of.idle
            broken = of.take(path[:used], needed)
            if broken is None:
                assert of.empty + of.idle == free, "nothing was done"
            else:
                begun.append((path, used, needed))
                whole -= set(broken)
        elif order == "compute" and begun:
            path, used, taken = begun.pop(which % len(begun))
            new, blocks = of.keep(path, used)
            assert not whole & set(new)
            whole |= set(new)
            computed.append((path, taken - blocks))
        elif order == "drop" and begun:
            of.drop(*begun.pop(which % len(begun)))
        elif order == "end" and computed:
            of.free(*computed.pop(which % len(computed)))
        of.check()
        assert whole == {segment for segment, blocks in of.held.items() if blocks == LENGTHS[segment]}
        users = {segment for path, used, _ in begun for segment in path[:used]}
        users |= {segment for path, _ in computed for segment in path}
        others = sum([taken for _, _, taken in begun]) + sum([count for _, count in computed])
        assert of.empty + of.idle + sum([of.held[segment] for segment in users]) + others == capacity
    for path, used, taken in begun:
        of.drop(path, used, taken)
    for path, count in computed:
        of.free(path, count)
    of.check()
    assert of.empty + of.idle == capacity
    assert of.usage == 0
