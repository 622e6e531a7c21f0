"""How long to sleep so that steps take, on average, as long as they should.

Knows when the next step is due. Never reads a clock: the time comes in, in seconds. Timers are as coarse as a fast step is
long, and computing takes time too, so what one step is late the next ones make up for; time spent idle makes up for nothing.
"""

from typing import Final

MOST_LATE: Final = 0.05
"""Seconds that are made up for; a machine that is later than that is too slow for this pace."""


class Pace:
    """Mutable."""

    def __init__(self) -> None:
        self._due: float | None = None

    def wait(self, seconds: float, now: float) -> float:
        """How long to sleep for a step of ``seconds`` that begins ``now``."""
        begins = now if self._due is None else max(self._due, now - MOST_LATE)
        self._due = begins + seconds
        return max(0.0, self._due - now)

    def rest(self) -> None:
        """There is nothing to do for a while."""
        self._due = None
