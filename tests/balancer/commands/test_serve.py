"""``balancer/commands/serve.py``: what cannot be bound is said in one line, and so is what serves."""

import argparse
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from balancer import settings
from balancer.commands import serve
from balancer.commands.listening import bind
from balancer.commands.loop import StopSignals
from balancer.commands.serve import command, read_settings
from balancer.errors import ConfigError
from balancer.processes.supervisor import Supervisor


@pytest.mark.parametrize("host", ["é" * 90, "\udcff", "a\0b", "a\nb", "é" * 90 + "::"])
def test_a_host_that_is_no_name_is_one_line(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^server\.host: ") as caught:
        bind(settings.convert({"server": {"host": host, "port": 0}}).server)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("seconds", ["1e400", "nan", "-1", "0"])
def test_a_startup_timeout_is_a_number_of_seconds(seconds: str) -> None:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    with pytest.raises(ConfigError, match=r"^--startup-timeout: .* cannot be used; give a number of seconds above 0$"):
        command.run(parser.parse_args([f"--startup-timeout={seconds}", "--replica=http://127.0.0.1:9"]))


def test_a_flag_overrules_the_bound_of_the_file(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    path = tmp_path / "kvlb.toml"
    path.write_text("[index]\nmax_blocks = 5000\n")
    words = ["--replica=http://127.0.0.1:9", f"--config={path}"]
    assert read_settings(parser.parse_args(words)).index.max_blocks == 5000
    assert read_settings(parser.parse_args([*words, "--max-blocks=7000"])).index.max_blocks == 7000


def test_the_help_says_that_a_policy_may_be_ones_own() -> None:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    (told,) = [action.help for action in parser._actions if action.dest == "policy"]
    assert "module:Class" in str(told)
    assert "module:Class" in command.help


@pytest.mark.parametrize("processes", [1, 2])
def test_what_decides_is_told_at_the_start(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @contextlib.asynccontextmanager
    async def running(settings: object, stop: StopSignals, *, picks: bool) -> AsyncIterator[tuple[None, str]]:
        yield None, "http://127.0.0.1:80"
        assert stop.asked.is_set()

    async def supervise(self: object, served: Callable[[], None]) -> int:
        served()
        return 0

    class Stopped(StopSignals):
        def __init__(self) -> None:
            super().__init__()
            self.asked.set()

    monkeypatch.setattr(serve, "running", running)
    monkeypatch.setattr(serve, "StopSignals", Stopped)
    monkeypatch.setattr(Supervisor, "run", supervise)
    monkeypatch.setattr(serve, "begin_logging", lambda level, form: None)
    monkeypatch.setattr(serve, "raise_limit", lambda: None)
    path = tmp_path / "kvlb.toml"
    path.write_text(
        '[policy]\nageing = "off"\n[policy.ab]\nname = "cache_aware"\n[policy.shadow]\nname = "random"\nshare = 0.5\n'
    )
    parser = argparse.ArgumentParser()
    command.configure(parser)
    words = ["--replica=http://127.0.0.1:9", f"--config={path}", "--port=0", f"--processes={processes}"]
    with caplog.at_level(logging.INFO, "balancer.commands.serve"):
        command.run(parser.parse_args(words))
    (told,) = caplog.messages
    assert told.startswith("listening on http://127.0.0.1:")
    assert told.endswith(
        ' with policy predicted_ttft(ageing="off"), cache_aware for 10 % of requests, random on paper for 50 %, 1 endpoint'
        + (", 2 processes" if processes > 1 else "")
    )
