"""Questions to a name service.

Knows records, their time to live and two ways to ask: dnspython, where it is installed, and the operating system, which tells
no time to live and has no SRV records. Never knows what the addresses are for. Of a name with IPv4 and IPv6 addresses the first
kind alone counts: they are two ways to the same engines, not twice as many of them.
"""

import asyncio
import importlib.util
import ipaddress
import socket
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

EXTRA: Final = "kvlb[dns]"


class Answer(msgspec.Struct, frozen=True):
    """What the name stands for: ``host:port`` of each; empty where it is known to be nobody. ``ttl`` is in seconds."""

    addresses: frozenset[str]
    ttl: float


class Unresolved(Exception):
    """Nobody has answered, or only to say that it could not."""


class Resolver(Protocol):
    """Asks. Raises ``Unresolved``."""

    async def hosts(self, name: str, port: int) -> Answer:
        """The addresses of a name (A, else AAAA), each with this port."""
        ...

    async def services(self, name: str) -> Answer:
        """The hosts and ports of a service (SRV)."""
        ...


def has_dnspython() -> bool:
    """Whether there is a choice."""
    return importlib.util.find_spec("dns") is not None


def open_resolver(server: str | None, timeout: float, ttl: float) -> Resolver:
    """The best there is; ``ttl`` counts where the operating system does not tell it."""
    return DnsResolver(server, timeout) if has_dnspython() else SystemResolver(timeout, ttl)


class SystemResolver:
    """Asks the operating system, in a thread."""

    def __init__(self, timeout: float, ttl: float) -> None:
        self._timeout = timeout
        self._ttl = ttl

    async def hosts(self, name: str, port: int) -> Answer:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except TimeoutError as error:
            raise Unresolved(f"no answer within {self._timeout:g} s") from error
        except socket.gaierror as error:
            if error.errno in {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}:
                return Answer(frozenset(), self._ttl)
            raise Unresolved(error.strerror) from error
        except (OSError, UnicodeError) as error:
            raise Unresolved(str(error)) from error
        for family in (socket.AF_INET, socket.AF_INET6):
            hosts = {str(address[0]) for kind, _, _, _, address in found if kind == family}
            if hosts:
                return Answer(_with_port(hosts, port), self._ttl)
        return Answer(frozenset(), self._ttl)

    async def services(self, name: str) -> Answer:
        raise Unresolved(f"SRV records need dnspython; install {EXTRA}")


class DnsResolver:
    """Asks name servers, those of the system or ``server`` (``host`` or ``host:port``)."""

    def __init__(self, server: str | None, timeout: float) -> None:
        from dns.asyncresolver import Resolver as AsyncResolver  # noqa: PLC0415 - optional
        from dns.nameserver import Do53Nameserver  # noqa: PLC0415

        self._resolver = AsyncResolver(configure=server is None)
        self._resolver.lifetime = timeout
        if server is not None:
            host, port = split_server(server)
            self._resolver.nameservers = [Do53Nameserver(host, port)]

    async def hosts(self, name: str, port: int) -> Answer:
        four = await self._ask(name, "A")
        if four.addresses:
            return Answer(_with_port(four.addresses, port), four.ttl)
        six = await self._ask(name, "AAAA")
        return Answer(_with_port(six.addresses, port), min(four.ttl, six.ttl))

    async def services(self, name: str) -> Answer:
        return await self._ask(name, "SRV")

    async def _ask(self, name: str, kind: str) -> Answer:
        from dns.exception import DNSException  # noqa: PLC0415
        from dns.resolver import NXDOMAIN, NoAnswer  # noqa: PLC0415

        try:
            answer = await self._resolver.resolve(name, kind, search=True)
        except (NXDOMAIN, NoAnswer):
            return Answer(frozenset(), 0)
        except (DNSException, OSError, UnicodeError) as error:
            raise Unresolved(" ".join(str(error).split()) or type(error).__name__) from error
        if kind == "SRV":
            found = {_joined(str(each.target).rstrip("."), each.port) for each in answer if str(each.target) != "."}
        else:
            found = {each.address for each in answer}
        return Answer(frozenset(found), answer.chaining_result.minimum_ttl)


def split_server(server: str) -> tuple[str, int]:
    """Host and port of a name server.

    Raises:
        ValueError: it is no IP address with a port or without.
    """
    host, colon, port = server.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port = server, "53"
    host = host.strip("[]")
    ipaddress.ip_address(host)
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{port} is no port")
    return host, int(port)


def _with_port(hosts: Iterable[str], port: int) -> frozenset[str]:
    return frozenset(_joined(host, port) for host in hosts)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
