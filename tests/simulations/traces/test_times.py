import math

import pytest

from simulations.traces.times import Clock
from simulations.traces.trace import TraceError


@pytest.mark.parametrize(
    ("first", "second", "seconds", "unit"),
    [
        (0, 3, 3.0, "s"),
        (1_700_000_000.25, 1_700_000_001.5, 1.25, "s"),
        (1_700_000_000_000, 1_700_000_000_250, 0.25, "ms"),
        (1_700_000_000_000_000, 1_700_000_000_000_250, 0.00025, "us"),
        (1_700_000_000_000_000_001, 1_700_000_000_000_000_051, 5e-8, "ns"),
        ("12", "13.5", 1.5, "s"),
        ("1700000000000", "1700000000001", 0.001, "ms"),
        ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:47.6805900", 1.0, "s"),
        ("2023-11-16T18:15:46Z", "2023-11-16T20:15:46+02:00", 0.0, "s"),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01.009930+00:00", 1.0, "s"),
        (5, 3, -2.0, "s"),
    ],
)
def test_units_are_told_by_the_first_time(first: str | float, second: str | float, seconds: float, unit: str) -> None:
    clock = Clock()
    assert clock.seconds(first) == 0
    assert clock.seconds(second) == pytest.approx(seconds, rel=1e-6, abs=1e-9)
    assert clock.unit == unit


def test_a_unit_that_was_named_is_used() -> None:
    clock = Clock("ms")
    assert [clock.seconds(each) for each in (1_700_000_000, 1_700_003_000)] == [0.0, 3.0]
    clock = Clock("ms")
    assert [clock.seconds(f"2024-01-01T00:00:0{each}Z") for each in (0, 3)] == pytest.approx([0.0, 3.0])


@pytest.mark.parametrize("value", ["soon", "", None, True, [], {}, math.nan, math.inf, 10**400, "9" * 5000])
def test_what_is_no_time_is_told_without_what_it_says(value: object) -> None:
    with pytest.raises(TraceError, match="timestamp") as told:
        Clock("ms").seconds(value)  # type: ignore[arg-type]
    assert "soon" not in str(told.value)
