"""Where each endpoint listens, as a proxy can be told: by IP.

Knows URLs of endpoints, and asks name servers for those that are named. What an endpoint's name stands for is asked again after
a while; until there is an answer, the last one holds.
"""

import asyncio
import logging
import socket
from typing import Final

from balancer.addresses import place, shown
from balancer.epp.destinations import Place, read_place

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 10.0
"""How long the answer of a name server is used before it is asked again."""


class Places:
    """Make it in a running loop; ``close`` ends what is under way."""

    def __init__(self) -> None:
        self._known: dict[str, Place] = {}
        self._asked_at: dict[str, float] = {}  # of those that are names
        self._asking: dict[str, asyncio.Task[Place | None]] = {}
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<Places of {len(self._known)} endpoints>"

    def known(self, endpoint: str) -> Place | None:
        """Where it listens, as far as that is known; one that is named is asked for in passing."""
        found = self._known.get(endpoint)
        if found is None:
            found = read_place(shown(*place(endpoint)))
            if found is not None:
                self._known[endpoint] = found
                return found
        elif endpoint not in self._asked_at:
            return found
        if self._loop.time() - self._asked_at.get(endpoint, -FRESH_SECONDS) >= FRESH_SECONDS:
            self._ask(endpoint)
        return self._known.get(endpoint)

    async def of(self, endpoint: str) -> Place | None:
        """The same, after an answer where there has been none; None where there is none."""
        found = self.known(endpoint)
        if found is None:
            found = await asyncio.shield(self._ask(endpoint))
        return found

    async def close(self) -> None:
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _ask(self, endpoint: str) -> "asyncio.Task[Place | None]":
        asking = self._asking.get(endpoint)
        if asking is None:
            asking = self._asking[endpoint] = asyncio.create_task(self._resolve(endpoint))
            asking.add_done_callback(lambda _: self._asking.pop(endpoint, None))
        return asking

    async def _resolve(self, endpoint: str) -> Place | None:
        host, port = place(endpoint)
        try:
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            log.warning("%s: no proxy can be told of it: %s", endpoint, error)
            return None
        finally:
            self._asked_at[endpoint] = self._loop.time()
        ips = {str(sockaddr[0]) for *_, sockaddr in found}
        known = self._known.get(endpoint)
        if known is None or known.ip not in ips:  # of several, the one that was named before
            known = self._known[endpoint] = Place(min(ips), port)
        return known
