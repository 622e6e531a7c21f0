"""Whether two endpoints are one engine under two names.

Knows what names stand for, once they have been looked up, and who has been told of. Spellings of one address are refused with
the settings (``balancer.settings.check_replicas``); what only a name server can tell is said in the log and refused nowhere:
behind an ingress, one address has an engine for each name.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from balancer.addresses import place, shown

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 5.0
"""For one name. What is not known by then, or is unknown, is passed over: probes tell of it."""

Lookup = Callable[[str], Awaitable[frozenset[str]]]
"""Name -> its addresses. Raises ``OSError``."""


async def by_the_system(name: str) -> frozenset[str]:
    """As the operating system has them."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return frozenset(str(address[0]) for *_, address in found)


class Namesakes:
    """Looks at each list of endpoints that it is shown. Each pair is told once."""

    def __init__(self, lookup: Lookup = by_the_system) -> None:
        self._lookup = lookup
        self._told: set[tuple[str, str]] = set()
        self._task: asyncio.Task[None] | None = None

    def see(self, urls: Iterable[str]) -> None:
        """Look at these, and no longer at those before."""
        self.stop()
        self._task = asyncio.create_task(self.look(list(urls)))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def look(self, urls: list[str]) -> None:
        """Warn of those that stand for one address."""
        places = {url: place(url) for url in urls}
        hosts = list({host for host, _ in places.values()})
        addresses = dict(zip(hosts, await asyncio.gather(*map(self._addresses, hosts)), strict=True))
        first: dict[tuple[str, int], str] = {}
        for url, (host, port) in places.items():
            for address in sorted(addresses[host]):
                other = first.setdefault((address, port), url)
                if other != url and (other, url) not in self._told:
                    self._told.add((other, url))
                    log.warning(
                        "%s and %s are one address, %s: an engine under two names is sent twice its share, and its cache is "
                        "counted twice; name it once, unless something there tells the names apart (an ingress)",
                        *(other, url, shown(address, port)),
                    )
                    break

    async def _addresses(self, host: str) -> frozenset[str]:
        with contextlib.suppress(OSError, UnicodeError, TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await self._lookup(host)
        return frozenset({host})
