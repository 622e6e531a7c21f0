"""``simulations/holdings.py``: an index by segments answers as looking into each cache would."""

from hypothesis import given
from hypothesis import strategies as st

from simulations.holdings import Holdings

LENGTHS = [3, 2, 4, 1]
PATHS = [[0, 1, 2], [0, 1], [0, 3], [0]]
REPLICAS = 3


class _Replica:
    """Block by block: what it holds, and which lease awaits which blocks."""

    def __init__(self) -> None:
        self.part: dict[int, int] = {}
        self.paths: dict[int, list[int]] = {}
        self.awaits: dict[int, set[tuple[int, int]]] = {}

    def holds(self, block: tuple[int, int]) -> bool:
        return block[1] < self.part.get(block[0], 0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["keep", "lose", "expect", "done"]), st.integers(0, REPLICAS - 1), st.integers(0, 99)
        ),
        max_size=40,
    ),
    st.sampled_from(PATHS),
)
def test_depths_are_those_of_each_cache_block_by_block(orders: list[tuple[str, int, int]], asked: list[int]) -> None:
    fleet = [_Replica() for _ in range(REPLICAS)]
    holdings = Holdings(LENGTHS, [each.part for each in fleet])
    ever: set[int] = set()
    for lease, (order, number, which) in enumerate(orders):
        replica, segment = fleet[number], which % len(LENGTHS)
        if order == "keep" and replica.part.get(segment) != LENGTHS[segment]:
            replica.part[segment] = LENGTHS[segment]
            holdings.keep(number, [segment])
            ever.add(segment)
            for awaited in replica.awaits.values():
                awaited -= {block for block in awaited if block[0] == segment}
        elif order == "lose" and segment in replica.part:
            was, left = replica.part.pop(segment), which // len(LENGTHS) % LENGTHS[segment]
            if min(was, left):
                replica.part[segment] = min(was, left)
            if was == LENGTHS[segment]:
                holdings.lose(number, [segment])
        elif order == "expect":
            path = replica.paths[lease] = PATHS[which % len(PATHS)]
            blocks = {(each, at) for each in path for at in range(LENGTHS[each])}
            replica.awaits[lease] = {block for block in blocks if not replica.holds(block)}
            holdings.expect(lease, number, path)
        elif order == "done" and replica.paths:
            gone = sorted(replica.paths)[which % len(replica.paths)]
            del replica.awaits[gone]
            holdings.expect_no_more(gone, number, replica.paths.pop(gone))

    def depth(replica: _Replica, *, expecting: bool) -> int:
        awaited = set().union(*replica.awaits.values()) if expecting else set()
        every = [(segment, at) for segment in asked for at in range(LENGTHS[segment])]
        return next(
            (at for at, block in enumerate(every) if not replica.holds(block) and block not in awaited), len(every)
        )

    without = [depth(each, expecting=False) for each in fleet]
    assert holdings.depths(asked, expecting=False) == without
    assert holdings.depths(asked, expecting=True) == [depth(each, expecting=True) for each in fleet]
    assert holdings.longest(asked) == max(without)
    assert {segment for segment in range(len(LENGTHS)) if holdings.computed[segment]} == ever


def test_what_is_expected_reaches_back_to_where_the_first_of_those_who_wait_begins() -> None:
    """A segment is taken apart from its end: who comes later has more of it to compute."""
    part = {2: 4}
    holdings = Holdings(LENGTHS, [part])
    holdings.keep(0, [2])
    part[2] = 3
    holdings.lose(0, [2])
    holdings.expect(1, 0, [2])
    part[2] = 1
    assert holdings.depths([2], expecting=True) == [1], "nobody computes the two that have gone"
    holdings.expect(2, 0, [2])
    assert holdings.depths([2], expecting=True) == [4]
    holdings.expect_no_more(2, 0, [2])
    assert holdings.depths([2], expecting=True) == [1]
    holdings.expect_no_more(1, 0, [2])
    assert holdings.expected == [0, 0, 0, 0]


def test_who_computes_a_segment_does_so_until_its_end() -> None:
    holdings = Holdings(LENGTHS, [{}, {}])
    holdings.begin(0, [0, 1])
    holdings.begin(1, [0, 3])
    assert holdings.computing == [0b11, 0b01, 0, 0b10]
    holdings.end(0, [0, 1])
    assert holdings.computing == [0b10, 0, 0, 0b10]
    assert not any(holdings.computed), "whether it came to its end, keep is told"
