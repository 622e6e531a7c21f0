import pytest

from simulations.report.figures import apart, count, duration, percent, points, seconds, tick, times


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.00004, "4e-05"),
        (0.563, "0.563"),
        (1.0, "1.00"),
        (9.999, "10.0"),
        (12.54, "12.5"),
        (99.96, "100"),
        (5008.2, "5,008"),
    ],
)
def test_seconds_have_three_digits(value: float, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.5, "0.500 s"),
        (3537, "59 min"),
        (12240, "3.4 h"),
        (172_700, "48.0 h"),
        (172_800, "2.00 days"),
        (5_825_422_080, "67,424 days"),
    ],
)
def test_durations_have_the_unit_that_suits(value: float, shown: str) -> None:
    assert duration(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (640, "640"), (0.5, "0.5"), (999.9, "1 k"), (8192, "8.19 k"), (4.2e6, "4.2 M"), (1.3e9, "1.3 G")],
)
def test_counts_have_a_prefix(value: float, shown: str) -> None:
    assert count(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.19, "19 points"), (0.017, "1.7 points"), (0.01, "1 point"), (0, "0 points"), (-0.0001, "0 points")],
)
def test_points_are_differences_of_shares(share: float, shown: str) -> None:
    assert points(share) == shown


def test_other_figures() -> None:
    assert percent(0.3734) == "37.3 %"
    assert [times(1.44), times(12.3)] == ["1.4 times", "12 times"]
    assert [tick(0.5), tick(1000), tick(12500)] == ["0.5", "1,000", "12,500"]


@pytest.mark.parametrize(
    ("value", "other", "shown"),
    [(2.0013, 2.0, "2.001 s"), (2.0, 2.0, "2.00 s"), (1.5, 2.0, "1.50 s"), (2.00000001, 2.0, "2.00000001 s")],
)
def test_what_is_not_the_same_does_not_look_the_same(value: float, other: float, shown: str) -> None:
    assert apart(value, other) == shown
