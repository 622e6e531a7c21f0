"""How long the stages of all requests took, as histograms.

Knows bounds and counts. Never knows requests. Counting one costs a fraction of a microsecond, where the client library's own
histograms would cost more than everything else that the gateway does for it.
"""

from bisect import bisect_left
from itertools import accumulate
from typing import Final

from balancer.stages import Stage, Stages

BOUNDS: Final = (
    0.00001, 0.000025, 0.0001, 0.00025, 0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1, 2.5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip
"""Seconds; from the choice of a policy to the queue of an engine that has too much to do."""

_BOUNDS_NS: Final = [int(bound * 1e9) for bound in BOUNDS]


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

    def buckets(self, stage: Stage) -> list[tuple[str, float]]:
        """(upper bound in seconds, requests that took no longer), as Prometheus wants them."""
        bounds = [*map(str, BOUNDS), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts[stage])), strict=True))

    def seconds(self, stage: Stage) -> float:
        """The sum of all."""
        return self._sums[stage] / 1e9
