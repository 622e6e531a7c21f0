"""What policies are worth on traces: ``python -m tests.bench.bench_policies NAME=FILE:LOAD,LOAD ... [--policy A --policy B]``.

Each trace on fleets of 4, 8, 16 and 64 replicas (the trace's conversations halved, or copied with prompts of their own, so that
each replica has the same load), with caches that are scarce and ample, at each load (prompt tokens a second over what the
fleet computes; 0: as recorded, each turn a pause after the answer before it), in the simple model. Printed are, of each policy,
the geometric means over all cases of mean and p95 time to first token against ``--base``, and the case in which its mean is
furthest from the best of all; ``--json`` has every case. Traces are shortened on fleets of 16 (half) and 64 replicas (a fifth).
In place of a file, ``generate:chat(rate=2)`` makes a trace.
"""

import argparse
import json
import math
from random import Random
from typing import Any, Final

from simulations.generators.base import generators
from simulations.grid import Case, run_all
from simulations.named_policies import parse, parse_names
from simulations.results import Summary, summarise
from simulations.simple import SimpleFleet
from simulations.traces.reading import open_trace
from simulations.traces.scaling import first, sessions_times
from simulations.traces.trace import Trace
from tests.bench.report import report

BASE: Final = (
    "predicted_ttft(price=1,eviction=0,request_tokens=0,context_share=0,memory_seconds=0,"
    "session_seconds=0,trial_seconds=0,ageing=off)"
)
"""Wait plus own prefill, blocks under way counted, in order of arrival."""

EVENTS_ONLY: Final = BASE[:-1] + ",counts_expected=false)"
"""The same by what events tell alone: the reference study's ``ttft``."""

POLICIES: Final = (
    EVENTS_ONLY,
    BASE.replace("price=1", "price=3"),
    "cache_aware",
    "session_sticky",
    "like_llm_d",
    "like_dynamo",
    "like_dynamo(overlap_weight=16)",
    "like_preble",
    "like_lmetric",
    "like_sglang",
    "like_dualmap",
    "predicted_ttft(ageing=off)",
    "predicted_ttft",
)
PART: Final = {16: 0.5, 64: 0.2}

Key = tuple[str, int, int, float]


def sized(trace: Trace, replicas: int) -> Trace:
    """The trace for so many replicas; it is one for 8."""
    if replicas in PART:
        trace = first(trace, seconds=trace.arrivals[-1] * PART[replicas])
    return trace if replicas == 8 else sessions_times(trace, replicas / 8, Random(1))


def play(
    name: str, trace: Trace, replicas: int, caches: list[int], loads: list[float], names: list[str], block: int
) -> Any:
    policies = [parse(each)[0] for each in names]
    cases: list[Case] = []
    keys: list[tuple[Key, str]] = []
    for blocks in caches:
        for load in loads:
            fleet = SimpleFleet(replicas, blocks, block, load=load or None, closed_loop=not load)
            for policy in policies:
                cases.append(Case(policy, fleet))
                keys.append(((name, replicas, blocks, load), policy.written))
    return zip(keys, run_all(sized(trace, replicas), cases, keep=lambda case, run: summarise(run)), strict=True)


def made(file: str) -> Trace:
    if not file.startswith("generate:"):
        return open_trace(file)[0]
    (named,) = parse_names(file.removeprefix("generate:"), "trace")
    return generators.make(named.name, named.settings).generate(1)


def mean(values: list[float]) -> float:
    return math.exp(sum([math.log(each) for each in values]) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="+", metavar="NAME=FILE:LOAD,LOAD")
    parser.add_argument("--policy", action="append", default=[])
    parser.add_argument("--base", default=BASE)
    parser.add_argument("--replicas", default="4,8,16,64")
    parser.add_argument("--blocks", default="2048,8192")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    names = [args.base, *(args.policy or POLICIES)]
    found: dict[Key, dict[str, Summary]] = {}
    for told in args.traces:
        name, _, rest = told.partition("=")
        file, _, loads = rest.rpartition(":")
        trace = made(file)
        for replicas in map(int, args.replicas.split(",")):
            caches = [int(each) for each in args.blocks.split(",")]
            for (key, policy), summary in play(
                name, trace, replicas, caches, [float(each) for each in loads.split(",")], names, trace.block_size
            ):
                found.setdefault(key, {})[policy] = summary
    base = parse(args.base)[0].written
    for policy in [parse(each)[0].written for each in names]:
        figures: dict[str, object] = {}
        for of in ["all", *dict.fromkeys(key[0] for key in found)]:
            cells = [each for key, each in found.items() if of in {"all", key[0]}]
            figures[f"{of} mean"] = round(mean([each[policy].ttft_mean / each[base].ttft_mean for each in cells]), 3)
            figures[f"{of} p95"] = round(mean([each[policy].ttft_p95 / each[base].ttft_p95 for each in cells]), 3)
        worst, at = max(
            (each[policy].ttft_mean / min(s.ttft_mean for s in each.values()), key) for key, each in found.items()
        )
        figures |= {"worst against the best": round(worst, 2), "there": at}
        report("policies", {"policy": policy, "base": base, "cases": len(found)}, figures)
    if args.json:
        with open(args.json, "w") as file:
            rows = [
                [*key, each.policy, each.hit, each.ttft_mean, each.ttft_p95]
                for key, row in found.items()
                for each in row.values()
            ]
            json.dump(rows, file)


if __name__ == "__main__":
    main()
