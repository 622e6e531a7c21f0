"""An HTTP/1.1 client of little cost: connections are kept, as many as there are requests under way.

Knows addresses and connections that can be used again. Never knows whom it asks or why, and follows nothing. A kept connection
that its other side closes just as it is used (it may, at any time: RFC 9112, section 9.3) costs a second try, never a failure.
"""

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

from balancer.http.exchange import Limits, NotConnected, NotConnectedInTime, Receiver, Unanswered, UpstreamConnection
from balancer.http.messages import Outgoing
from balancer.http.reasons import reason

UNIX: Final = "unix:"
"""Begins the address of a socket in the file system, such as unix:/run/kvlb/control."""


class HttpClient:
    """Asks endpoints such as ``http://10.0.0.1:8000``. Make it in a running loop; ``close`` closes every connection."""

    def __init__(self, keepalive_seconds: float, tls: ssl.SSLContext | None = None) -> None:
        self.keepalive_seconds = keepalive_seconds
        self._tls = tls
        self._pools: dict[str, EndpointPool] = {}
        self._loop = asyncio.get_running_loop()
        self._sweeper = self._loop.create_task(self._sweep())

    async def exchange(
        self, endpoint: str, request: Outgoing, receiver: Receiver, limits: Limits | None = None
    ) -> None:
        """Ask ``endpoint``, and return when ``receiver`` has got the whole answer.

        Raises:
            ExchangeFailed: it has not; the class says how far it came. What ``receiver`` raises comes as it is.
        """
        limits = limits or NO_HURRY
        pool = self._pools.get(endpoint) or self._open_pool(endpoint)
        head = b"%b %b HTTP/1.1\r\nHost: %b\r\n%b" % (request.method, request.target, pool.host, request.lines)
        is_head = request.method == b"HEAD"
        if request.body or request.method not in _BODILESS:
            head += b"Content-Length: %d\r\n\r\n" % len(request.body)
        else:
            head += b"\r\n"
        began = self._loop.time()
        kept = pool.take(began - self.keepalive_seconds)
        while True:
            connection = kept or await pool.connect(limits.connect)
            done = connection.send(head, request.body, receiver, limits, began + limits.total, is_head=is_head)
            try:
                return await done
            except Unanswered:
                if kept is None:
                    raise
                kept = None
            finally:
                if done.cancelled():
                    connection.abort()

    def _open_pool(self, endpoint: str) -> "EndpointPool":
        self._pools[endpoint] = pool = EndpointPool(endpoint, self._loop, self._tls)
        return pool

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.keepalive_seconds / 4)
            for pool in self._pools.values():
                pool.drop_idle(self._loop.time() - self.keepalive_seconds)

    async def close(self) -> None:
        """Close every connection; an exchange under way fails."""
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, return_exceptions=True)
        for pool in self._pools.values():
            pool.close()


NO_HURRY: Final = Limits()
_BODILESS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"TRACE"})


class EndpointPool:
    """The connections to one address."""

    def __init__(self, endpoint: str, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext | None) -> None:
        self._loop = loop
        self._idle: dict[UpstreamConnection, None] = {}  # the last used last
        self._all: set[UpstreamConnection] = set()
        self._path = endpoint.removeprefix(UNIX) if endpoint.startswith(UNIX) else None
        parts = urlsplit(endpoint)
        self._address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self.host = b"kvlb" if self._path is not None else parts.netloc.encode()

    def take(self, used_after: float) -> UpstreamConnection | None:
        """A kept connection, the last used first: that one is the least likely to be closed by the other side."""
        while self._idle:
            newest, _ = self._idle.popitem()
            if newest.idle_since >= used_after:
                return newest
            newest.abort()
        return None

    def drop_idle(self, used_before: float) -> None:
        """Close what has not been used for too long."""
        while self._idle:
            oldest = next(iter(self._idle))
            if oldest.idle_since >= used_before:
                return
            del self._idle[oldest]
            oldest.abort()

    async def connect(self, seconds: float) -> UpstreamConnection:
        """A new connection.

        Raises:
            NotConnected: nobody is there, or it takes too long.
        """
        connection = UpstreamConnection(self, self._loop)
        try:
            async with asyncio.timeout(seconds):
                if self._path is not None:
                    await self._loop.create_unix_connection(lambda: connection, self._path)
                else:
                    await self._loop.create_connection(lambda: connection, *self._address, ssl=self._tls)
        except TimeoutError as error:
            raise NotConnectedInTime(seconds) from error
        except (OSError, UnicodeError) as error:
            raise NotConnected(reason(error)) from error
        self._all.add(connection)
        return connection

    def idle(self, connection: UpstreamConnection) -> None:
        connection.idle_since = self._loop.time()
        self._idle[connection] = None

    def closed(self, connection: UpstreamConnection) -> None:
        self._idle.pop(connection, None)
        self._all.discard(connection)

    def close(self) -> None:
        for connection in list(self._all):
            connection.abort()
