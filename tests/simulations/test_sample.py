"""``simulations/sample.py``: what a sample says of itself."""

import random

import pytest

from simulations.sample import Sample, sample_of


def test_halves_are_in_the_order_of_requests_and_caches_fill_by_what_is_computed() -> None:
    found = sample_of([1.0] * 100 + [3.0] * 100, computed=500, room=1000)
    assert (found.requests, found.filled, found.halves) == (200, 0.5, (1.0, 3.0))
    assert sample_of([1.0], computed=500, room=0).filled is None
    assert sample_of([], computed=0, room=5) == Sample(0, 0.0, (0.0, 0.0), (0.0, 0.0))


@pytest.mark.parametrize("requests", [100, 400])
def test_chance_puts_the_percentile_where_other_samples_have_it(requests: int) -> None:
    dice = random.Random(3)
    true = 0.95  # of numbers from 0 to 1
    within = 0
    for _ in range(500):
        low, high = sample_of([dice.random() for _ in range(requests)], 0, 0).between
        assert low <= high
        within += low <= true <= high
    assert within / 500 == pytest.approx(0.95, abs=0.04)
