"""When a request came, as files write it: numbers in some unit, or dates.

Knows units and how large the numbers of each are since 1970. Never knows which request it is.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from simulations.traces.trace import TraceError

UNITS: Final[Mapping[str, float]] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds of each."""

_SINCE_1970: Final = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"))
"""From where on a number is a time since 1970 in this unit: 1973, and for seconds a year that nobody means."""

_NO_TIME: Final = 1e30


class Clock:
    """Turns the times of one file into seconds. Remembers the unit of the first one, and counts from there."""

    def __init__(self, unit: str | None = None) -> None:
        """Without a ``unit`` the first number tells it."""
        self.unit = unit
        self.was_told = unit is not None
        self._first: float | None = None

    def seconds(self, value: float | str, field: str = "timestamp") -> float:
        """Since the first one; before it where the file is in no order.

        Raises:
            TraceError: it is no time; what a text says is not repeated.
        """
        if isinstance(value, str):
            value = self._read(value, field)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise TraceError(field, f"must be a number or a date such as 2024-05-10T00:00:00.5Z, got {kind_of(value)}")
        if not abs(value) < _NO_TIME:  # nor is it one that is no number
            raise TraceError(field, f"must be a time, got {kind_of(value)}")
        if self.unit is None:
            self.unit = next((unit for least, unit in _SINCE_1970 if abs(value) >= least), "s")
        if self._first is None:
            self._first = value
        return (value - self._first) * UNITS[self.unit]  # the difference first: nanoseconds since 1970 fill no float

    def _read(self, text: str, field: str) -> float:
        text = text.strip()
        try:
            return int(text) if text.lstrip("-").isdigit() and len(text) < 40 else float(text)
        except ValueError:
            pass
        try:
            told = datetime.fromisoformat(text)
        except ValueError:
            raise TraceError(field, "is neither a number nor a date such as 2024-05-10T00:00:00.5Z") from None
        if told.tzinfo is None:
            told = told.replace(tzinfo=UTC)
        return told.timestamp() / UNITS[self.unit or "s"]


def kind_of(value: object) -> str:
    """What a value is, without repeating what a text says."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:.6g}" if isinstance(value, float) or abs(value) < 10**30 else "a number of many digits"
        case str():
            return "a text"
        case list() | tuple():
            return "a list"
        case dict():
            return "an object"
    return "something else"
