"""``discovery/namesakes.py``: one engine under two names is told, once, and whatever cannot be known is passed over."""

import asyncio
from collections.abc import Mapping

import pytest

from balancer.discovery import namesakes
from balancer.discovery.namesakes import Namesakes, by_the_system
from tests.support.gateways import gateway
from tests.support.upstream import upstream
from tests.support.waiting import eventually, run

NAMES = {"a": {"10.0.0.1"}, "b": {"10.0.0.1", "fe80::7"}, "c": {"10.0.0.3"}, "10.0.0.1": {"10.0.0.1"}, "d": {"fe80::7"}}


def looked(*lists: list[str], names: Mapping[str, set[str]] = NAMES) -> None:
    async def lookup(name: str) -> frozenset[str]:
        if name == "slow":
            await asyncio.Event().wait()
        if name not in names:
            raise OSError("no such name")
        return frozenset(names[name])

    async def check() -> None:
        made = Namesakes(lookup)
        for urls in lists:
            await made.look(urls)

    run(check())


def test_two_names_of_one_address_are_told_with_both(caplog: pytest.LogCaptureFixture) -> None:
    looked(["http://c:1", "http://a:1", "http://b:1"])
    (line,) = caplog.messages
    assert line.startswith("http://a:1 and http://b:1 are one address, 10.0.0.1:1: ")


def test_a_name_and_an_address_are_told(caplog: pytest.LogCaptureFixture) -> None:
    looked(["http://10.0.0.1:1", "https://a:1"])
    assert len(caplog.messages) == 1


def test_an_address_of_the_other_family_is_one_too(caplog: pytest.LogCaptureFixture) -> None:
    looked(["http://b:1", "http://d:1"])
    assert "[fe80::7]:1" in caplog.messages[0]


def test_it_is_told_once_and_a_new_pair_anew(caplog: pytest.LogCaptureFixture) -> None:
    pair = ["http://a:1", "http://b:1"]
    looked(pair, pair, [*pair, "http://d:1"])
    assert len(caplog.messages) == 2


def test_other_ports_are_other_engines(caplog: pytest.LogCaptureFixture) -> None:
    looked(["http://a:1", "http://b:2", "http://c:1", "http://a", "https://b"])
    assert not caplog.messages


def test_what_cannot_be_looked_up_is_passed_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namesakes, "PATIENCE_SECONDS", 0.01)
    looked(["http://none:1", "http://nobody:1", "http://slow:1", "http://a:1", "http://b:1"])
    assert len(caplog.messages) == 1


def test_the_gateway_looks_at_what_it_is_given_and_what_is_found(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        assert "127.0.0.1" in await by_the_system("localhost")
        async with upstream() as replica:
            other = replica.url.replace("127.0.0.1", "127.0.0.1.nip.invalid")
            async with gateway([replica.url, other], wait=False) as front:
                looks: list[list[str]] = []

                async def lookup(name: str) -> frozenset[str]:
                    looks.append([name])
                    return frozenset({"127.0.0.1"})

                front.service._namesakes._lookup = lookup
                front.service._set_endpoints(front.service.settings.replicas)
                await eventually(lambda: any("are one address" in line for line in caplog.messages))

    run(check())
