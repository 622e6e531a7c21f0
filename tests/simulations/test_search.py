"""``simulations/search.py``: the least number that holds is found, for each option, in few rounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.search import Search


def played(search: Search[str], least: dict[str, int]) -> int:
    """Answers as a fleet would of which ``least`` replicas hold; the number of rounds."""
    rounds = 0
    while wanted := search.wanted():
        rounds += 1
        for option, replicas in wanted:
            search.told(option, replicas, is_held=replicas >= least[option])
    return rounds


@given(
    least=st.dictionaries(st.sampled_from("abc"), st.integers(1, 300), min_size=1),
    start=st.integers(1, 20),
    at_most=st.integers(20, 256),
)
def test_the_least_number_is_found_where_there_is_one(least: dict[str, int], start: int, at_most: int) -> None:
    search = Search(list(least), start=start, at_most=at_most)
    rounds = played(search, least)
    assert search.found == {option: number for option, number in least.items() if number <= at_most}
    assert rounds <= 18, "twice as many each time, then half the rest"


def test_options_are_looked_for_side_by_side() -> None:
    search = Search(["a", "b"], start=4, at_most=64)
    assert search.wanted() == [("a", 4), ("b", 4)]
    search.told("a", 4, is_held=True)
    search.told("b", 4, is_held=False)
    assert search.wanted() == [("a", 2), ("b", 8)]


def test_who_is_dropped_is_neither_looked_for_nor_found() -> None:
    search = Search(["a", "b"], start=4, at_most=64)
    search.told("a", 4, is_held=True)
    search.drop("a")
    search.drop("a")
    assert search.wanted() == [("b", 4)]
    assert search.found == {}


def test_what_is_known_not_to_hold_and_what_is_still_to_come_is_told() -> None:
    search = Search(["a"], start=4, at_most=64)
    assert (search.least("a"), search.left) == (1, 1 + 2)
    search.told("a", 4, is_held=False)
    assert (search.least("a"), search.left) == (5, 1 + 2)
    search.told("a", 8, is_held=True)
    assert (search.least("a"), search.left) == (5, 2)
    search.told("a", 6, is_held=True)
    assert (search.least("a"), search.left) == (5, 1)
    search.told("a", 5, is_held=False)
    assert (search.least("a"), search.left) == (6, 0)


@pytest.mark.parametrize(("start", "at_most"), [(0, 4), (5, 4)])
def test_a_start_outside_is_refused(start: int, at_most: int) -> None:
    with pytest.raises(ValueError, match="start must be from 1"):
        Search(["a"], start=start, at_most=at_most)


def test_what_is_paused_goes_on_where_it_was() -> None:
    search = Search(["a", "b"], start=4, at_most=64)
    search.told("a", 4, is_held=False)
    before = dict(search.wanted())["a"]
    search.pause("a")
    assert [option for option, _ in search.wanted()] == ["b"]
    assert search.least("a") == 5
    search.resume("a")
    assert dict(search.wanted()) == {"a": before, "b": 4}
    search.pause("a")
    search.drop("a")
    search.resume("a")
    assert dict(search.wanted()) == {"b": 4}
