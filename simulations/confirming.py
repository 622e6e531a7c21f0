"""How many replicas hold by another model, from a number on that is near: up in growing steps, then half of what is between.

Knows numbers of replicas, and how far a fleet is from what it has to hold. Never knows runs: it asks for one after another, as
they may take long. It takes more replicas to be better, and ends where they are not; ``beside`` is what shows whether they are.
It ends, too, where so many cannot be wanted any more: what it has found by then is what it would have found without that end.
"""

import math
from collections.abc import Callable, Container, Iterable
from typing import Final

import msgspec

FINEST: Final = 16
"""The first step up is a share of so much: what two models say of a hundred replicas differs by more than one."""

WIDELY: Final = 1.5
"""So many times the replicas have to bring something."""

BRINGS: Final = 0.98
"""And that is something: at most this share of the distance is left."""


class Confirmed(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        least: the fewest replicas that hold; None where none does that was tried.
        tried: by number of replicas, how far they are from holding: 1 or less holds, and infinity never will.
        compared: where more were of no use, two numbers that show it, the smaller one first.
        at_least: where it ended as so many are not wanted: fewer were not found to hold.
    """

    least: int | None
    tried: dict[int, float]
    compared: tuple[int, int] | None = None
    at_least: int | None = None


def confirm(
    first: int, at_most: int, far: Callable[[int, int], float], is_wanted: Callable[[int], bool] = lambda _: True
) -> Confirmed:
    """The fewest replicas that hold, from ``first`` to ``at_most``, by what ``far`` says of each number.

    Args:
        first: what is tried first; fewer are not.
        at_most: the last number that is tried.
        far: the worst figure of that many, over what it has to be: 1 or less holds, infinity never will. It is told how many
            numbers will follow, if this one holds.
        is_wanted: whether anybody would take so many; who would not take these takes no more than these.
    """
    tried: dict[int, float] = {}
    fails, replicas, added = first - 1, first, 0
    while True:
        tried[replicas] = far(replicas, (replicas - fails - 1).bit_length())
        if tried[replicas] <= 1:
            break
        fewer = compared_with(tried, replicas)
        if fewer is not None and brings_little(tried[replicas], tried[fewer]):
            return Confirmed(None, tried, (fewer, replicas))
        if replicas >= at_most or math.isinf(tried[replicas]):
            return Confirmed(None, tried)
        fails, added = replicas, max(1, first // FINEST, 2 * added)
        if not is_wanted(fails + 1):
            return Confirmed(None, tried, at_least=fails + 1)
        replicas = min(first + added, at_most)
    while replicas - fails > 1:
        middle = (fails + replicas) // 2
        tried[middle] = far(middle, (max(middle - fails, replicas - middle) - 1).bit_length())
        if tried[middle] <= 1:
            replicas = middle
            continue
        fails = middle
        if not is_wanted(fails + 1):
            return Confirmed(None, tried, at_least=fails + 1)
    return Confirmed(replicas, tried)


def compared_with(numbers: Iterable[int], replicas: int) -> int | None:
    """Of these, what so many replicas are compared with to see what more of them bring; None where all are about as many."""
    return max([each for each in numbers if WIDELY * each <= replicas], default=None)


def brings_little(figure: float, before: float) -> bool:
    """Whether the replicas that came between the two have made a figure hardly smaller than it was before."""
    return figure > BRINGS * before


def beside(least: int | None, tried: Container[int], at_most: int) -> int | None:
    """One replica more than the fewest that hold, if nobody has tried that: it should hold, too, but for chance."""
    if least is None or least == at_most or least + 1 in tried:
        return None
    return least + 1
