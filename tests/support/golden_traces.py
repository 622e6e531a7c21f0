"""The whole traces of ``tests/golden/traces``, each read once a run."""

from functools import cache
from pathlib import Path

from simulations.traces.reading import open_trace
from simulations.traces.trace import Trace

GOLDEN = Path(__file__).parents[1] / "golden" / "traces"


@cache
def read(name: str) -> Trace:
    return open_trace(str(GOLDEN / f"{name}.jsonl.gz"))[0]
