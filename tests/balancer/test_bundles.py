"""``balancer/bundles.py``: what is learned of a speed, and what says nothing of it."""

import pytest

from balancer.bundles import Bundle, Work
from balancer.speeds import PrefillModel, ReplicaSpeed


class Noted(ReplicaSpeed):
    """It keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(PrefillModel())
        self.told: list[tuple[int, int, float, float, float, float]] = []

    def observe(self, requests: int, tokens: int, pairs: float, crowd: float, seconds: float, now: float) -> None:
        self.told.append((requests, tokens, pairs, crowd, seconds, now))


def test_prompts_of_one_moment_are_told_as_one_when_it_is_over() -> None:
    speed = Noted()
    bundle = Bundle(speed)
    assert not bundle.add(Work(1000, 1000, answers=3), 2.0, 2.0)
    assert not bundle.add(Work(900, 100, answers=2), 0.001, 2.0)
    assert speed.told == []
    bundle.close(5.0)
    assert speed.told == [(2, 1100, 1000 * 500 + 100 * 850.0, 3200, 2.001, 5.0)]


def test_time_that_was_spent_loading_is_no_slow_computing() -> None:
    speed = Noted()
    loaded = Bundle(speed)
    loaded.add(Work(1000, 100, loads=900), 30.0, 0.1)
    loaded.add(Work(1000, 1000), 0.001, 0.1)
    loaded.close(5.0)
    assert speed.told == []
    computed = Bundle(speed)
    computed.add(Work(1000, 1000), 0.1, 0.1)
    computed.add(Work(1000, 100, loads=900), 0.001, 0.1)  # in the step that the first one took
    computed.close(5.0)
    assert len(speed.told) == 1


@pytest.mark.parametrize(
    ("cached", "tokens"),
    [
        (900, 100),
        (0, 1000),  # what was expected there is gone, and was computed
        (300, 700),
        (None, 100),  # the engine says nothing
        (-1, 100),
        (1001, 100),
        (950, None),  # more than anybody knew: it may have been loaded
    ],
)
def test_where_an_engine_may_load_its_own_figures_count(cached: int | None, tokens: int | None) -> None:
    speed, work = Noted(), Work(1000, 100, may_load=True)
    bundle = Bundle(speed)
    assert bundle.add(work, 0.1, 0.1)
    bundle.close(5.0)
    assert speed.told == [], "it is awaited"
    bundle.reported(work, cached, 9.0)
    assert [(each[1], each[2]) for each in speed.told] == (
        [] if tokens is None else [(tokens, tokens * (1000 - tokens / 2))]
    )


def test_what_is_reported_before_the_moment_is_over_is_told_then() -> None:
    speed, work = Noted(), Work(1000, 100, may_load=True)
    bundle = Bundle(speed)
    bundle.add(work, 0.1, 0.1)
    bundle.reported(work, 900, 4.0)
    assert speed.told == []
    bundle.close(5.0)
    assert [each[1] for each in speed.told] == [100]


def test_of_a_prompt_of_which_nothing_was_expected_nobody_waits_for_figures_unless_it_was_too_fast() -> None:
    work = Work(1000, 1000, may_load=True)
    assert not Bundle(Noted()).add(work, 0.1, 0.5)
    assert Bundle(Noted()).add(work, 0.04, 0.5), "somebody may have stored it meanwhile"
    assert not Bundle(Noted()).add(Work(1000, 1000), 0.04, 0.5)
