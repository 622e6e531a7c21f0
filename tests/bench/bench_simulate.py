"""What a simulation costs: ``python -m tests.bench.bench_simulate``, one JSON line a case.

The chat trace, copied with private ids until it has so many requests (a million by default; 24 blocks of 512 tokens each), on
replicas of 8,192 blocks at a load of 0.85: CPU seconds of reading it from a file, of making paths, and of one policy; the
most memory that the process has had. ``block_size`` is the engine's: the trace's own, and vLLM's usual one.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from balancer.policies.base import make
from simulations.paths import Paths
from simulations.results import summarise
from simulations.simple import SimpleFleet, play
from simulations.traces.reading import open_trace
from simulations.traces.scaling import sessions_times
from simulations.traces.sessions import derived_sessions
from simulations.traces.stretches import Stretches
from simulations.traces.trace import Trace
from tests.bench.report import report

CHAT = Path(__file__).parents[1] / "golden" / "traces" / "mooncake_conversation.jsonl.gz"


@contextmanager
def measured(figures: dict[str, object], name: str) -> Iterator[None]:
    began = time.process_time()
    yield
    figures[f"{name}_cpu_seconds"] = round(time.process_time() - began, 2)


def write(trace: Trace, path: Path) -> None:
    with path.open("w") as file:
        for at, ids in enumerate(trace.blocks):
            line = {
                "timestamp": round(trace.arrivals[at] * 1000),
                "input_length": trace.inputs[at],
                "output_length": trace.outputs[at],
                "hash_ids": list(ids),
            }
            file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, nargs="*", default=[8])
    parser.add_argument("--block-sizes", type=int, nargs="*", default=[512, 16])
    parser.add_argument("--policies", nargs="*", default=["predicted_ttft"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chat.jsonl"
        chat = open_trace(str(CHAT))[0]
        write(sessions_times(chat, args.requests / len(chat), random.Random(1)), path)
        del chat
        reading: dict[str, object] = {"bytes": path.stat().st_size}
        with measured(reading, "read"):
            trace = open_trace(str(path))[0]
    with measured(reading, "sessions"):
        stretches = Stretches(trace)
        sessions = derived_sessions(trace, stretches)
    inputs: dict[str, object] = {
        "requests": len(trace),
        "blocks": sum(map(len, trace.blocks)),
        "distinct": len(trace.parents),
    }
    report("simulate", {"case": "reading", **inputs}, {**reading, "max_rss_mib": rss()})
    for size in args.block_sizes:
        figures: dict[str, object] = {}
        with measured(figures, "paths"):
            paths = Paths(trace, size, stretches)
        figures["segments_a_request"] = round(sum(map(len, paths.paths)) / len(paths), 2)
        report("simulate", {"case": "paths", "block_size": size, **inputs}, {**figures, "max_rss_mib": rss()})
        for replicas in args.replicas:
            fleet = SimpleFleet(replicas=replicas, blocks=8192 * 512 // size, block_size=size, load=0.85)
            for policy in args.policies:
                figures = {}
                with measured(figures, "play"):
                    run = play(trace, paths, fleet, make(policy), policy, sessions)
                figures["hit"] = round(summarise(run).hit, 4)
                case = {"case": "play", "policy": policy, "replicas": replicas, "block_size": size, **inputs}
                report("simulate", case, {**figures, "max_rss_mib": rss()})


def rss() -> int:
    """MiB, the most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
