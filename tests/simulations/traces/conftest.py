"""The whole traces of ``tests/golden/traces``, each read once a run."""

from collections.abc import Callable

import pytest

from simulations.traces.trace import Trace
from tests.support.golden_traces import read


@pytest.fixture(scope="session")
def golden_trace() -> Callable[[str], Trace]:
    return read
