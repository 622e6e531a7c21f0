"""``discovery/file.py``: a file that somebody else writes, in whatever way, is believed when it is whole."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from balancer.discovery import file as file_module
from balancer.discovery.base import Failed, Found, make
from balancer.discovery.file import FileDiscovery, read
from balancer.errors import ConfigError
from tests.conformance import discovery as suite
from tests.conformance.discovery import Case, until, watching
from tests.support.waiting import run

URL = "http://10.0.0.1:8000"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "SETTLE_SECONDS", 0.002)


@pytest.fixture(params=["replicas.toml", "replicas.json"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    path = tmp_path / request.param

    def write(urls: Sequence[str]) -> None:
        draft = path.with_suffix(".new")
        text = json.dumps({"replicas": list(urls)})
        draft.write_text(text if path.suffix == ".json" else "".join(f'[[replicas]]\nurl = "{url}"\n' for url in urls))
        draft.replace(path)

    def break_it() -> None:
        path.write_text("[[replicas")

    return Case(
        make=lambda: FileDiscovery(path=str(path), interval_seconds=0.01),
        set_urls=write,
        break_it=break_it,
    )


test_the_first_list_is_complete_and_can_be_used = suite.test_the_first_list_is_complete_and_can_be_used
test_each_list_replaces_the_one_before = suite.test_each_list_replaces_the_one_before
test_what_cannot_be_told_is_said_and_is_no_empty_list = suite.test_what_cannot_be_told_is_said_and_is_no_empty_list
test_it_can_be_closed_at_any_time = suite.test_it_can_be_closed_at_any_time


def test_an_entry_has_the_settings_of_a_replica_or_is_a_url() -> None:
    (first, second) = read(
        json.dumps({"replicas": [URL + "/", {"url": "http://h:1", "hash_seed": "0"}]}).encode(), is_json=True
    )
    assert (first.url, second.hash_seed) == (URL, "0")
    assert read(f'replicas = ["{URL}"]'.encode(), is_json=False) == (first,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it must have a list of replicas and nothing else"),
        (b"replicas = 1", "it must have a list of replicas"),
        (b"port = 1\nreplicas = []", "it must have a list of replicas"),
        (b"[[replicas]]\nurl = 'http://h:1'\n[[replicas", "not valid TOML"),
        (b"\xff", "not valid TOML"),
        (b"[[replicas]]\nurll = 'http://h:1'", r"replicas\[0\]\.urll: unknown setting; did you mean url"),
        (
            b"[[replicas]]\nurl = 'http://h:1'\n[[replicas]]\nurl = 'http://h:1'",
            "same engine as replicas",
        ),
        (b"[[replicas]]\nurl = 'h:1'", r"replicas\[0\]\.url: 'h:1' is not an endpoint"),
    ],
)
def test_what_cannot_be_used_is_one_clear_error(content: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(content, is_json=False)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"replicas": {}}', b"[" * 100_000])
def test_json_that_is_no_list_of_replicas_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigError):
        read(content, is_json=True)


def test_a_file_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "replicas.toml"
    whole = "".join(f'[[replicas]]\nurl = "http://10.0.0.{n}:8000"\n' for n in range(1, 6))
    path.write_text(whole[:70])
    states = iter([whole[:70], whole[:140], whole, whole])

    def look(_: Path) -> bytes:
        return next(states, whole).encode()

    async def check() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(file_module, "_read", look)
            async with watching(FileDiscovery(path=str(path), interval_seconds=0.01)) as news:
                first = await anext(news)
                assert isinstance(first, Found)
                assert len(first.replicas) == 5

    run(check())


def test_a_link_that_is_turned_to_another_file_is_followed(tmp_path: Path) -> None:
    """As Kubernetes does with a ConfigMap: same times, same sizes, another folder."""
    for name, host in (("one", "10.0.0.1"), ("two", "10.0.0.2")):
        (tmp_path / name).mkdir()
        written = tmp_path / name / "replicas.toml"
        written.write_text(f'[[replicas]]\nurl = "http://{host}:8000"\n')
        os.utime(written, (1, 1))
    (tmp_path / "data").symlink_to("one")

    async def check() -> None:
        path = tmp_path / "data" / "replicas.toml"
        async with watching(FileDiscovery(path=str(path), interval_seconds=0.01)) as news:
            await until(news, [URL])
            (tmp_path / "new").symlink_to("two")
            (tmp_path / "new").replace(tmp_path / "data")
            await until(news, ["http://10.0.0.2:8000"])

    run(check())


def test_a_file_that_comes_later_is_found_then(tmp_path: Path) -> None:
    path = tmp_path / "replicas.toml"

    async def check() -> None:
        async with watching(FileDiscovery(path=str(path), interval_seconds=0.01)) as news:
            first = await anext(news)
            assert first == Failed(
                f"cannot read '{path}': No such file or directory; write it, or correct discovery.path"
            )
            path.write_text("replicas = []")
            await until(news, [])

    run(check())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "path"),
        ({"path": ""}, "names no file"),
        ({"path": "a\0b"}, "names no file"),
        ({"path": "f", "interval_seconds": 0}, "interval_seconds: 0.0 cannot be used"),
        ({"path": "f", "interval_seconds": float("nan")}, "interval_seconds: nan cannot be used"),
        ({"path": "f", "pathh": "f"}, r"discovery\.pathh: file has no such setting; did you mean path"),
    ],
)
def test_its_own_settings_are_checked(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make("file", settings)
