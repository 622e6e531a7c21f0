"""Whose turn it is, when several want the same: each is to be given what its weight says, and no waiting one is left out.

Knows names, weights and what each was given (tokens, or whatever else is counted). Never knows what is waiting, or for
what. The rule is that of virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): the
turn is of the one that was given least for its weight, and who comes back after a pause starts where the last turn was. So
while two wait for the same all the time, what they are given for their weights never differs by more than the largest charges.
The price of a turn may become known after it. Between calls: nobody who waits was given less than the one of the last turn
before it.
"""

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from sortedcontainers import SortedList

Name = TypeVar("Name", bound=str)

_SPARE: Final = 256
"""Names that have nothing waiting and are remembered without need, before they are looked through."""


class Shares(Generic[Name]):
    """Turns among those that wait. Changes with every call but the iteration, which goes from the next one on."""

    def __init__(self, weight: Callable[[Name], float]) -> None:
        self._weight = weight
        self._given: dict[Name, float] = {}  # by weight; of all that wait, and of those given more than the last turn's
        self._order: SortedList[tuple[float, float, Name]] = SortedList()  # among equals the heaviest is first
        self._waiting: set[Name] = set()
        self._floor = 0.0  # what the one of the last turn had been given before it
        self._remembered = _SPARE

    def __repr__(self) -> str:
        return f"<Shares {len(self._waiting)} waiting, {len(self._given)} remembered>"

    def __iter__(self) -> Iterator[Name]:
        return (name for _, _, name in self._order)

    def join(self, name: Name) -> None:
        """It has something waiting from now on."""
        self._given[name] = max(self._given.get(name, 0.0), self._floor)
        self._waiting.add(name)
        self._order.add(self._place(name))

    def leave(self, name: Name) -> None:
        """It has nothing waiting any more."""
        self._waiting.remove(name)
        self._order.remove(self._place(name))
        if not self._waiting:  # whoever comes next finds no rival: all begin alike
            self._floor = max(self._given.values())
        if not self._waiting or len(self._given) > self._remembered:
            self._forget()

    def turn(self, name: Name) -> None:
        """It is this one's turn. Those before it could not use it, and that is not made up for: it was no loss of theirs."""
        self._floor = max(self._floor, self._given.get(name, 0.0))
        while self._order and self._order[0][0] < self._floor:
            passed_over = self._order.pop(0)[2]
            self._given[passed_over] = self._floor
            self._order.add(self._place(passed_over))

    def charge(self, name: Name, amount: float) -> None:
        """It was given so much."""
        if name not in self._waiting:
            self._given[name] = max(self._given.get(name, 0.0), self._floor) + amount / self._weight(name)
            return
        self._order.remove(self._place(name))
        self._given[name] += amount / self._weight(name)
        self._order.add(self._place(name))

    def give_back(self, name: Name, amount: float) -> None:
        """It was charged so much, and was not given it after all; turns that others had since then were no loss of theirs."""
        if name not in self._given:
            return
        given = max(self._floor, self._given[name] - amount / self._weight(name))
        if name not in self._waiting:
            self._given[name] = given
            return
        self._order.remove(self._place(name))
        self._given[name] = given
        self._order.add(self._place(name))

    def _place(self, name: Name) -> tuple[float, float, Name]:
        return self._given[name], -self._weight(name), name

    def _forget(self) -> None:
        """Let go of names that would start where a new one does."""
        kept = {name: given for name, given in self._given.items() if given > self._floor or name in self._waiting}
        self._given = kept
        self._remembered = 2 * len(kept) + _SPARE
