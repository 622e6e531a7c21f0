"""Where the siblings are: fixed addresses, or those that a name stands for.

Knows a name service and clocks. Which addresses an uneven series of answers stands for is decided by
``balancer.discovery.steady``. Never knows who is there.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from typing import Final

from balancer.discovery.resolving import EXTRA, Resolver, Unresolved, has_dnspython, open_resolver, split_server
from balancer.discovery.steady import SteadyAddresses
from balancer.errors import ConfigError
from balancer.siblings.settings import SiblingSettings
from balancer.words import counted

log = logging.getLogger(__name__)

TTL_SECONDS: Final = 5.0
"""How long an answer holds where nothing tells it."""

LEAVE_SECONDS: Final = 5.0
GRACE_SECONDS: Final = 60.0
"""How long one counts that is no longer named, and all of them when none is."""

LEAST_PAUSE: Final = 1.0
MOST_PAUSE: Final = 30.0


class Finder:
    """Finds the addresses. ``problem`` is why there are none, or why the last ones may be out of date, for people.

    A problem is logged when it begins, and so is its end.
    """

    def __init__(self, settings: SiblingSettings, resolver: Resolver | None = None) -> None:
        """Raises ``ConfigError`` where the name server cannot be asked."""
        _check_server(settings)
        self.problem: str | None = None
        self._settings = settings
        self._resolver = resolver

    async def once(self) -> list[str]:
        """Those of this moment; none where nobody can say, which ``problem`` then tells."""
        if self._settings.host is None:
            return list(self._settings.urls)
        try:
            answer = await self._open().hosts(self._settings.host, self._settings.port or 0)
        except Unresolved as error:
            self._complain(f"{self._settings.host} cannot be resolved: {error}")
            return []
        self._answered(answer.addresses)
        return self._urls(answer.addresses)

    async def watch(self) -> AsyncIterator[list[str]]:
        """Complete lists, as they change or not; it ends where they never do."""
        settings = self._settings
        if settings.host is None:
            yield list(settings.urls)
            return
        resolver, loop = self._open(), asyncio.get_running_loop()
        steady = SteadyAddresses(LEAVE_SECONDS, GRACE_SECONDS)
        failures = 0
        while True:
            try:
                answer = await resolver.hosts(settings.host, settings.port or 0)
            except Unresolved as error:
                failures += 1
                self._complain(f"{settings.host} cannot be resolved: {error}; those that were found last are kept")
                pause = min(MOST_PAUSE, LEAST_PAUSE * 2 ** min(failures - 1, 10)) * (0.5 + random.random() / 2)
            else:
                failures = 0
                self._answered(answer.addresses)
                yield self._urls(steady.answered(answer.addresses, loop.time()))
                pause = answer.ttl if answer.addresses else TTL_SECONDS
                pause = max(LEAST_PAUSE, min(pause, steady.settled_at - loop.time(), MOST_PAUSE))
            await asyncio.sleep(pause)

    def _answered(self, addresses: frozenset[str]) -> None:
        if not addresses:
            self._complain(f"{self._settings.host} stands for no address: there is no such name, or nobody behind it")
            return
        if self.problem is not None:
            log.info("siblings: %s stands for %s", self._settings.host, counted(len(addresses), "address", "addresses"))
        self.problem = None

    def _complain(self, problem: str) -> None:
        if self.problem is None:  # name servers tell the same in other words each time
            log.warning("siblings: %s", problem)
        self.problem = problem

    def _open(self) -> Resolver:
        if self._resolver is None:
            self._resolver = open_resolver(self._settings.server, self._settings.timeout_seconds, TTL_SECONDS)
        return self._resolver

    def _urls(self, addresses: frozenset[str]) -> list[str]:
        return [f"{self._settings.scheme}://{address}" for address in sorted(addresses)]


def _check_server(settings: SiblingSettings) -> None:
    """Raise ``ConfigError`` unless the name server can be asked."""
    if settings.server is None:
        return
    if not has_dnspython():
        raise ConfigError(f"siblings.server: needs dnspython; install {EXTRA}")
    try:
        split_server(settings.server)
    except ValueError as error:
        raise ConfigError(
            f"siblings.server: '{settings.server}' is no name server: {error}; give one like 10.96.0.10:53"
        ) from None
