"""``simulations/quantiles.py``: values by rank."""

from simulations.quantiles import quantile


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile([1.0, 2.0, 3.0, 4.0], share) for share in (0.0, 0.5, 0.74, 0.75, 1.0)] == [1.0, 3.0, 3.0, 4.0, 4.0]
    assert quantile([], 0.5) == 0
