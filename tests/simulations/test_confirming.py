"""``simulations/confirming.py``: the fewest that hold are found, however far they are, and what never holds ends."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.confirming import Confirmed, beside, confirm


def needs(least: int) -> Callable[[int], float]:
    """Twice the replicas halve it."""
    return lambda replicas: least / replicas


@given(first=st.integers(1, 200), more=st.integers(0, 300), at_most=st.integers(200, 400))
def test_the_fewest_that_hold_are_found_where_they_may_be_tried(first: int, more: int, at_most: int) -> None:
    found = confirm(first, at_most, needs(first + more))
    assert found.least == (first + more if first + more <= at_most else None)
    assert max(found.tried) <= at_most
    assert min(found.tried) == first
    assert len(found.tried) <= 2 + 2 * (more + 1).bit_length() + (first // 16).bit_length()


@pytest.mark.parametrize(
    ("least", "runs"),
    [
        (10, [10]),
        (11, [10, 11]),
        (12, [10, 11, 12]),
        (13, [10, 11, 12, 14, 13]),
        (30, [10, 11, 12, 14, 18, 26, 42, 34, 30, 28, 29]),
    ],
)
def test_what_is_near_is_tried_first(least: int, runs: list[int]) -> None:
    assert list(confirm(10, 256, needs(least)).tried) == runs


def test_of_many_replicas_the_steps_are_larger() -> None:
    assert list(confirm(100, 256, needs(110)).tried) == [100, 106, 112, 109, 110]


def test_where_more_do_not_help_it_ends_and_shows_it() -> None:
    found = confirm(10, 256, lambda replicas: 1.5 + 1 / replicas**4)
    assert (found.least, found.compared) == (None, (12, 18))
    assert list(found.tried) == [10, 11, 12, 14, 18]
    assert confirm(1, 256, lambda replicas: 2.0) == Confirmed(None, {1: 2.0, 2: 2.0}, (1, 2))


def test_the_most_there_may_be_are_the_last() -> None:
    found = confirm(4, 9, needs(30))
    assert (found.least, found.compared) == (None, None)
    assert list(found.tried) == [4, 5, 6, 8, 9]


def test_what_never_will_is_tried_once() -> None:
    assert confirm(4, 9, lambda _: math.inf) == Confirmed(None, {4: math.inf})


def test_beside_the_fewest_is_one_more_that_nobody_has_tried() -> None:
    assert beside(confirm(10, 256, needs(11)), 256) == 12
    assert beside(confirm(10, 256, needs(13)), 256) is None, "fourteen were tried before thirteen"
    assert beside(confirm(10, 11, needs(11)), 11) is None, "there may be no more"
    assert beside(confirm(4, 9, needs(30)), 9) is None, "none holds"
