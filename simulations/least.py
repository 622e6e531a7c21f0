"""What no number of replicas stays below: each prompt as if it were alone on the fastest of them, and nothing were forgotten.

Knows a trace, what came before each of its prompts, and how quick a fleet's replicas are. Never knows a run: nothing is played.
"""

from array import array
from collections.abc import Sequence
from functools import cache, lru_cache

from simulations.bounds import Rule, bounds
from simulations.detailed_fleet import DetailedFleet
from simulations.fitting import prompt_steps
from simulations.keys import following
from simulations.latency import LatencyModel
from simulations.quantiles import quantile
from simulations.simple import SimpleFleet
from simulations.traces.trace import Trace


class Least:
    """Of one trace; what was worked out once is kept."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._came_before = cache(self._before)
        self._by_steps = lru_cache(maxsize=16)(self._of_steps)

    def ttft_p95(self, fleet: SimpleFleet | DetailedFleet) -> float | None:
        """Seconds that the 95th percentile of the time to the first token takes on any number of this fleet's replicas.

        None where nothing is known: in a closed loop, requests come in another order on each fleet.
        """
        trace = self._trace
        if fleet.closed_loop and trace.has_pauses:
            return None
        if isinstance(fleet, SimpleFleet):
            rule = Rule.FULL_BLOCKS if fleet.block_size == trace.block_size else Rule.AS_GIVEN
            computed = [tokens - hit for tokens, hit in zip(trace.inputs, self._came_before(rule), strict=True)]
            return quantile(sorted(computed), 0.95) / fleet.prefill_tps
        seconds = self._by_steps(fleet.latency, fleet.max_num_batched_tokens)
        return seconds / max([1.0, *fleet.speeds]) + fleet.latency.request

    def _of_steps(self, latency: LatencyModel, chunk: int) -> float:
        took = []
        before, answered = self._came_before(Rule.AS_GIVEN), self._answered()
        for at, tokens in enumerate(self._trace.inputs):
            cached = max(before[at], min(answered[at], tokens - 1))
            took.append(sum([latency.seconds(step) for step in prompt_steps(tokens, chunk, cached)]))
        return quantile(sorted(took), 0.95)

    def _before(self, rule: Rule) -> Sequence[int]:
        """By request, the most tokens of its prompt that came before; all but one at most."""
        found = bounds(self._trace, [], curve=[], rule=rule).infinite_by_request
        return [min(hit, max(0, tokens - 1)) for hit, tokens in zip(found, self._trace.inputs, strict=True)]

    def _answered(self) -> Sequence[int]:
        """By request, the leading tokens that the turn before it has had, its answer among them."""
        trace = self._trace
        found = array("q", [0]) * len(trace)
        for at, after in enumerate(following(trace)):
            if after is not None:
                found[after] = trace.inputs[at] + trace.outputs[at]
        return found
