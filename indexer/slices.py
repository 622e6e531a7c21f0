"""Work that is done in slices, so that others have their turn in between: generators that yield nothing but pauses.

Knows how such work is done without any pause. Never knows what it is.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def at_once(slices: Generator[None, None, T]) -> T:
    """What the work comes to."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: T = end.value
            return result
