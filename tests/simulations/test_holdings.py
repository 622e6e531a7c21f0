"""``simulations/holdings.py``: an index by segments answers as looking into each cache would."""

from hypothesis import given
from hypothesis import strategies as st

from simulations.holdings import Holdings

LENGTHS = [3, 2, 4, 1]
PATHS = [[0, 1, 2], [0, 1], [0, 3], [0]]
REPLICAS = 3


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["keep", "lose", "expect", "done"]), st.integers(0, REPLICAS - 1), st.integers(0, 99)
        ),
        max_size=40,
    ),
    st.sampled_from(PATHS),
)
def test_depths_are_those_of_each_cache(orders: list[tuple[str, int, int]], asked: list[int]) -> None:
    parts: list[dict[int, int]] = [{} for _ in range(REPLICAS)]
    holdings = Holdings(LENGTHS, parts)
    expected: list[list[list[int]]] = [[] for _ in range(REPLICAS)]
    ever: set[int] = set()
    for order, replica, which in orders:
        segment = which % len(LENGTHS)
        if order == "keep":
            parts[replica][segment] = LENGTHS[segment]
            holdings.keep(replica, [segment])
            ever.add(segment)
        elif order == "lose" and segment in parts[replica]:
            left = which % LENGTHS[segment]
            parts[replica].pop(segment)
            if left:
                parts[replica][segment] = left
            holdings.lose(replica, [segment])
        elif order == "expect":
            path = PATHS[which % len(PATHS)]
            expected[replica].append(path)
            holdings.expect(replica, path)
        elif order == "done" and expected[replica]:
            holdings.expect_no_more(replica, expected[replica].pop(which % len(expected[replica])))

    def depth(replica: int, also: list[list[int]]) -> int:
        blocks = 0
        for segment in asked:
            awaited = any(segment in path for path in also)
            found = LENGTHS[segment] if awaited else parts[replica].get(segment, 0)
            blocks += found
            if found < LENGTHS[segment]:
                break
        return blocks

    without = [depth(replica, []) for replica in range(REPLICAS)]
    assert holdings.depths(asked, expecting=False) == without
    assert holdings.depths(asked, expecting=True) == [depth(each, expected[each]) for each in range(REPLICAS)]
    assert holdings.longest(asked) == max(without)
    assert {segment for segment in range(len(LENGTHS)) if holdings.computed[segment]} == ever
    for segment in range(len(LENGTHS)):
        waiting = [sum([segment in path for path in each]) for each in expected]
        for but in range(REPLICAS):
            others = sum(waiting) - min(1, waiting[but])
            assert holdings.is_awaited(segment, but) == (others > 0)
