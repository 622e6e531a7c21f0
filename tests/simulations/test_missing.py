"""``simulations/missing.py``: every prompt token that was not cached has one reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.missing import known_tokens, reasons


@pytest.mark.parametrize(("tokens", "known"), [(13, 12), (12, 8), (30, 12), (4, 0)])
def test_what_somebody_has_computed_is_known_to_its_last_block(tokens: int, known: int) -> None:
    assert known_tokens([1, 2, 3, 4, 5, 6, 7], tokens, 4, {1, 2, 3, 9}) == known


@pytest.mark.parametrize(
    ("cached", "known", "best", "begun", "told"),
    [
        (0, 0, 0, 0, (100, 0, 0, 0)),
        (40, 40, 40, 40, (60, 0, 0, 0)),
        (0, 40, 40, 40, (60, 0, 40, 0)),
        (0, 40, 0, 40, (60, 0, 0, 40)),
        (0, 40, 64, 64, (36, 24, 40, 0)),
        (0, 0, 64, 0, (100, 0, 0, 0)),
        (0, 0, 0, 64, (36, 64, 0, 0)),
        (20, 60, 40, 60, (40, 0, 20, 20)),
        (48, 40, 64, 64, (36, 16, 0, 0)),
        (64, 40, 64, 64, (36, 0, 0, 0)),
    ],
    ids=[
        "nobody",
        "here",
        "there",
        "nowhere any more",
        "soon",
        "expected, but this one was first",
        "soon, and the policy expects nothing",
        "there and gone",
        "more than was known",
        "just in time",
    ],
)
def test_why_it_was_computed(cached: int, known: int, best: int, begun: int, told: tuple[int, int, int, int]) -> None:
    assert reasons(100, cached, known, best, begun) == told


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_reasons_add_up(cached: int, known: int, best: int, begun: int) -> None:
    told = reasons(100, cached, known, best, begun)
    assert sum(told) == 100 - cached
    assert min(told) >= 0
