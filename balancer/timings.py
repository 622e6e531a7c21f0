"""How long the stages of all requests took, as histograms.

Knows bounds and counts. Never knows requests. Counting one costs a fraction of a microsecond, where the client library's own
histograms would cost more than everything else that the gateway does for it.
"""

from bisect import bisect_left
from itertools import accumulate
from typing import Final

import msgspec

from balancer.stages import Stage, Stages

BOUNDS: Final = (
    0.00001, 0.000025, 0.0001, 0.00025, 0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1, 2.5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip
"""Seconds; from the choice of a policy to the queue of an engine that has too much to do."""

_BOUNDS_NS: Final = [int(bound * 1e9) for bound in BOUNDS]


class Timed(msgspec.Struct):
    """What was counted of those stages that there were: by range of time, and nanoseconds in all."""

    counts: dict[Stage, list[int]] = {}
    sums: dict[Stage, int] = {}


class StageTimings:
    """One histogram a stage. Changes with ``add``."""

    def __init__(self) -> None:
        self._counts = {stage: [0] * (len(BOUNDS) + 1) for stage in Stage}
        self._sums = dict.fromkeys(Stage, 0)

    def __repr__(self) -> str:
        return f"<StageTimings of {max(sum(counts) for counts in self._counts.values())} requests>"

    def add(self, stages: Stages) -> None:
        """A request has ended."""
        counts, sums = self._counts, self._sums
        for stage, ns in stages.spent().items():
            counts[stage][bisect_left(_BOUNDS_NS, ns)] += 1
            sums[stage] += ns

    def take(self) -> Timed:
        """All that was counted since the last time; it is counted here no more."""
        counts = {stage: counts for stage, counts in self._counts.items() if any(counts)}
        taken = Timed(counts, {stage: self._sums[stage] for stage in counts})
        for stage in counts:
            self._counts[stage], self._sums[stage] = [0] * (len(BOUNDS) + 1), 0
        return taken

    def add_all(self, timed: Timed) -> None:
        """Another process has counted this."""
        for stage, counts in timed.counts.items():
            self._counts[stage] = [mine + each for mine, each in zip(self._counts[stage], counts, strict=True)]
            self._sums[stage] += timed.sums[stage]

    def buckets(self, stage: Stage) -> list[tuple[str, float]]:
        """(upper bound in seconds, requests that took no longer), as Prometheus wants them."""
        bounds = [*map(str, BOUNDS), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts[stage])), strict=True))

    def seconds(self, stage: Stage) -> float:
        """The sum of all."""
        return self._sums[stage] / 1e9
