"""``balancer/processes/backoff.py``: whoever ends again and again is started ever later."""

from balancer.processes.backoff import LIVES_SECONDS, MOST_SECONDS, BackOff


def test_the_first_end_costs_no_time_and_the_next_ones_ever_more() -> None:
    back_off = BackOff()
    waits = [back_off.ended(0.1) for _ in range(8)]
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, MOST_SECONDS, MOST_SECONDS]


def test_whoever_has_lived_is_started_at_once() -> None:
    back_off = BackOff()
    for _ in range(5):
        back_off.ended(0.1)
    assert back_off.ended(LIVES_SECONDS) == 0.0
    assert back_off.ended(0.1) == 0.5
