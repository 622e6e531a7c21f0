"""How long to wait before a process that ended is started again.

Knows moved time (seconds). One that has lived for a while is started at once; one that ends again and again, ever later.
"""

from typing import Final

FIRST_SECONDS: Final = 0.5
MOST_SECONDS: Final = 15.0
LIVES_SECONDS: Final = 10.0
"""Who has lived so long has not failed at its start."""


class BackOff:
    """For one place. Changes with ``ended``."""

    def __init__(self) -> None:
        self._next = 0.0

    def ended(self, lived: float) -> float:
        """The process has ended after so many seconds: how long to wait."""
        if lived >= LIVES_SECONDS:
            self._next = 0.0
        wait, self._next = self._next, min(MOST_SECONDS, max(FIRST_SECONDS, 2 * self._next))
        return wait
