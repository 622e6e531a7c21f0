"""Endpoints from a name service: a name that stands for all of them, as that of a headless service in Kubernetes does.

Knows how often to ask and what answers mean. Which addresses an uneven series of answers stands for is decided by
``balancer.discovery.steady``. An answer that says nobody is there is an answer; none at all changes nothing.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from balancer.discovery.base import Failed, Found, check_shared, discovery, read_replicas, with_host
from balancer.discovery.resolving import EXTRA, Answer, Resolver, Unresolved, has_dnspython, open_resolver, split_server
from balancer.discovery.steady import SteadyAddresses
from balancer.errors import ConfigError
from balancer.settings import ReplicaSettings
from balancer.words import counted

MIN_PAUSE: Final = 1.0
"""Seconds between two questions, should a record live less long."""

MAX_PAUSE: Final = 30.0
"""Seconds after which a name service that failed is asked again, at the most."""


@discovery("dns")
class DnsDiscovery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either ``host`` and ``port``, or ``srv``: the name of a service, whose records tell hosts and ports."""

    host: str | None = None
    port: int | None = None
    srv: str | None = None
    scheme: str = "http"
    server: str | None = None
    """The name server to ask, such as 10.96.0.10:53; those of the system without it."""
    timeout_seconds: float = 2.0
    ttl_seconds: float = 5.0
    """How long an answer holds where nothing tells it: without dnspython, and when nobody is there."""
    leave_seconds: float = 5.0
    """How long an address that is no longer answered still counts."""
    grace_seconds: float = 60.0
    """How long all of them count when none is answered any more."""
    replica: dict[str, Any] = {}
    """Further settings of each endpoint, as in ``[[replicas]]``; ``{host}`` stands for its host."""

    def __post_init__(self) -> None:
        if (self.host is None) == (self.srv is None):
            raise ValueError("give either host (with port) or srv")
        if (self.host is None) != (self.port is None) or (self.port is not None and not 0 < self.port < 65536):
            raise ValueError("port: it goes with host, and is 1 to 65535; SRV records tell theirs")
        if self.scheme not in {"http", "https"}:
            raise ValueError(f"scheme: {self.scheme!a} is neither http nor https")
        if not has_dnspython() and (self.srv is not None or self.server is not None):
            raise ValueError(f"srv and server need dnspython; install {EXTRA}")
        if self.server is not None:
            try:
                split_server(self.server)
            except ValueError as error:
                raise ValueError(
                    f"server: {self.server!a} is no name server: {error}; give one like 10.96.0.10:53"
                ) from None
        for name in ("timeout_seconds", "ttl_seconds", "leave_seconds", "grace_seconds"):
            if not 0 < getattr(self, name) < 86_400:
                raise ValueError(f"{name}: {getattr(self, name)} cannot be used; give a number of seconds above 0")
        if "url" in self.replica:
            raise ValueError("replica.url: it is what the name service tells; leave it out")
        check_shared(self._entries(frozenset(["192.0.2.1:1"])))

    async def watch(self) -> AsyncIterator[Found | Failed]:
        resolver = open_resolver(self.server, self.timeout_seconds, self.ttl_seconds)
        steady = SteadyAddresses(self.leave_seconds, self.grace_seconds)
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            try:
                answer = await self._ask(resolver)
            except Unresolved as error:
                failures += 1
                yield Failed(f"{self.srv or self.host} cannot be resolved: {error}; what was found last is kept")
                pause = min(MAX_PAUSE, MIN_PAUSE * 2 ** min(failures - 1, 10)) * (0.5 + random.random() / 2)
            else:
                failures = 0
                kept = steady.answered(answer.addresses, loop.time())
                try:
                    yield Found(self.endpoints(kept), self._told(len(answer.addresses), len(kept)))
                except ConfigError as error:
                    yield Failed(f"{self.srv or self.host}: {error}")
                pause = answer.ttl if answer.addresses else self.ttl_seconds
                pause = max(MIN_PAUSE, min(pause, steady.settled_at - loop.time()))
            await asyncio.sleep(pause)

    async def _ask(self, resolver: Resolver) -> Answer:
        if self.srv is not None:
            return await resolver.services(self.srv)
        assert self.host is not None
        assert self.port is not None
        return await resolver.hosts(self.host, self.port)

    def _told(self, answered: int, kept: int) -> str:
        held = f", and {kept - answered} that are missing are kept for now" if kept > answered else ""
        return f"{self.srv or self.host} stands for {counted(answered, 'address', 'addresses')}{held}"

    def endpoints(self, addresses: frozenset[str]) -> tuple[ReplicaSettings, ...]:
        """The endpoints at these addresses (``host:port``), with the settings that all of them share.

        Raises:
            ConfigError: ``replica`` has a setting that cannot be used.
        """
        return read_replicas(self._entries(addresses))

    def _entries(self, addresses: frozenset[str]) -> list[dict[str, Any]]:
        return [
            {**with_host(self.replica, address.rpartition(":")[0]), "url": f"{self.scheme}://{address}"}
            for address in sorted(addresses)
        ]
