"""What a simulated run brought, request by request, and the figures that are made of it.

Knows columns and sums. Never knows which model of an engine they come from, or how they are shown.
"""

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from simulations.quantiles import quantile
from simulations.sample import Sample, sample_of

if TYPE_CHECKING:
    Floats: TypeAlias = array[float]
    Integers: TypeAlias = array[int]
else:  # arrays take no parameters before Python 3.12, and runs are decoded by their annotations
    Floats = Integers = array

REFUSED: Final = -1
"""In place of a replica: nobody took the request."""


class Misses(msgspec.Struct, frozen=True):
    """Prompt tokens that had to be computed, by why.

    Attributes:
        first: nobody had computed them before; what belongs to no full block is always of these.
        in_flight: another request had begun to compute them, and had not yet. Of several that need the same new block, one is
            the first.
        elsewhere: another replica held them.
        evicted: they had been computed, and no replica held them any more.
    """

    first: int = 0
    in_flight: int = 0
    elsewhere: int = 0
    evicted: int = 0


class Run(msgspec.Struct, frozen=True):
    """One trace under one policy on one fleet.

    Attributes:
        trace: its name.
        policy: its name, with the settings that are not its defaults.
        seed: of all chance.
        replicas: how many there were.
        settings: all else that it was run with, for people and for comparison.
        arrivals, ttfts, latencies: seconds; when each request came (since the first), and how much later its first token and
            its end did. ``ttfts`` and ``latencies`` of refused requests are 0 and count nowhere.
        inputs, hits: tokens of the prompt, and those of them that its replica had cached.
        outputs: tokens of the answer, 0 where it was cut off or there is none. Empty where answers are not played token by
            token: no time of one token follows from such a run.
        chosen: the number of its replica, or ``REFUSED``.
        misses: why tokens were computed, over all requests.
        busy: by replica, seconds of prefill (simple model) or of steps (engine model).
        seconds: from the first arrival to the last end.
        loading: by replica, seconds for which its link carried what it loads; empty where nothing is loaded.
        forgotten: of the evicted tokens, those that nobody evicted: a restart has thrown them away.
    """

    trace: str
    policy: str
    seed: int
    replicas: int
    settings: dict[str, str | int | float | bool | None]
    arrivals: Floats
    ttfts: Floats
    latencies: Floats
    inputs: Integers
    hits: Integers
    outputs: Integers
    chosen: Integers
    misses: Misses
    busy: list[float]
    seconds: float
    loading: list[float] = []
    forgotten: int = 0


class Summary(msgspec.Struct, frozen=True):
    """The figures of a run. Times are seconds; shares and rates lie between 0 and 1.

    ``hit`` is the share of prompt tokens that came from a cache (of requests that were served), ``spread`` the busiest
    replica's prefill seconds over the mean. ``latency_*`` is from arrival to the end of the answer, if it was not cut off;
    ``tpot_*`` is the time of each token behind the first, a mean for each answer, as vLLM's benchmark has it; None where
    there are no such answers. ``sample`` is how far they may be trusted.
    """

    policy: str
    requests: int
    refused: int
    hit: float
    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    ttft_p95: float
    ttft_p99: float
    ttft_max: float
    latency_mean: float
    spread: float
    utilisation: float
    latency_p95: float = 0.0
    tpot_mean: float | None = None
    tpot_p95: float | None = None
    sample: Sample | None = None


def summarise(run: Run, cache_tokens: int | None = None) -> Summary:
    """The figures of a run; ``cache_tokens`` are those of one replica, if anybody knows."""
    served = [at for at, replica in enumerate(run.chosen) if replica != REFUSED]
    ttfts = sorted([run.ttfts[at] for at in served])
    whole = [at for at in served if run.outputs[at]] if run.outputs else served
    latencies = [run.latencies[at] for at in whole]
    paces = _paces(run)
    tokens = sum([run.inputs[at] for at in served])
    busy = sum(run.busy)
    count = max(1, len(served))
    return Summary(
        policy=run.policy,
        requests=len(run.chosen),
        refused=len(run.chosen) - len(served),
        hit=sum([run.hits[at] for at in served]) / tokens if tokens else 0.0,
        ttft_mean=sum(ttfts) / count,
        ttft_p50=quantile(ttfts, 0.5),
        ttft_p90=quantile(ttfts, 0.9),
        ttft_p95=quantile(ttfts, 0.95),
        ttft_p99=quantile(ttfts, 0.99),
        ttft_max=ttfts[-1] if ttfts else 0.0,
        latency_mean=sum(latencies) / max(1, len(latencies)),
        spread=max(run.busy) * len(run.busy) / busy if busy else 1.0,
        utilisation=busy / (run.seconds * len(run.busy)) if run.seconds and run.busy else 0.0,
        latency_p95=quantile(sorted(latencies), 0.95),
        tpot_mean=sum(paces) / len(paces) if paces else None,
        tpot_p95=quantile(paces, 0.95) if paces else None,
        sample=_sample(run, served, cache_tokens),
    )


def _sample(run: Run, served: Sequence[int], cache_tokens: int | None) -> Sample:
    computed = sum([run.inputs[at] - run.hits[at] for at in served])
    if run.settings.get("store"):  # what is loaded fills caches, too, and nobody has counted it
        cache_tokens = None
    return sample_of([run.ttfts[at] for at in served], computed, (cache_tokens or 0) * run.replicas)


def _paces(run: Run) -> list[float]:
    """Seconds of a token behind the first one, by answer that has any, in order."""
    times = zip(run.ttfts, run.latencies, run.outputs, strict=True) if run.outputs else ()
    return sorted([(end - first) / (tokens - 1) for first, end, tokens in times if tokens > 1])
