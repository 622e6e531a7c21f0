"""``discovery/pauses.py``: ever longer, never in step, and at least what was asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.discovery.pauses import FIRST_SECONDS, MOST_ASKED_FOR, MOST_SECONDS, pause, retry_after


def test_each_failure_doubles_it_up_to_a_bound() -> None:
    assert [pause(failures, 0.0) for failures in range(1, 9)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@given(st.integers(0, 10**9), st.floats(0, 1), st.none() | st.floats(0, 1e9))
def test_it_is_never_a_loop_and_never_without_end(failures: int, draw: float, wanted: float | None) -> None:
    made = pause(failures, draw, wanted)
    assert FIRST_SECONDS / 2 <= made <= max(MOST_SECONDS, 1.5 * MOST_ASKED_FOR)
    if wanted is not None:
        assert made >= min(wanted, MOST_ASKED_FOR)


@given(st.integers(1, 20))
def test_two_who_draw_otherwise_do_not_come_together(failures: int) -> None:
    assert pause(failures, 0.9) < pause(failures, 0.1)
    assert pause(failures, 0.9, 60.0) > pause(failures, 0.1, 60.0)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("17", 17.0),
        (" 0 ", 0.0),
        (None, None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("9" * 40, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
    ],
)
def test_what_is_asked_for_is_read(header: str | None, seconds: float | None) -> None:
    assert retry_after(header) == seconds
