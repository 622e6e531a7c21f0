"""``simulations/divided.py``: what ends is told at its moment, whoever begins or leaves meanwhile."""

import heapq
from typing import Any

from simulations.divided import Divided
from simulations.hub import Hub


class Moments:
    """What happens next."""

    def __init__(self) -> None:
        self.divided = Divided(Hub(1.0, 1.0, 0.0), self.push)
        self.ended: list[tuple[str, float]] = []
        self._events: list[tuple[float, int, Any, tuple[Any, ...]]] = []

    def push(self, when: float, happens: Any, *what: Any) -> None:
        heapq.heappush(self._events, (when, len(self._events), happens, what))

    def end(self, now: float, name: str) -> None:
        self.ended.append((name, now))

    def until(self, now: float) -> None:
        while self._events and self._events[0][0] <= now:
            when, _, happens, what = heapq.heappop(self._events)
            happens(when, *what)


def test_each_gets_its_part_while_others_are_there() -> None:
    moments = Moments()
    moments.divided.begin(0.0, (0, 0), 2.0, moments.end, "first")
    moments.until(1.0)
    moments.divided.begin(1.0, (1, 0), 2.0, moments.end, "second")
    moments.until(10.0)
    assert moments.ended == [("first", 3.0), ("second", 4.0)]
    assert moments.divided.seconds == {(0, 0): 3.0, (1, 0): 3.0}


def test_who_is_dropped_is_never_told_and_leaves_the_whole_to_the_others() -> None:
    moments = Moments()
    moments.divided.begin(0.0, (0, 0), 2.0, moments.end, "gone")
    moments.divided.begin(0.0, (1, 0), 2.0, moments.end, "stays")
    moments.until(1.0)
    moments.divided.drop(1.0, (0, 0))
    moments.until(10.0)
    assert moments.ended == [("stays", 2.5)]
    assert moments.divided.seconds == {(0, 0): 1.0, (1, 0): 2.5}, "who is dropped has taken its time until then"


def test_what_ends_may_begin_the_next() -> None:
    moments = Moments()

    def go_on(now: float, name: str) -> None:
        moments.end(now, name)
        moments.divided.begin(now, (0, 0), 1.0, moments.end, "next")

    moments.divided.begin(0.0, (0, 0), 1.0, go_on, "first")
    moments.divided.begin(0.0, (1, 0), 1.5, moments.end, "other")
    moments.until(10.0)
    assert moments.ended == [("first", 2.0), ("other", 3.0), ("next", 3.5)]
