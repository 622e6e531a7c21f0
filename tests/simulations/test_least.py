"""``simulations/least.py``: what no number of replicas stays below, by arithmetic and beside what both models play."""

import json
from pathlib import Path
from typing import Any

import pytest

from simulations.detailed_fleet import DetailedFleet
from simulations.grid import Case, Workshop
from simulations.latency import LatencyModel
from simulations.least import Least
from simulations.named_policies import parse
from simulations.results import summarise
from simulations.scenario import fleet_of
from simulations.simple import SimpleFleet
from simulations.traces.reading import open_trace
from simulations.traces.trace import Trace

QUICK = LatencyModel(overhead=0.001, weights=0.004, token=1e-4, pair=1e-8, context_token=1e-7, request=0.25)


def talks(folder: Path, *, apart: float, pauses: bool = False, users: int = 5) -> Trace:
    """Conversations of four turns: each prompt begins with the one before it and its answer, and a little more."""
    lines = []
    for user in range(users):
        for turn in range(4):
            length = 700 + 100 * user + turn * 1500
            ids = [1000 * user + at for at in range(-(-length // 512))]
            told: dict[str, Any] = {
                "session_id": f"s{user}",
                "input_length": length,
                "output_length": 1400,
                "hash_ids": ids,
            }
            at = {"delay": 9000} if turn and pauses else {"timestamp": int(1000 * apart * (4 * user + turn))}
            lines.append(json.dumps({**told, **at}))
    path = folder / "talks.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return open_trace(str(path))[0]


def p95(trace: Trace, fleet: SimpleFleet | DetailedFleet, policy: str = "cache_aware") -> float:
    return summarise(Workshop(trace).run(Case(parse(policy)[0], fleet))).ttft_p95


def test_one_that_is_asked_alone_with_all_that_came_before_takes_just_that(tmp_path: Path) -> None:
    trace = talks(tmp_path, apart=1000)
    simple = SimpleFleet(replicas=1, blocks=10_000, prefill_tps=1000.0)
    assert Least(trace).ttft_p95(simple) == pytest.approx(p95(trace, simple), abs=1e-9)
    detailed = DetailedFleet(replicas=1, blocks=100_000, latency=QUICK, max_num_batched_tokens=512)
    assert Least(trace).ttft_p95(detailed) == pytest.approx(p95(trace, detailed), rel=1e-6)


@pytest.mark.parametrize("apart", [0.05, 1000.0])
@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("simple", {}),
        ("simple", {"block_size": 16, "blocks": 100_000}),
        ("simple", {"block_size": 2048, "pooled": True}),
        ("simple", {"store": "400gbe"}),
        ("detailed", {}),
        ("detailed", {"block_size": 512}),
        ("detailed", {"speeds": [4.0, 0.5], "max_num_batched_tokens": 300}),
        ("detailed", {"store": {"link": "400gbe", "loads": "always"}}),
        ("detailed", {"disaggregation": {"prefill": 2, "link": "400gbe", "splits": "always"}}),
    ],
)
def test_no_fleet_stays_below_it(apart: float, model: Any, fields: dict[str, Any], tmp_path: Path) -> None:
    trace = talks(tmp_path, apart=apart)
    own = {"prefill_tps": 2000} if model == "simple" else {"latency": {"token": 5e-4, "request": 0.1}}
    for replicas in (3, 20):
        fleet = fleet_of(model, {"replicas": replicas, "blocks": 50_000, **own, **fields})
        found = Least(trace).ttft_p95(fleet)
        assert found is not None
        assert 0 < found * (1 - 1e-9) <= p95(trace, fleet)


def test_the_quickest_replica_counts_and_how_many_there_are_does_not(tmp_path: Path) -> None:
    trace = talks(tmp_path, apart=1)
    least = Least(trace)

    def of(**fields: Any) -> float:
        found = least.ttft_p95(DetailedFleet(latency=QUICK, **fields))
        assert found is not None
        return found - 0.25  # of each request, outside of steps

    assert of(replicas=2) == of(replicas=200) == of(speeds=(0.5,)) == pytest.approx(2 * of(speeds=(1.0, 2.0)))
    assert least.ttft_p95(SimpleFleet(prefill_tps=500.0)) == pytest.approx(
        2 * (least.ttft_p95(SimpleFleet(prefill_tps=1000.0)) or 0)
    )


def test_in_a_closed_loop_nothing_is_known(tmp_path: Path) -> None:
    trace = talks(tmp_path, apart=1, pauses=True)
    for fleet in (SimpleFleet(closed_loop=True), DetailedFleet(closed_loop=True)):
        assert Least(trace).ttft_p95(fleet) is None
    assert Least(trace).ttft_p95(SimpleFleet()) is not None
    assert Least(talks(tmp_path, apart=1)).ttft_p95(SimpleFleet(closed_loop=True)) is not None, "it tells no pauses"


def test_a_trace_of_lengths_alone_has_no_hits(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5000,10\n2023-11-16 18:17:04,5000,8\n"
    )
    trace, _ = open_trace(str(path))
    assert Least(trace).ttft_p95(SimpleFleet(prefill_tps=1000.0)) == 5.0
