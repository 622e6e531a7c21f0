"""What one decision costs: ``python -m tests.bench.bench_router``, one JSON line a case.

From token ids to a released lease: chain, match, choice, expectation, release; CPU time of the process in milliseconds. cold:
the prompt was never seen. warm: its chain is remembered and the replicas hold it. Events are applied apart and not counted.
choice: what the policy costs beside the match (candidates and choice, in microseconds), on a fleet that is busy.
"""

import random
import statistics
import time
from collections.abc import Callable

from balancer.core import Decision, Outcome, Replica, RouteRequest
from balancer.hashes import PromptHashes
from balancer.policies.base import make
from balancer.router import Router
from hashing.chain import Chain
from hashing.memory import ChainMemory
from hashing.recipes import Recipe
from indexer.events import EMPTY, BlockStored
from indexer.index import ReplicaId
from tests.bench.report import report

RECIPE = Recipe(block_size=16)
REPEATS = 40
ROUNDS, CALLS = 7, 300
VOCABULARY = 128_000


def fleet(count: int) -> Router:
    router = Router(make("predicted_ttft"), "predicted_ttft")
    for at in range(count):
        router.put(Replica(ReplicaId(f"10.0.0.{at}:8000"), f"http://10.0.0.{at}:8000", models=("m",), recipe=RECIPE))
    return router


def decide(router: Router, memory: ChainMemory, tokens: list[int]) -> Decision:
    request = RouteRequest("m", PromptHashes([tokens], None, memory), (len(tokens),))
    decision = router.route(request, 0.0, 0.5)
    router.started(decision.lease, 0.0)
    router.release(decision.lease, Outcome.CANCELLED, 0.0)
    return decision


def case(name: str, replicas: int, length: int) -> None:
    router, memory = fleet(replicas), ChainMemory()
    dice = random.Random(1)
    times = []
    for _ in range(REPEATS):
        tokens = [int(dice.random() * VOCABULARY) for _ in range(length)]
        if name == "warm":
            decide(router, memory, tokens)
            keys = list(Chain(RECIPE, tokens, memory=memory).keys(length))
            for live in router.fleet:
                router.caches.apply(live.replica.id, [BlockStored(keys, None, EMPTY, 16)])
        started = time.process_time()
        decide(router, memory, tokens)
        times.append((time.process_time() - started) * 1e3)
    figures: dict[str, object] = {"min_ms": round(min(times), 3), "median_ms": round(statistics.median(times), 3)}
    report("decision", {"case": name, "replicas": replicas, "tokens": length, "block_size": 16, "seed": 1}, figures)


def choice(replicas: int, length: int) -> None:
    """Against the match alone, of the same request: the best of several rounds of each."""
    router, memory, dice = fleet(replicas), ChainMemory(), random.Random(1)
    request = RouteRequest(
        "m", PromptHashes([[dice.randrange(VOCABULARY) for _ in range(length)]], None, memory), (length,)
    )
    router.route(request, -1000.0, 0.0)  # none of them has just started
    now = 0.0
    for _ in range(4 * replicas):
        now += 0.05
        router.route(request, now, dice.random())
    fleet_of = [live.replica for live in router.fleet]

    def best(call: Callable[[], object]) -> float:
        times = []
        for _ in range(ROUNDS):
            started = time.process_time()
            for _ in range(CALLS):
                call()
            times.append((time.process_time() - started) / CALLS * 1e6)
        return min(times)

    match = best(lambda: router.caches.matcher.match(request, fleet_of))
    both = best(lambda: router._choose(request, now, 0.5))
    figures: dict[str, object] = {"match_us": round(match, 1), "choice_us": round(both - match, 1)}
    report("decision", {"case": "choice", "replicas": replicas, "tokens": length, "block_size": 16, "seed": 1}, figures)


if __name__ == "__main__":
    for replicas in (8, 64):
        for length in (1_024, 8_192, 131_072):
            for name in ("cold", "warm"):
                case(name, replicas, length)
    for replicas in (8, 64):
        choice(replicas, 8_192)
