"""``balancer/commands/serve.py``: what clients write never harms the log, and what cannot be bound is said in one line."""

import argparse
import logging
from pathlib import Path

import pytest
from aiohttp.http_exceptions import BadHttpMessage

from balancer import settings
from balancer.commands.listening import _shorten, bind
from balancer.commands.serve import command, read_settings
from balancer.errors import ConfigError


@pytest.mark.parametrize("told", ["GET /a?x=%d y HTTP/1.1", "%", "a\nb\0c", "\udcff\x1b[2J"])
def test_what_a_client_got_wrong_is_one_line_of_plain_characters(told: str) -> None:
    error = BadHttpMessage(told)
    told_by = (BadHttpMessage, error, None)
    record = logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "Error from %s", ("10.0.0.9",), told_by)
    assert _shorten(record)
    line = logging.Formatter("%(levelname)s %(message)s").format(record)
    assert line.startswith("WARNING Error from 10.0.0.9: ")
    assert line.isascii()
    assert line.isprintable()


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
