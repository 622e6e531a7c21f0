"""``balancer/economics/prefill.py``: seconds of computing, given and learned."""

import math

import pytest

from balancer.economics.prefill import Prefill
from balancer.speeds import PrefillModel, ReplicaSpeed


def test_a_speed_makes_each_token_cost_the_same() -> None:
    prefill = Prefill.from_speed(10_000)
    assert prefill.seconds(8000, 0) == pytest.approx(0.8)
    assert prefill.seconds(8000, 50_000) == pytest.approx(0.8)
    assert prefill.seconds(0, 50_000) == 0


def test_arithmetic_counts_two_operations_a_parameter_and_four_a_pair_and_number() -> None:
    prefill = Prefill.from_flops(400e12, 8e9, layers=32, heads=32, head_size=128)
    assert prefill.token == pytest.approx(16e9 / 400e12)
    pairs = 8000 * 8000 / 2
    assert prefill.seconds(8000, 0) == pytest.approx((8000 * 16e9 + pairs * 4 * 32 * 32 * 128) / 400e12)


def test_a_prompt_in_two_parts_weighs_as_many_pairs_as_in_one() -> None:
    prefill = Prefill(token=1e-5, pair=1e-9)
    assert prefill.seconds(3000, 0) + prefill.seconds(5000, 3000) == pytest.approx(prefill.seconds(8000, 0))


def test_a_step_has_a_least_time() -> None:
    prefill = Prefill(request=0.002, token=1e-4, least=0.01)
    assert prefill.seconds(1, 0) == prefill.seconds(100, 0) == pytest.approx(0.012)
    assert prefill.seconds(101, 0) > prefill.seconds(100, 0)


def test_what_was_learned_takes_as_long_as_the_learner_says() -> None:
    model = PrefillModel()
    for tokens, context, answers in [(500, 250, 0), (4000, 6000, 3), (8000, 4000, 1), (2000, 20_000, 8)] * 20:
        seconds = 0.004 + tokens * (9e-5 + 2e-9 * context + 3e-6 * answers)
        model.observe(1, tokens, tokens * context, tokens * answers, seconds)
    slow = ReplicaSpeed(model)
    for at in range(30):
        slow.observe(1, 4000, 4000 * 2000, 0, 1.2, float(at))
    assert slow.factor > 1.5
    for answers in (0, 7):
        prefill = Prefill.learned(slow, answers)
        for uncached, cached in [(16, 0), (3000, 0), (3000, 9000)]:
            expected = slow.seconds(uncached, cached + uncached / 2, answers)
            assert prefill.seconds(uncached, cached) == pytest.approx(expected)


@pytest.mark.parametrize("value", [-1, math.inf, math.nan])
def test_no_part_is_negative_or_without_end(value: float) -> None:
    for name in ("request", "token", "pair", "least"):
        with pytest.raises(ValueError, match=f"{name} must be a number of seconds"):
            Prefill(**{name: value})
    with pytest.raises(ValueError, match="a speed is a number"):
        Prefill.from_speed(value)
