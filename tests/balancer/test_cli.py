"""``balancer/cli.py``: every mistake on the command line is one line that names it, and an exit code."""

import importlib.machinery
import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from balancer import cli
from balancer.errors import BalancerError, ConfigError


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """``serve`` sets up the process's logging; the next test is none of its business."""
    root, aiohttp_server = logging.getLogger(), logging.getLogger("aiohttp.server")
    handlers, level, filters = root.handlers[:], root.level, aiohttp_server.filters[:]
    yield
    root.handlers[:], aiohttp_server.filters[:] = handlers, filters
    root.setLevel(level)


def outcome(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str]:
    """The exit code and the line on stderr."""
    code: object
    try:
        code = cli.main(words)
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return code, told.err.rstrip("\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "kvlb: the following arguments are required: COMMAND (see kvlb --help)"),
        (["srve"], "kvlb: argument COMMAND: invalid choice: 'srve'"),
        (["serve", "--prot", "1"], "kvlb serve: unknown argument --prot; did you mean --port? (see kvlb serve --help)"),
        (["serve", "--replica=http://h:1", "--polcy=x"], "unknown argument --polcy=x; did you mean --policy?"),
        (["serve", "--port", "x"], "kvlb serve: argument --port: invalid int value: 'x'"),
        (["serve", "extra"], "kvlb serve: unknown argument extra (see kvlb serve --help)"),
        (["serve"], "kvlb: replicas: none given; name at least one with --replica http://HOST:PORT"),
        (["serve", "--config", "\x1b[2Ja"], "kvlb: --config: cannot read '\\x1b[2Ja': "),
        (["serve", "--replica", "h:1"], "kvlb: replicas[0].url: 'h:1' is not an endpoint; give one like http://"),
        (["serve", "--config", "/no/such.toml"], "kvlb: --config: cannot read '/no/such.toml': "),
        (["serve", "--config", "/"], "kvlb: --config: cannot read '/': "),
        (["serve", "--replica", "http://h:1", "--policy", "best"], "kvlb: policy.name: there is no policy 'best'"),
        (["serve", "--replica", "http://h:1", "--port", "99999"], "kvlb: server.port: 99999 is not a port"),
        (
            ["serve", "--replica", "http://h:1", "--max-body-bytes", "0"],
            "kvlb: server.max_body_bytes: 0 cannot be used",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = outcome(capsys, *words)
    assert code == 2
    assert message in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server", "not valid TOML"),
        ("[sever]", "sever: unknown setting; did you mean server?"),
        ("server = 1", "server: expected `object`, got `int`"),
        ("[policy]\nname = 'cache_aware'\nx = 1\n[[replicas]]\nurl = 'http://h:1'", "its settings are: queue_weight"),
        (
            "[[replicas]]\nurl = 'http://h:1'\nevents = 'tcp://*:5'",
            "replicas[0].events: 'tcp://*:5' cannot be connected",
        ),
    ],
)
def test_a_mistake_in_a_file_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kvlb.toml"
    path.write_text(text)
    code, line = outcome(capsys, "serve", "--config", str(path))
    assert code == 2
    assert message in line


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError("no"), 2), (BalancerError("no"), 1), (KeyboardInterrupt(), 130)]
)
def test_an_error_of_a_command_becomes_its_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(settings: object, timeout: object, *, picks: bool) -> None:
        raise error

    monkeypatch.setattr("balancer.commands.serve._serve", fail)
    assert cli.main(["serve", "--replica", "http://h:1"]) == code
    assert capsys.readouterr().err == ("kvlb: no\n" if code < 3 else "")


def test_flags_overrule_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from balancer.settings import Settings

    seen: list[Settings] = []
    monkeypatch.setattr("balancer.commands.serve._serve", lambda settings, timeout, picks: seen.append(settings))
    monkeypatch.setattr("balancer.commands.serve.run_loop", lambda main: main)
    path = tmp_path / "kvlb.toml"
    path.write_text("[server]\nport = 1\nhost = '::1'\n[policy]\nname = 'least_load'\n[[replicas]]\nurl = 'http://h:1'")
    words = ["serve", "--config", str(path)]
    assert cli.main(words) == 0
    assert cli.main([*words, "--port", "2", "--policy", "round_robin", "--replica", "http://x:1/"]) == 0
    assert [(each.server.port, each.server.host, each.policy.name) for each in seen] == [
        (1, "::1", "least_load"),
        (2, "::1", "round_robin"),
    ]
    assert [each.replicas[0].url for each in seen] == ["http://h:1", "http://x:1"]


def test_help_and_version_are_asked_for_and_not_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in ((["--help"], "serve"), (["serve", "--help"], "--replica"), (["--version"], "kvlb ")):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        assert end.value.code == 0
        assert expected in capsys.readouterr().out


def test_a_stranger_with_one_of_our_names_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec

    def shadowed(name: str) -> importlib.machinery.ModuleSpec | None:
        if name == "indexer":
            return importlib.machinery.ModuleSpec(name, None, origin=str(tmp_path / "indexer" / "__init__.py"))
        return real(name)

    monkeypatch.setattr(cli, "find_spec", shadowed)
    code, line = outcome(capsys, "serve")
    assert code == 2
    assert f"indexer in {tmp_path}" in line
    assert "install kvlb in an environment of its own" in line


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    assert outcome(capsys, "serve") == (
        2,
        "kvlb: package 'hashing' is missing: install kvlb again, in an environment of its own",
    )
