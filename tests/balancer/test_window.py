"""``balancer/window.py``: what has happened counts for a while, and then no more."""

from hypothesis import given
from hypothesis import strategies as st

from balancer.window import Window


def test_what_is_old_counts_no_more() -> None:
    window = Window(10.0)
    window.add(0.0)
    window.add(5.0, 2)
    assert [window.total(now) for now in (5.0, 8.9, 10.0, 14.9, 15.0, 99.0)] == [3, 3, 2, 2, 0, 0]


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 5)), max_size=60), st.floats(0.5, 20))
def test_it_is_never_off_by_more_than_a_tenth_of_the_window(steps: list[tuple[float, int]], seconds: float) -> None:
    window = Window(seconds)
    now, told = 100.0, []
    for pause, count in steps:
        now += pause
        window.add(now, count)
        told.append((now, count))
        slack = 1e-6
        most = sum(n for at, n in told if at > now - seconds - slack)
        least = sum(n for at, n in told if at > now - 0.9 * seconds + slack)
        assert least <= window.total(now) <= most
