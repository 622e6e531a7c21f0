"""``discovery/base.py``: a discovery is found by its name, and says what is wrong with its settings."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from balancer.discovery.base import Failed, Found, make, names, read_replicas
from balancer.discovery.static import Static
from balancer.errors import ConfigError
from tests.conformance.discovery import watching
from tests.support.waiting import run


def test_the_discoveries_of_the_documentation_exist() -> None:
    assert {"static", "file", "dns"} <= set(names())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nope", r"discovery\.name: there is no discovery 'nope'; there are: dns, file, kubernetes, static"),
        ("balancer.core:Candidate", r"is no discovery; it must be a msgspec.Struct with a method watch"),
        ("no.such.module:Mine", r"discovery\.name: cannot load"),
    ],
)
def test_what_cannot_be_used_is_one_clear_error(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name)


def test_static_finds_nobody_and_ends() -> None:
    async def check() -> list[Found | Failed]:
        async with watching(make("static")) as news:
            return [each async for each in news]

    (only,) = run(check())
    assert isinstance(only, Found)
    assert only.replicas == ()
    assert make("static") == Static()


def test_one_of_ones_own_is_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_discovery.py").write_text(
        "import msgspec\n"
        "class Mine(msgspec.Struct, frozen=True):\n"
        "    where: str = ''\n"
        "    async def watch(self):\n"
        "        yield None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = make("own_discovery:Mine", {"where": "here"})
    assert isinstance(made.watch(), AsyncIterator)


def test_endpoints_are_checked_as_those_of_the_settings() -> None:
    assert [each.url for each in read_replicas(["http://a:1/", {"url": "http://b:1"}])] == ["http://a:1", "http://b:1"]
    with pytest.raises(ConfigError, match=r"replicas\[0\]\.url: 'a' is not an endpoint"):
        read_replicas(["a"])
    with pytest.raises(ConfigError, match=r"replicas\[0\]: expected `object`, got `int`"):
        read_replicas([1])


@pytest.mark.parametrize(
    "section", [{"name": "kubernetes", "selector": "app=vllm"}, {"name": "dns", "host": "engines", "port": 8000}]
)
def test_what_all_endpoints_share_is_named_as_the_settings_name_it(section: dict[str, Any]) -> None:
    settings = {key: value for key, value in section.items() if key != "name"}
    with pytest.raises(ConfigError) as told:
        make(section["name"], {**settings, "replica": {"event": "tcp://{host}:5557"}})
    assert str(told.value).startswith("discovery.replica.event: unknown setting; did you mean events?")
