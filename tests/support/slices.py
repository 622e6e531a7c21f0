"""Work that is done in slices, done at once."""

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
