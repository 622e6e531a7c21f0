"""What the tests with a gateway share: two engines, started once, and a table of predictions at the end of the run.

Knows when engines and gateway start and end, and where their logs are when a test has failed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.clients.witness import Witness
from tests.real.gateway import Engines, Gateway
from tests.real.ledger import Ledger

_LOGS = pytest.StashKey[list[Path]]()
_LEDGER = pytest.StashKey[Ledger]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LOGS] = []
    config.stash[_LEDGER] = Ledger()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.failed:
        for log in item.config.stash[_LOGS]:
            lines = log.read_text(errors="replace").splitlines()[-40:]
            report.sections.append((f"end of {log.name}", "\n".join(lines)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    ledger = config.stash[_LEDGER]
    if ledger.rows:
        terminalreporter.section("predicted cached tokens against vLLM's own")
        for line in ledger.table():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Ledger:
    """Where every prediction is noted."""
    return pytestconfig.stash[_LEDGER]


@pytest.fixture(scope="session")
def engines(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    engines = Engines(tmp_path_factory.mktemp("vllm"), pytestconfig.stash[_LOGS])
    try:
        for engine in engines.running:
            engine.wait_ready()
        yield engines
    finally:
        engines.stop()


@pytest.fixture(scope="session")
def gateway(
    engines: Engines, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """``kvlb serve`` in front of both."""
    log = tmp_path_factory.mktemp("gateway") / "gateway.log"
    pytestconfig.stash[_LOGS].append(log)
    gateway = Gateway(engines.running, log)
    try:
        yield gateway
    finally:
        gateway.stop()


@pytest.fixture(scope="module")
def wide_gateway(
    engines: Engines, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """``kvlb serve`` in front of four: both, and two more."""
    logs = pytestconfig.stash[_LOGS]
    more = Engines(tmp_path_factory.mktemp("more-vllm"), logs)
    try:
        for engine in more.running:
            engine.wait_ready()
        log = tmp_path_factory.mktemp("wide-gateway") / "gateway.log"
        logs.append(log)
        gateway = Gateway([*engines.running, *more.running], log)
        try:
            yield gateway
        finally:
            gateway.stop()
    finally:
        more.stop()


@pytest.fixture(scope="session")
def witness(
    engines: Engines, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Witness]:
    """The first engine, asked directly and through a gateway of its own, with all that is said recorded."""
    log = tmp_path_factory.mktemp("witness") / "gateway.log"
    pytestconfig.stash[_LOGS].append(log)
    witness = Witness(engines.running[0], log)
    try:
        yield witness
    finally:
        witness.stop()
