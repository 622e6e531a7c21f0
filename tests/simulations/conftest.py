"""The chat trace, read once a run."""

import pytest

from simulations.traces.trace import Trace
from tests.support.golden_traces import read


@pytest.fixture(scope="session")
def chat() -> Trace:
    return read("mooncake_conversation")
