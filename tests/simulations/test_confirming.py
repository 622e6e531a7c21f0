"""``simulations/confirming.py``: the fewest that hold are found, however far they are, and what never holds ends."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.confirming import Confirmed, beside, confirm


def needs(least: int) -> Callable[[int, int], float]:
    """Twice the replicas halve it."""
    return lambda replicas, _: least / replicas


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
    found = confirm(10, 256, lambda replicas, _: 1.5 + 1 / replicas**4)
    assert (found.least, found.compared) == (None, (12, 18))
    assert list(found.tried) == [10, 11, 12, 14, 18]
    assert confirm(1, 256, lambda *_: 2.0) == Confirmed(None, {1: 2.0, 2: 2.0}, (1, 2))


def test_the_most_there_may_be_are_the_last() -> None:
    found = confirm(4, 9, needs(30))
    assert (found.least, found.compared) == (None, None)
    assert list(found.tried) == [4, 5, 6, 8, 9]


def test_what_never_will_is_tried_once() -> None:
    assert confirm(4, 9, lambda *_: math.inf) == Confirmed(None, {4: math.inf})


@given(first=st.integers(1, 60), least=st.integers(1, 120), wanted=st.integers(1, 120))
def test_what_is_not_wanted_ends_it_and_changes_nothing_else(first: int, least: int, wanted: int) -> None:
    whole = confirm(first, 90, needs(least))
    found = confirm(first, 90, needs(least), lambda replicas: replicas <= wanted)
    assert whole.least is None or whole.least > wanted or found == whole
    assert list(found.tried) == list(whole.tried)[: len(found.tried)]
    if found != whole:
        assert found.least is None
        assert found.at_least is not None
        assert found.at_least > wanted
        assert found.at_least - 1 in found.tried
        assert found.tried[found.at_least - 1] > 1


@given(first=st.integers(1, 60), more=st.integers(0, 60))
def test_no_more_follow_than_was_told_and_one_less_at_most_from_the_first_that_holds_on(first: int, more: int) -> None:
    told: list[tuple[float, int]] = []

    def far(replicas: int, following: int) -> float:
        told.append(((first + more) / replicas, following))
        return told[-1][0]

    confirm(first, 256, far)
    holding = next(at for at, (each, _) in enumerate(told) if each <= 1)
    for at, (_, following) in enumerate(told[holding:], holding):
        assert len(told) - 1 - at <= following <= len(told) - at


@pytest.mark.parametrize(
    ("least", "at_most", "more", "why"),
    [
        (11, 256, 12, "nobody has tried it"),
        (13, 256, None, "fourteen were tried before thirteen"),
        (11, 11, None, "there may be no more"),
        (600, 256, None, "none holds"),
    ],
)
def test_beside_the_fewest_is_one_more_that_nobody_has_tried(
    least: int, at_most: int, more: int | None, why: str
) -> None:
    found = confirm(10, at_most, needs(least))
    assert beside(found.least, found.tried, at_most) == more, why
