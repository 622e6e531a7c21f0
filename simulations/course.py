"""The course of one run: what happens next, who comes, and what is noted of each request.

Knows arrivals, moments and columns. Never knows replicas or policies: whoever plays says what happens at a moment, and what
came of it. Of what happens at one moment, what was planned first happens first, and before whoever comes by himself.
"""

import heapq
from array import array
from collections.abc import Callable
from typing import Any

from simulations.arrivals import Arrivals
from simulations.divided import Divided
from simulations.hub import Hub
from simulations.results import REFUSED, Misses, Run
from simulations.traces.trace import Trace


class Course:
    """Base of those who play a trace; mutable, until the run is over."""

    def __init__(self, trace: Trace, coming: Arrivals) -> None:
        self._trace = trace
        self._coming = coming
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        count = len(trace)
        self._arrivals = array("d", bytes(8 * count))
        self._ttfts = array("d", bytes(8 * count))
        self._latencies = array("d", bytes(8 * count))
        self._hits = array("q", bytes(8 * count))
        self._outputs = array("q")  # whoever plays answers token by token makes one for each
        self._chosen = array("q", [REFUSED]) * count
        self._missed = [0, 0, 0, 0]
        self._lost_tokens = 0  # of the last of these, by restarts
        self._end = 0.0
        self._links: Divided | None = None
        """What replicas load over, where they share it."""

    def _push(self, when: float, happens: Callable[..., None], *what: Any) -> None:
        """``happens(when, *what)`` is called at that moment."""
        self._order += 1
        heapq.heappush(self._events, (when, self._order, happens, what))

    def _play(self, arrive: Callable[[float, int], None]) -> None:
        """All that happens, in its order; ``arrive`` is told of those who come by themselves."""
        coming, events, following = self._coming, self._events, heapq.heappop
        for arrival, request in coming:
            while events and events[0][0] <= arrival:
                now, _, happens, what = following(events)
                happens(now, *what)
            arrive(arrival, request)
        while events:
            now, _, happens, what = following(events)
            happens(now, *what)

    def _follow(self, now: float, request: int, arrive: Callable[[float, int], None]) -> None:
        """The request has ended: in a closed loop, the next one of its session comes."""
        following = self._coming.follow(request, now)
        if following is not None:
            self._push(following[0], arrive, following[1])

    def _divide_links(self, hub: Hub | None) -> None:
        """What replicas load is divided by this, where they share anything."""
        if hub is not None:
            self._links = Divided(hub, self._push)

    def _run_of(
        self,
        name: str,
        seed: int,
        settings: dict[str, str | int | float | bool | None],
        busy: list[float],
        loading: list[float],
    ) -> Run:
        """What came of it; ``settings`` without the model's own are those of the fleet.

        ``busy`` and ``loading`` have one figure a replica.
        """
        return Run(
            trace=self._trace.name,
            policy=name,
            seed=seed,
            replicas=len(busy),
            settings=settings,
            arrivals=self._arrivals,
            ttfts=self._ttfts,
            latencies=self._latencies,
            inputs=self._trace.inputs,
            hits=self._hits,
            outputs=self._outputs,
            chosen=self._chosen,
            misses=Misses(*self._missed),
            busy=busy,
            seconds=self._end,
            loading=loading if any(loading) else [],
            forgotten=self._lost_tokens,
        )
