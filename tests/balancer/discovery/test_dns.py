"""``discovery/dns.py``: what a name stands for, held on to through everything that name servers do."""

import asyncio
from collections.abc import Sequence
from typing import Any

import dns.rcode
import pytest

from balancer.discovery import dns as dns_module
from balancer.discovery.base import Failed, Found, make
from balancer.discovery.dns import DnsDiscovery
from balancer.discovery.resolving import Answer, Unresolved
from balancer.errors import ConfigError
from tests.conformance import discovery as suite
from tests.conformance.discovery import Case, until, watching
from tests.support.name_server import NameServer, name_server
from tests.support.waiting import run

NAME = "vllm.llm.svc"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_module, "MIN_PAUSE", 0.005)
    monkeypatch.setattr(dns_module, "MAX_PAUSE", 0.02)


class Told:
    """A resolver that says what it was told to."""

    def __init__(self) -> None:
        self.addresses: frozenset[str] | None = None

    async def hosts(self, name: str, port: int) -> Answer:
        assert (name, port) == (NAME, 8000)
        if self.addresses is None:
            raise Unresolved("no answer within 2 s")
        return Answer(self.addresses, 0)

    services = hosts


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    resolver = Told()
    monkeypatch.setattr(dns_module, "open_resolver", lambda *_: resolver)

    def set_urls(urls: Sequence[str]) -> None:
        resolver.addresses = frozenset(url.removeprefix("http://") for url in urls)

    return Case(
        make=lambda: DnsDiscovery(host=NAME, port=8000, leave_seconds=0.01),
        set_urls=set_urls,
        break_it=lambda: setattr(resolver, "addresses", None),
    )


test_the_first_list_is_complete_and_can_be_used = suite.test_the_first_list_is_complete_and_can_be_used
test_each_list_replaces_the_one_before = suite.test_each_list_replaces_the_one_before
test_what_cannot_be_told_is_said_and_is_no_empty_list = suite.test_what_cannot_be_told_is_said_and_is_no_empty_list
test_it_can_be_closed_at_any_time = suite.test_it_can_be_closed_at_any_time


def with_server(check: Any) -> None:
    async def begin() -> None:
        async with name_server() as server:
            await check(server)

    run(begin())


def ask(server: NameServer, **settings: Any) -> DnsDiscovery:
    plain = {"host": NAME, "port": 8000} if "srv" not in settings else {}
    fast = {"leave_seconds": 0.01, "grace_seconds": 0.05, "ttl_seconds": 0.01, "timeout_seconds": 1.0}
    return DnsDiscovery(server=server.address, **{**plain, **fast, **settings})


def test_a_name_stands_for_all_its_addresses_however_many() -> None:
    """500 of them fit no datagram: they come by TCP."""

    async def check(server: NameServer) -> None:
        hosts = [f"10.0.{n // 250}.{n % 250}" for n in range(500)]
        server.records[NAME, "A"] = hosts
        async with watching(ask(server)) as news:
            await until(news, [f"http://{host}:8000" for host in hosts])

    with_server(check)


def test_addresses_of_both_kinds_are_the_same_engines() -> None:
    async def check(server: NameServer) -> None:
        server.records |= {(NAME, "A"): ["10.0.0.1"], (NAME, "AAAA"): ["fd00::1"]}
        async with watching(ask(server)) as news:
            await until(news, ["http://10.0.0.1:8000"])
            del server.records[NAME, "A"]
            await until(news, ["http://[fd00::1]:8000"])

    with_server(check)


def test_service_records_tell_hosts_and_ports() -> None:
    async def check(server: NameServer) -> None:
        service = f"_http._tcp.{NAME}"
        server.records[service, "SRV"] = ["0 1 8001 pod-a.llm.", "0 1 8002 pod-b.llm."]
        async with watching(ask(server, srv=service, scheme="https")) as news:
            await until(news, ["https://pod-a.llm:8001", "https://pod-b.llm:8002"])
            server.records[service, "SRV"] = ["0 0 0 ."]  # RFC 2782: decidedly not available here
            await until(news, [])

    with_server(check)


def test_nobody_is_believed_after_the_grace_time_and_not_before() -> None:
    async def check(server: NameServer) -> None:
        server.records[NAME, "A"] = ["10.0.0.1"]
        async with watching(ask(server)) as news:
            await until(news, ["http://10.0.0.1:8000"])
            server.records.clear()
            held = await anext(news)
            assert isinstance(held, Found)
            assert len(held.replicas) == 1
            assert held.reason == f"{NAME} stands for 0 addresses, and 1 that are missing are kept for now"
            await until(news, [])

    with_server(check)


@pytest.mark.parametrize("rcode", [dns.rcode.SERVFAIL, dns.rcode.REFUSED])
def test_a_server_that_cannot_say_changes_nothing(rcode: dns.rcode.Rcode) -> None:
    async def check(server: NameServer) -> None:
        server.records[NAME, "A"] = ["10.0.0.1"]
        async with watching(ask(server, timeout_seconds=0.1)) as news:
            await until(news, ["http://10.0.0.1:8000"])
            server.rcode = rcode
            for _ in range(4):
                told = await anext(news)
                assert isinstance(told, Failed)
                assert f"{NAME} cannot be resolved" in told.reason
            server.rcode = None
            await until(news, ["http://10.0.0.1:8000"])

    with_server(check)


def test_a_server_that_is_silent_is_told_within_its_time() -> None:
    async def check(server: NameServer) -> None:
        server.is_silent = True
        async with watching(ask(server, timeout_seconds=0.05)) as news:
            assert isinstance(await anext(news), Failed)

    with_server(check)


def test_an_answer_holds_as_long_as_it_says() -> None:
    async def check(server: NameServer) -> None:
        server.records[NAME, "A"] = ["10.0.0.1"]
        server.ttl = 3600
        async with watching(ask(server)) as news:
            await until(news, ["http://10.0.0.1:8000"])
            asked = len(server.questions)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(news)
            assert len(server.questions) == asked

    with_server(check)


def test_each_endpoint_has_the_settings_that_all_share() -> None:
    found = DnsDiscovery(
        host=NAME, port=8000, replica={"events": "tcp://{host}:5557", "hash_seed": "0", "data_parallel_size": 2}
    ).endpoints(frozenset({"10.0.0.1:8000", "[fd00::1]:8000"}))
    assert [(each.url, each.events, each.hash_seed, each.data_parallel_size) for each in found] == [
        ("http://10.0.0.1:8000", "tcp://10.0.0.1:5557", "0", 2),
        ("http://[fd00::1]:8000", "tcp://[fd00::1]:5557", "0", 2),
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give either host"),
        ({"host": NAME}, "port: it goes with host"),
        ({"host": NAME, "port": 0}, "port: it goes with host"),
        ({"host": NAME, "port": 1, "srv": "s"}, "give either host"),
        ({"srv": "s", "port": 1}, "port: it goes with host"),
        ({"srv": "s", "scheme": "ftp"}, "scheme: 'ftp' is neither"),
        ({"srv": "s", "server": "ns"}, "server: 'ns' is no name server"),
        ({"srv": "s", "server": "10.0.0.1:x"}, "server: '10.0.0.1:x' is no name server"),
        ({"srv": "s", "leave_seconds": -1}, "leave_seconds: -1.0 cannot be used"),
        ({"srv": "s", "replica": {"url": "http://h:1"}}, "replica.url: it is what the name service tells"),
        ({"srv": "s", "replica": {"hash_sed": "1"}}, "hash_sed: unknown setting; did you mean hash_seed"),
    ],
)
def test_its_own_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make("dns", settings)


def test_without_dnspython_what_needs_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_module, "has_dnspython", lambda: False)
    with pytest.raises(ConfigError, match=r"srv and server need dnspython; install kvlb\[dns\]"):
        make("dns", {"srv": "s"})
    make("dns", {"host": NAME, "port": 8000})
