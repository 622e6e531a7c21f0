"""Pace: steps that are late are made up for, idle time is not."""

import pytest

from simulations.fake.pace import MOST_LATE, Pace


def test_a_step_on_time_takes_its_time() -> None:
    pace = Pace()
    assert pace.wait(0.01, now=5.0) == pytest.approx(0.01)
    assert pace.wait(0.01, now=5.01) == pytest.approx(0.01)


def test_a_late_step_is_made_up_for() -> None:
    pace = Pace()
    pace.wait(0.01, now=5.0)
    assert pace.wait(0.01, now=5.017) == pytest.approx(0.003)
    assert pace.wait(0.01, now=5.02) == pytest.approx(0.01)


def test_steps_shorter_than_a_timers_tick_add_up() -> None:
    pace, now = Pace(), 5.0
    for _ in range(1000):
        now += round(pace.wait(0.0003, now), 3)  # a timer of whole milliseconds
    assert now == pytest.approx(5.3, abs=0.001)


def test_a_machine_that_is_too_slow_does_not_race_afterwards() -> None:
    pace = Pace()
    pace.wait(0.01, now=5.0)
    assert pace.wait(0.01, now=9.0) == 0
    assert pace.wait(MOST_LATE, now=9.0) == pytest.approx(0.01)


def test_idle_time_is_not_made_up_for() -> None:
    pace = Pace()
    pace.wait(0.01, now=5.0)
    pace.rest()
    assert pace.wait(0.01, now=5.02) == pytest.approx(0.01)
