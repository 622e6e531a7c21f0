"""How often something has happened in the last so many seconds.

Knows counts and moved time (seconds, any monotonic clock). Never knows what is counted. Between calls: nothing that is older
than the window counts, and what is younger than nine tenths of it does.
"""

from collections import deque
from typing import Final

_SLICES: Final = 10


class Window:
    """A count that forgets. Changes with every call; times never go back."""

    __slots__ = ("_slices", "_total", "_width")

    def __init__(self, seconds: float) -> None:
        self._width = seconds / _SLICES
        self._slices: deque[list[int]] = deque()  # [which slice of time, count], the oldest first
        self._total = 0

    def add(self, now: float, count: int = 1) -> None:
        """It has happened ``count`` times."""
        slices = self._slices
        if not slices or slices[-1][0] != now // self._width:  # once a slice is often enough to forget
            slices.append([self._forget(now), 0])
        slices[-1][1] += count
        self._total += count

    def total(self, now: float) -> int:
        """How often within the window that ends now."""
        self._forget(now)
        return self._total

    def _forget(self, now: float) -> int:
        at = int(now // self._width)
        while self._slices and self._slices[0][0] <= at - _SLICES:
            self._total -= self._slices.popleft()[1]
        return at
