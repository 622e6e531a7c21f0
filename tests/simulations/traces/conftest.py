"""The whole traces of ``tests/golden/traces``, each read once a run, and a way to read what a test has written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulations.traces.formats.base import Reading, ReadingOptions
from simulations.traces.reading import open_trace
from simulations.traces.trace import Trace
from tests.support.golden_traces import read


@pytest.fixture(scope="session")
def golden_trace() -> Callable[[str], Trace]:
    return read


@pytest.fixture
def read_text(tmp_path: Path) -> Callable[..., tuple[Trace, Reading]]:
    """Reads a file with this content; options are those of ``ReadingOptions``."""

    def read(content: str | bytes, name: str = "trace.jsonl", **options: Any) -> tuple[Trace, Reading]:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return open_trace(str(path), ReadingOptions(**options))

    return read
