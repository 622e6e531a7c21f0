"""What listens: the front with all it needs, and how it ends.

Knows the order in which its parts begin and end. Never knows whether the brain is in this process.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Protocol

from balancer.brain import Brain
from balancer.errors import RequestError
from balancer.gateway import headers
from balancer.gateway.access import Access
from balancer.gateway.front import Front
from balancer.gateway.proxy import Proxy
from balancer.gateway.refusals import refuse
from balancer.header_names import REQUEST_ID
from balancer.http.client import HttpClient
from balancer.http.messages import Response
from balancer.http.server import App, HttpServer, ServerLimits
from balancer.key_source import Watched, read_keys
from balancer.observer import Observer
from balancer.request_counts import RequestCounts
from balancer.settings import Settings
from balancer.tls import ReplicaTls, ServerTls
from balancer.upstream import KEEPALIVE_SECONDS

log = logging.getLogger(__name__)


class Stopping(Protocol):
    """How urgently the process has been asked to stop (``balancer.commands.loop.StopSignals``)."""

    asked: asyncio.Event
    soon: asyncio.Event
    now: asyncio.Event


class FrontServer:
    """A server before a brain. Make it in a running loop; ``close`` it once it has been drained."""

    def __init__(
        self,
        brain: Brain,
        counts: RequestCounts,
        observer: Observer,
        access: Access,
        control: str,
        upstream_tls: ssl.SSLContext,
        around: Callable[[App], App] = lambda app: app,
    ) -> None:
        """``control`` is the address of the control plane; ``around`` may answer before everything else does."""
        settings = brain.settings
        self._brain = brain
        self._client = HttpClient(KEEPALIVE_SECONDS, upstream_tls)
        proxy = Proxy(brain, counts, self._client, access, observer)
        self._front = Front(proxy, self._client, control, access, settings.cors)
        self.server = HttpServer(
            around(self._front),
            _refuse_unread,
            ServerLimits(max_body_bytes=settings.server.max_body_bytes),
            access.caller,
        )

    async def close(self) -> None:
        await self._client.close()

    async def drain(self, stop: Stopping | None) -> None:
        """End what is under way: first nobody new is invited, then nobody is let in, at last everyone is told to go."""
        brain, server = self._brain, self.server
        settings = brain.settings.server
        was_ready = brain.is_ready  # or nobody sends it anything as it is
        brain.is_draining = server.is_draining = True
        if was_ready and stop is not None and stop.asked.is_set() and not stop.soon.is_set():
            log.info(
                "stopping: not ready from now on, and closed to new requests in %g s", settings.drain_grace_seconds
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.drain_grace_seconds):
                    await stop.soon.wait()
        log.info("stopping: %d requests are under way", brain.open_leases)
        await self._end(stop)

    async def retire(self, stop: Stopping) -> None:
        """Leave the socket to others who listen at it, end what is under way, and invite clients to connect anew.

        A connection that is closed while its client is just sending cannot tell it that nothing has been done: whoever has
        nothing under way keeps his for a while, and is told with his next answer.
        """
        brain, server = self._brain, self.server
        server.is_draining = True
        server.refuse_connections()
        log.info("another process takes over: %d requests are under way", brain.open_leases)
        waits = [asyncio.create_task(server.wait_empty()), asyncio.create_task(stop.asked.wait())]
        grace = brain.settings.server.drain_grace_seconds
        await asyncio.wait(waits, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await self._end(stop)

    async def _end(self, stop: Stopping | None) -> None:
        server = self.server
        self._front.end()
        ending = asyncio.create_task(server.stop(self._brain.settings.server.drain_timeout_seconds))
        hurry = asyncio.create_task(stop.now.wait() if stop is not None else asyncio.Event().wait())
        await asyncio.wait([ending, hurry], return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        server.abort()
        await ending


def _refuse_unread(error: RequestError) -> Response:
    """The answer to what could not be read as a request, and so has no id of its own."""
    return refuse(error, (REQUEST_ID.decode(), headers.request_id({})))


def sources(settings: Settings, access: Access, tls: ServerTls | None, upstream: ReplicaTls) -> list[Watched]:
    """What is read again when its files change, and on SIGHUP."""

    def reload_keys() -> None:
        access.keys = read_keys(settings.auth)

    found = []
    if settings.auth.keys_file is not None:
        found.append(Watched([settings.auth.keys_file], reload_keys, "auth.keys_file"))
    if tls is not None:
        found.append(Watched(tls.paths(), tls.reload, "tls.cert_file"))
    if upstream.paths():
        found.append(Watched(upstream.paths(), upstream.reload, "upstream.ca_file, upstream.cert_file"))
    return found
