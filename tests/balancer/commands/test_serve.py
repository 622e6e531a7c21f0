"""``balancer/commands/serve.py``: what cannot be bound is said in one line."""

import argparse
from pathlib import Path

import pytest

from balancer import settings
from balancer.commands.listening import bind
from balancer.commands.serve import command, read_settings
from balancer.errors import ConfigError


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
