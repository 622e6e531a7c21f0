"""The course of one run: what happens next, who comes, and what is noted of each request.

Knows arrivals, moments and columns. Never knows replicas or policies: whoever plays says what happens at a moment, and what
came of it. Of what happens at one moment, what was planned first happens first, and before whoever comes by himself.
"""

import heapq
import math
from array import array
from collections.abc import Callable
from typing import Any

from simulations.arrivals import Arrivals
from simulations.hub import Hub, Way
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
        self._end = 0.0
        self._share_links(None)

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

    def _share_links(self, hub: Hub | None) -> None:
        """Loads that ``_load_shared`` begins are divided by this."""
        self._hub = hub
        self._hub_due = math.inf

    def _load_shared(self, now: float, way: Way, size: float, happens: Callable[..., None], *what: Any) -> None:
        """``happens(when, *what)`` is called when so many bytes have come that way, whoever else loads meanwhile."""
        assert self._hub is not None, "it is asked for by that"
        self._look_at_hub(now)
        self._hub.load(now, way, size, (happens, what))
        self._look_at_hub(now)

    def _hub_passes(self, now: float) -> None:
        if now == self._hub_due:  # or another moment has come in its place
            self._look_at_hub(now)

    def _look_at_hub(self, now: float) -> None:
        assert self._hub is not None, "it is asked for by that"
        come = self._hub.advance(now)
        due = self._hub.due()
        if due is not None and due != self._hub_due:
            self._push(due, self._hub_passes)
        self._hub_due = math.inf if due is None else due
        for happens, what in come:
            happens(now, *what)

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
        )
