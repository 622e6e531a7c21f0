"""``epp/places.py``: proxies are told IPs, whatever endpoints are called in the settings."""

import asyncio
from typing import Any

import pytest

from balancer.epp import places as module
from balancer.epp.destinations import Place
from balancer.epp.places import Places
from tests.support.waiting import eventually, run


def test_what_is_an_ip_is_known_at_once() -> None:
    async def check() -> None:
        places = Places()
        assert places.known("http://10.0.0.1:8000") == Place("10.0.0.1", 8000)
        assert await places.of("https://[fd00::1]") == Place("fd00::1", 443)
        assert await places.of("http://localhost:1") == Place("127.0.0.1", 1)
        await places.close()

    run(check())


def test_names_are_asked_for_and_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    answers: list[list[str] | None] = [["10.0.0.3", "10.0.0.2"], ["10.0.0.4", "10.0.0.2"], None, ["10.0.0.5"]]

    async def check() -> None:
        async def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
            assert (host, port) == ("vllm-0.vllm", 8000)
            ips = answers.pop(0) if len(answers) > 1 else answers[0]
            if ips is None:
                raise OSError("no such host")
            return [(0, 0, 0, "", (ip, port)) for ip in ips]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        places, endpoint = Places(), "http://vllm-0.vllm:8000"
        assert places.known(endpoint) is None
        assert await places.of(endpoint) == Place("10.0.0.2", 8000)  # one of them, and then always that one
        await eventually(lambda: places.known(endpoint) == Place("10.0.0.5", 8000))
        await places.close()

    run(check())


def test_who_has_no_address_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
            raise OSError("no such host")

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        places = Places()
        assert await places.of("http://nobody:8000") is None
        await places.close()

    run(check())
