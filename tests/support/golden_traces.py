"""The whole traces of ``tests/golden/traces``, each read once a run."""

import gzip
import json
from functools import cache
from pathlib import Path

from simulations.traces.trace import Trace, TraceBuilder

GOLDEN = Path(__file__).parents[1] / "golden" / "traces"


@cache
def read(name: str) -> Trace:
    builder = TraceBuilder(name, 512, is_chained=True)
    with gzip.open(GOLDEN / f"{name}.jsonl.gz") as lines:
        for line in lines:
            told = json.loads(line)
            builder.add(
                told["timestamp"] / 1000,
                told["input_length"],
                told["output_length"],
                told["hash_ids"],
                session=told.get("session_id"),
            )
    return builder.build()
