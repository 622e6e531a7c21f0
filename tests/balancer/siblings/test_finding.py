"""``balancer/siblings/finding.py``: siblings by a name, as a name server tells them."""

import logging

import dns.rcode
import pytest

from balancer.settings import convert
from balancer.siblings import finding
from balancer.siblings.finding import Finder
from tests.support.name_server import name_server
from tests.support.waiting import beside, eventually, run

NAME = "kvlb-gateways.default.svc"


def finder(server: str, **more: object) -> Finder:
    section = {"host": NAME, "port": 8080, "server": server, "timeout_seconds": 0.5, **more}
    return Finder(convert({"siblings": section}).siblings)


async def follow(found: Finder, lists: list[list[str]]) -> None:
    async for urls in found.watch():
        lists += [urls]  # each as it comes


def test_fixed_addresses_are_all_there_is_to_know() -> None:
    async def scenario() -> None:
        fixed = Finder(convert({"siblings": {"urls": ["http://a", "http://b"]}}).siblings)
        assert await fixed.once() == ["http://a", "http://b"]
        assert [each async for each in fixed.watch()] == [["http://a", "http://b"]]

    run(scenario())


def test_a_name_stands_for_all_of_them_and_follows_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "LEAST_PAUSE", 0.02)
    monkeypatch.setattr(finding, "LEAVE_SECONDS", 0.1)

    async def scenario() -> None:
        async with name_server() as server:
            server.records[NAME, "A"] = ["10.0.0.1", "10.0.0.2"]
            found = finder(server.address, scheme="https")
            assert await found.once() == ["https://10.0.0.1:8080", "https://10.0.0.2:8080"]
            lists: list[list[str]] = []
            async with beside(follow(found, lists)):
                await eventually(lambda: lists)
                server.records[NAME, "A"] = ["10.0.0.2", "10.0.0.3"]
                await eventually(lambda: lists[-1] == ["https://10.0.0.2:8080", "https://10.0.0.3:8080"])
                assert any(len(each) == 3 for each in lists)  # one that is missing counts for a while
                server.rcode = dns.rcode.SERVFAIL
                await eventually(lambda: found.problem is not None)
                assert NAME in str(found.problem)
                server.rcode = None
                await eventually(lambda: found.problem is None)
                assert len(lists[-1]) == 2

    run(scenario())


def test_a_name_that_stands_for_nobody_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(finding, "LEAST_PAUSE", 0.01)
    monkeypatch.setattr(finding, "TTL_SECONDS", 0.01)
    caplog.set_level(logging.INFO, "balancer.siblings")

    async def scenario() -> None:
        async with name_server() as server:
            found = finder(server.address)
            lists: list[list[str]] = []
            async with beside(follow(found, lists)):
                await eventually(lambda: len(lists) > 2)
                assert lists[-1] == []
                assert f"{NAME} stands for no address" in str(found.problem)
                server.rcode = dns.rcode.SERVFAIL  # and then it is told in other words, which is no news
                await eventually(lambda: "cannot be resolved" in str(found.problem))
                server.rcode = None
                server.records[NAME, "A"] = ["10.0.0.1"]
                await eventually(lambda: lists[-1])
                assert found.problem is None
        first, then = [(each.levelno, each.getMessage()) for each in caplog.records]
        assert first[0] == logging.WARNING
        assert f"{NAME} stands for no address: there is no such name" in first[1]
        assert then == (logging.INFO, f"siblings: {NAME} stands for 1 address")

    run(scenario())


def test_at_the_start_nobody_waits_long_for_a_name_server() -> None:
    async def scenario() -> None:
        async with name_server() as server:
            server.is_silent = True
            found = finder(server.address)
            assert await found.once() == []
            assert "cannot be resolved" in str(found.problem)

    run(scenario())
