"""``balancer/speeds.py``: speeds are learned from what was computed in which time, and wrong news hurts little."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.speeds import MEMORY_SECONDS, PREFILL_SPEED, PrefillModel, ReplicaSpeed


def taught(model: PrefillModel, count: int, *, noise: float = 0.0, stalls: float = 0.0, seed: int = 1) -> PrefillModel:
    """An engine of 10 ms a request, 1 ms a token, more with context and with answers beside it."""
    dice = random.Random(seed)
    for _ in range(count):
        tokens, context, answers = (
            int(dice.lognormvariate(6, 1)) + 1,
            dice.choice([0, 5_000, 50_000]),
            dice.randrange(40),
        )
        seconds = 0.01 + tokens * (1e-3 + 2e-8 * context + 1e-5 * answers)
        seconds *= dice.lognormvariate(0, noise) if noise else 1.0
        seconds += 20.0 if dice.random() < stalls else 0.0
        model.observe(1, tokens, tokens * context, tokens * answers, seconds)
    return model


@pytest.mark.parametrize(("tokens", "context", "answers"), [(500, 0, 0), (2_000, 50_000, 20), (10_000, 5_000, 39)])
def test_what_a_prompt_takes_is_learned_with_its_context_and_what_runs_beside_it(
    tokens: int, context: int, answers: int
) -> None:
    model = taught(PrefillModel(), 200, noise=0.1)
    true = 0.01 + tokens * (1e-3 + 2e-8 * context + 1e-5 * answers)
    assert model.seconds(1, tokens, tokens * context, tokens * answers) == pytest.approx(true, rel=0.15)


def test_five_prompts_are_enough_to_know_the_order_of_magnitude() -> None:
    model = taught(PrefillModel(), 5)
    assert 1 / 2 < model.speed(0, 0) / 1_000 < 2
    assert PrefillModel().speed(0, 0) == pytest.approx(PREFILL_SPEED)


def test_stalls_move_it_little() -> None:
    assert taught(PrefillModel(), 200, stalls=0.02).speed(0, 0) > 0.6 * taught(PrefillModel(), 200).speed(0, 0)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 50), st.integers(0, 200_000), st.floats(0, 1e12), st.floats(0, 1e9), st.floats(0, 1e4)
        ),
        max_size=60,
    )
)
def test_whatever_is_said_speeds_and_seconds_stay_possible(said: list[tuple[int, int, float, float, float]]) -> None:
    model = PrefillModel()
    replica = ReplicaSpeed(model)
    for at, each in enumerate(said):
        replica.observe(*each, now=float(at))
        assert min(model.coefficients) >= 0
        assert model.coefficients[1] > 0
        assert 0 < replica.speed(1_000, 3) < float("inf")
        assert 0 <= replica.seconds(100, 1_000, 3) < float("inf")


def test_a_slow_replica_is_told_from_the_others() -> None:
    model = PrefillModel(1_000)
    fast, slow = ReplicaSpeed(model), ReplicaSpeed(model)
    for at in range(60):
        fast.observe(1, 1_000, 0, 0, 1.0, float(at))
        slow.observe(1, 1_000, 0, 0, 2.0, float(at))
    assert fast.speed(0, 0) / slow.speed(0, 0) == pytest.approx(2.0, rel=0.1)
    assert ReplicaSpeed(model).speed(0, 0) == pytest.approx(model.speed(0, 0)), "a newcomer is like all of them"


def test_what_was_slow_and_is_not_seen_is_tried_again() -> None:
    model = PrefillModel(1_000)
    fast, slow = ReplicaSpeed(model), ReplicaSpeed(model)
    for at in range(40):
        fast.observe(1, 1_000, 0, 0, 1.0, float(at))
        slow.observe(1, 1_000, 0, 0, 3.0, float(at))
    before = slow.factor
    assert before > 1.2
    slow.rest(40.0)
    assert slow.factor == before, "a second is no rest"
    for at in range(40, int(40 + 5 * MEMORY_SECONDS)):
        slow.rest(float(at))
    assert slow.factor == 1.0


def test_one_that_is_found_slow_again_and_again_needs_a_trial_ever_more_rarely_but_not_for_ever() -> None:
    model = PrefillModel(1_000)
    fast, tried = ReplicaSpeed(model), ReplicaSpeed(model)

    def after(seconds: float, now: float) -> int:
        for _ in range(10):
            fast.observe(1, 1_000, 0, 0, 1.0, now)
        tried.observe(1, 1_000, 0, 0, seconds, now)
        return tried.patience

    assert [after(100.0, at) for at in range(6)] == [2, 4, 8, 16, 16, 16]
    tried.rest(5 + MEMORY_SECONDS / 4)
    assert tried.patience == 16
    tried.rest(10 * MEMORY_SECONDS)
    assert (tried.factor, tried.patience) == (1.0, 1), "forgotten"
    assert [after(seconds, 10 * MEMORY_SECONDS) for seconds in (100.0, 5.0, 2.0, 100.0, 1.0)] == [2, 4, 1, 2, 1]
    assert fast.patience == 1


def test_one_observation_is_doubted() -> None:
    replica = ReplicaSpeed(PrefillModel(1_000))
    replica.observe(1, 1_000, 0, 0, 1_000.0, 0.0)
    assert replica.factor < 2


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_a_speed_must_be_possible(speed: float) -> None:
    with pytest.raises(ValueError, match="tokens a second"):
        PrefillModel(speed)
