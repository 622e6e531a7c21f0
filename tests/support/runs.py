"""Made-up runs, as a simulation would bring them: plausible, small and always the same."""

import random
from array import array
from collections.abc import Sequence

import msgspec

from simulations.bounds import Bounds, bounds
from simulations.report.document import Document, document
from simulations.report.result import Result, result_of
from simulations.results import REFUSED, Misses, Run
from simulations.traces.trace import Trace, TraceBuilder

BLOCK = 16


def trace(requests: int = 200, *, name: str = "made up", has_blocks: bool = True) -> Trace:
    """Conversations that grow by a few blocks a turn, one request a second."""
    dice = random.Random(5)
    builder = TraceBuilder(name, BLOCK, is_chained=True)
    paths: list[list[int]] = []
    fresh = 0
    for at in range(requests):
        path = dice.choice(paths) if paths and dice.random() < 0.7 else []
        if not path:
            paths.append(path)
        path.extend(range(fresh, fresh + 4))
        fresh += 4
        builder.add(float(at), BLOCK * len(path), 10, path if has_blocks else (), session=paths.index(path))
    return builder.build()


def run(
    policy: str = "cache_aware",
    *,
    requests: int = 200,
    hit: float = 0.5,
    ttft: float = 1.0,
    evicted: float = 0.05,
    elsewhere: float = 0.05,
    seed: int = 1,
    replicas: int = 4,
    refused: float = 0.0,
    step: float = 1.0,
    pace: float | None = None,
    settings: dict[str, str | int | float | bool | None] | None = None,
) -> Run:
    """A run in which requests came every ``step`` seconds, with these figures on average.

    Answers take 0.2 s, or 11 tokens with ``pace`` seconds between them.
    """
    dice = random.Random(seed)  # the same for all policies, so that what is asked for is what differs
    inputs = array("q", [dice.randrange(100, 2000) for _ in range(requests)])
    chosen = array("q", [REFUSED if dice.random() < refused else dice.randrange(replicas) for _ in range(requests)])
    hits = array("q", [int(tokens * hit) if at >= 0 else 0 for tokens, at in zip(inputs, chosen, strict=True)])
    ttfts = array("d", [ttft * dice.uniform(0.5, 1.5) if at >= 0 else 0.0 for at in chosen])
    tokens = sum(tokens for tokens, at in zip(inputs, chosen, strict=True) if at >= 0)
    seconds = requests * step
    missed = [int(share * tokens) for share in (elsewhere, evicted)]
    answer = 0.2 if pace is None else 10 * pace
    return Run(
        trace="made up",
        policy=policy,
        seed=seed,
        replicas=replicas,
        settings=settings or {},
        arrivals=array("d", [at * step for at in range(requests)]),
        ttfts=ttfts,
        latencies=array("d", [value + answer if value else 0.0 for value in ttfts]),
        inputs=inputs,
        hits=hits,
        outputs=array("q", [] if pace is None else [11 if at >= 0 else 0 for at in chosen]),
        chosen=chosen,
        misses=Misses(first=tokens - sum(hits) - sum(missed), in_flight=0, elsewhere=missed[0], evicted=missed[1]),
        busy=[seconds / 2] * replicas,
        seconds=seconds,
    )


def result(
    policy: str = "cache_aware", *, cache_tokens: int | None = 640, prompt_busy: float | None = None, **figures: object
) -> Result:
    made = result_of(run(policy, **figures), cache_tokens=cache_tokens)  # type: ignore[arg-type]
    return made if prompt_busy is None else msgspec.structs.replace(made, prompt_busy=prompt_busy)


def limits(of: Trace, sizes: Sequence[int] = (80, 160, 320)) -> Bounds:
    return bounds(of, sizes)


def report(
    *results: Result, of: Trace | None = None, with_bounds: bool = True, ttft_target: float | None = None
) -> Document:
    """A report of these results, with bounds of a trace that has little to do with them."""
    known = trace() if of is None else of
    return document(
        known,
        results,
        limits(known) if with_bounds else None,
        versions={"kvlb": "1.2.3"},
        inputs={"trace": known.name},
        ttft_target=ttft_target,
    )


CASES: dict[str, list[Result]] = {
    "nothing": [],
    "all refused": [result(refused=1.0), result("round_robin", refused=1.0)],
    "some served nothing": [result(), result("round_robin", refused=1.0)],
    "one request": [result(requests=1)],
    "no request": [result(requests=0)],
    "times of 0": [result(ttft=0.0, step=0.0), result("round_robin", ttft=0.0, step=0.0)],
    "64 replicas": [result(replicas=64)],
    "500 replicas": [result(replicas=500)],
    "20 policies": [result(f"policy_{at}", ttft=1.0 + at) for at in range(20)],
    "times far apart": [result(ttft=0.001), result("round_robin", ttft=5000.0)],
    "several seeds": [result(seed=seed, ttft=1 + seed / 10) for seed in range(4)],
    "no size of cache": [result(cache_tokens=None)],
    "no cache": [result(cache_tokens=0)],
    "nothing computed": [result(hit=1.0, evicted=0.0, elsewhere=0.0)],
}
"""Results of all shapes, by what is strange about them."""
