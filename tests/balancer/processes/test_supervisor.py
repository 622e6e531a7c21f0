"""``balancer/processes/supervisor.py`` in this loop, with real children: what takes too long elsewhere.

Processes under load are for ``tests/integration/test_several_processes.py``.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from balancer import settings as settings_module
from balancer.commands.listening import bind_many
from balancer.errors import ConfigError
from balancer.processes import supervisor as supervisor_module
from balancer.processes.channel import Message, Ping
from balancer.processes.supervisor import Child, Logging, Supervisor
from balancer.settings import Settings
from tests.support.waiting import eventually, run

SECONDS = 30
TREE = {
    "replicas": [{"url": "http://127.0.0.1:9"}],
    "server": {"port": 0, "processes": 2, "drain_grace_seconds": 0, "drain_timeout_seconds": 0.2},
}


@contextlib.asynccontextmanager
async def supervised(*reread: Settings) -> AsyncIterator[Supervisor]:
    """One whose children all serve. Each SIGHUP takes one of ``reread``, and finds fault when there is none left."""
    settings, left = settings_module.convert(TREE), list(reread)

    def read() -> Settings:
        if not left:
            raise ConfigError("there is none")
        return left.pop(0)

    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(each) for each in bind_many(settings.server, 2)]
        made, served = Supervisor(settings, read, listeners, Logging("warning", "text")), asyncio.Event()
        task = asyncio.create_task(made.run(served.set))
        try:
            async with asyncio.timeout(SECONDS):
                await served.wait()
            yield made
        finally:
            made._stop.receive(signal.SIGINT)
            assert await task == 0
    assert made._children == {}


async def serves(made: Supervisor, before: Child) -> Child:
    """Whoever has the place after this one, once it serves."""
    await eventually(lambda: made._places[before.place] is not before, SECONDS)
    after = made._places[before.place]
    await eventually(after.ready.is_set, SECONDS)
    return after


def test_whoever_stands_still_is_killed_and_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor_module, "PING_SECONDS", 0.1)
    monkeypatch.setattr(supervisor_module, "STILL_SECONDS", 4.0)

    async def check() -> None:
        async with supervised() as made:
            before = made._places["gateway", 2]
            os.kill(before.process.pid, signal.SIGSTOP)
            assert (await serves(made, before)).is_alive
            assert made._restarts == {"brain": 0, "gateway": 1}

    run(check(), 2 * SECONDS)
    assert "gateway 2" in caplog.text
    assert "has said nothing for 4 s" in caplog.text


def test_who_was_asked_by_nobody_has_not_been_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that slept, or one that starts for longer than the other may be silent."""
    monkeypatch.setattr(supervisor_module, "PING_SECONDS", 0.1)
    leap, answers, receive = 0.0, Counter[int](), Child.receive
    monkeypatch.setattr(supervisor_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + leap))

    def counted(child: Child, message: Message) -> None:
        answers[child.process.pid] += isinstance(message, Ping)
        receive(child, message)

    monkeypatch.setattr(Child, "receive", counted)

    async def check() -> None:
        nonlocal leap
        async with supervised() as made:
            leap = 10 * supervisor_module.STILL_SECONDS
            answers.clear()
            await eventually(lambda: all(answers[child.process.pid] >= 3 for child in made._children), SECONDS)
            assert made._restarts == {"brain": 0, "gateway": 0}

    run(check(), 2 * SECONDS)
    assert "has said nothing" not in caplog.text


def test_one_that_dies_while_it_is_replaced_is_replaced_once(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with supervised(settings_module.convert(TREE)) as made:
            old = dict(made._places)
            os.kill(os.getpid(), signal.SIGHUP)
            await eventually(lambda: ("brain", 0) not in made._places, SECONDS)
            old["gateway", 1].signal(signal.SIGKILL)  # while the brain is away
            await eventually(lambda: made._is_replacing is False, SECONDS)
            assert not {id(each) for each in old.values()} & {id(each) for each in made._places.values()}
            await eventually(lambda: len(made._children) == 3, SECONDS)
            assert set(made._children) == set(made._places.values())

    with caplog.at_level(logging.INFO):
        run(check(), 2 * SECONDS)


def test_what_is_bound_stays_bound(caplog: pytest.LogCaptureFixture) -> None:
    other = {**TREE, "server": {**TREE["server"], "port": 1, "processes": 7}}  # type: ignore[dict-item]

    async def check() -> None:
        async with supervised() as made:
            assert made._read_again() is False
            made._reread = lambda: settings_module.convert(other)
            assert made._read_again() is True
            assert (made._settings.server.port, made._settings.server.processes) == (0, 2)

    run(check(), 2 * SECONDS)
    assert "nothing is replaced, and the settings stay as they were: there is none" in caplog.text
    assert "stay as they were until kvlb is started anew" in caplog.text


def test_a_place_that_cannot_be_filled_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with supervised() as made:
            spawn, failures = made._spawn, [OSError(11, "no more processes")]

            async def fails_once(role: str, number: int) -> Child:
                if failures:
                    raise failures.pop()
                return await spawn(role, number)  # type: ignore[arg-type]

            monkeypatch.setattr(made, "_spawn", fails_once)
            before = made._places["gateway", 1]
            before.signal(signal.SIGKILL)
            assert (await serves(made, before)).is_alive

    run(check(), 2 * SECONDS)
