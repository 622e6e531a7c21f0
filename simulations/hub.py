"""Loads of many replicas from one place that has an end: what it gives at once is divided among those that load.

Knows sizes, rates and time, which never goes back. Never knows what is loaded, or who. Each replica has a way of its own, over
which its loads go one after the other; of those under way at a moment each gets the same share of what the place gives, and no
more than its own way carries. That is what TCP makes of flows that are alike (max-min fairness of one shared link).
"""

import math
from collections import deque
from typing import Any, TypeAlias

import msgspec

Way: TypeAlias = tuple[int, int]
"""A replica's number, and which of its lives it is."""


class _Load(msgspec.Struct):
    """``left`` bytes are to come, from ``begins`` on."""

    left: float
    what: Any
    begins: float = math.inf
    began: float = math.inf


class Hub:
    """Mutable. ``rate`` is what one way carries and ``total`` what the place gives, in bytes a second."""

    def __init__(self, rate: float, total: float, latency: float) -> None:
        self._rate = rate
        self._total = total
        self._latency = latency
        self._now = 0.0
        self._ways: dict[Way, deque[_Load]] = {}  # the first of each is under way
        self.loading_seconds: dict[Way, float] = {}

    def load(self, now: float, way: Way, size: float, what: Any) -> None:
        """So many bytes are to come over this way, behind what was asked for before. Call ``advance`` of this moment first."""
        loads = self._ways.setdefault(way, deque())
        loads.append(_Load(size, what))
        if len(loads) == 1:
            self._begin(now, loads)

    def drop(self, way: Way) -> None:
        """Nobody wants anything there any more; the time until now was taken all the same. Call ``advance`` first."""
        loads = self._ways.pop(way, None)
        if loads:
            self._took(way, loads[0], self._now)

    def advance(self, now: float) -> list[Any]:
        """What has come by now, in its order."""
        come = []
        while (due := self.due()) is not None and due <= now:
            ended = self._pass(due)
            come += [self._end(due, way) for way in ended]
        self._pass(now)
        return come

    def due(self) -> float | None:
        """When something happens next, if nothing is asked for before; None where nothing is under way."""
        share = self._share()
        times = [
            load.begins if load.begins > self._now else self._now + load.left / share
            for load in (loads[0] for loads in self._ways.values())
        ]
        return min(times, default=None)

    def _share(self) -> float:
        flowing = sum([loads[0].begins <= self._now for loads in self._ways.values()])
        return min(self._rate, self._total / max(1, flowing))

    def _pass(self, until: float) -> list[Way]:
        """Time passes, and nothing ends before; the ways whose first load ends then."""
        share, ended = self._share(), []
        for way, loads in self._ways.items():
            load = loads[0]
            if load.begins <= self._now:
                if self._now + load.left / share <= until:  # as ``due`` reckons, so that no rest of a byte stays
                    ended.append(way)
                load.left = max(0.0, load.left - (until - self._now) * share)
        self._now = max(self._now, until)
        return ended

    def _end(self, now: float, way: Way) -> Any:
        loads = self._ways[way]
        load = loads.popleft()
        self._took(way, load, now)
        if loads:
            self._begin(now, loads)
        else:
            del self._ways[way]
        return load.what

    def _took(self, way: Way, load: _Load, now: float) -> None:
        self.loading_seconds[way] = self.loading_seconds.get(way, 0.0) + now - load.began

    def _begin(self, now: float, loads: deque[_Load]) -> None:
        loads[0].began, loads[0].begins = now, now + self._latency
