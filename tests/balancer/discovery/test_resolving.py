"""``discovery/resolving.py``: the operating system's answers mean the same as a name server's."""

import asyncio
import socket
from typing import Any

import pytest

from balancer.discovery.resolving import (
    Answer,
    DnsResolver,
    SystemResolver,
    Unresolved,
    open_resolver,
    split_server,
)
from tests.support.waiting import run

SIX = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 8000, 0, 0))
FOUR = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 8000))


def ask(monkeypatch: pytest.MonkeyPatch, answer: Any) -> Answer:
    async def begin() -> Answer:
        async def getaddrinfo(*_: object, **__: object) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        return await SystemResolver(timeout=2, ttl=7).hosts("name", 8000)

    return run(begin())


def test_the_system_tells_addresses_of_one_kind_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, [SIX, FOUR, FOUR]) == Answer(frozenset({"10.0.0.1:8000"}), 7)
    assert ask(monkeypatch, [SIX]) == Answer(frozenset({"[fd00::1]:8000"}), 7)
    assert ask(monkeypatch, []) == Answer(frozenset(), 7)


def test_a_name_that_is_not_there_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, socket.gaierror(socket.EAI_NONAME, "unknown")) == Answer(frozenset(), 7)


@pytest.mark.parametrize(
    "error",
    [socket.gaierror(socket.EAI_AGAIN, "try again"), TimeoutError(), OSError("x"), UnicodeError("label too long")],
)
def test_a_system_that_cannot_say_is_no_answer(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(Unresolved):
        ask(monkeypatch, error)


def test_the_system_has_no_service_records() -> None:
    with pytest.raises(Unresolved, match=r"install kvlb\[dns\]"):
        run(SystemResolver(2, 7).services("s"))


def test_dnspython_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_resolver("10.96.0.10", 2, 5), DnsResolver)
    monkeypatch.setattr("balancer.discovery.resolving.has_dnspython", lambda: False)
    assert isinstance(open_resolver(None, 2, 5), SystemResolver)


@pytest.mark.parametrize("name", ["a" * 64 + ".x", "a..b", ""])
def test_a_name_that_cannot_be_asked_for_is_no_answer(name: str) -> None:
    with pytest.raises(Unresolved):
        run(DnsResolver("127.0.0.1:1", 0.1).hosts(name, 8000))


@pytest.mark.parametrize(
    ("server", "parts"),
    [
        ("10.0.0.1", ("10.0.0.1", 53)),
        ("10.0.0.1:5353", ("10.0.0.1", 5353)),
        ("fd00::1", ("fd00::1", 53)),
        ("[fd00::1]:5353", ("fd00::1", 5353)),
    ],
)
def test_a_server_is_an_address_with_a_port_or_without(server: str, parts: tuple[str, int]) -> None:
    assert split_server(server) == parts


@pytest.mark.parametrize("server", ["", "ns.example", "10.0.0.1:0", "10.0.0.1:70000", "10.0.0.1:", "[fd00::1"])
def test_what_is_no_server_is_refused(server: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        split_server(server)
