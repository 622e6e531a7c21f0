"""An HTTP/1.1 server of little cost: an asyncio protocol round a C parser.

Knows connections, the order of answers, and for how long a client may do nothing. Never knows what a request means: an ``App``
gets each one whole, with the ``Reply`` to write its answer to, and answers at once or as a coroutine. Requests of one
connection are answered one after the other, in their order. A ``RequestError`` becomes the answer that ``refuse`` makes of it.
A client that goes away cancels its coroutine.
"""

import asyncio
import contextlib
import logging
import math
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

import msgspec

from balancer.errors import RequestError
from balancer.http.half_closed import HalfClosed, can_be_watched
from balancer.http.messages import Request, Response
from balancer.http.parsing import Check, RequestReader
from balancer.http.reply import CONTINUE, Reply

log = logging.getLogger(__name__)

MAX_WAITING: Final = 2
"""Requests of one connection that are read before the first of them has its answer."""

SENT_AT_ONCE: Final = 16 * 1024
"""Bytes that are not kept until the end of the loop's turn."""

LINGER_SECONDS: Final = 2.0
"""How long a client that is refused in the middle of its body is listened to, so that it reads why: a connection that is closed
with bytes unread is reset, and a reset takes back what was sent."""

HANDSHAKE_SECONDS: Final = 10.0
"""How long a client may take to agree on TLS."""

FAREWELL_SECONDS: Final = 1.0
"""How long a request that is given up has to tell its client."""

NEW_SECONDS: Final = 2.0
"""How long a server that ends waits for the first request of a connection: it is on its way, and nobody else has it."""

App: TypeAlias = Callable[[Request, Reply], Coroutine[Any, Any, None] | None]


class ServerLimits(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in seconds."""

    max_body_bytes: int = 64 * 1024 * 1024
    idle_seconds: float = 75.0
    """How long a connection may do nothing, and for how long a client may not read its answer."""
    read_seconds: float = 60.0
    """How long a request may take to come; a long body gets more, at ``min_bytes_per_second``."""
    min_bytes_per_second: int = 16 * 1024


class HttpServer:
    """Serves ``app`` on listening sockets. ``start`` it in a running loop; ``stop`` closes every connection."""

    def __init__(
        self,
        app: App,
        refuse: Callable[[RequestError], Response],
        limits: ServerLimits | None = None,
        check: Check | None = None,
    ) -> None:
        """``check`` is asked before a large body is read, and refuses it by raising a ``RequestError``."""
        self.app = app
        self.check = check
        self.refuse = refuse
        self.limits = limits or ServerLimits()
        self.connections: set[Connection] = set()
        self.is_draining = False
        """While it is set, each answer is the last one of its connection; new connections are still taken."""
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._is_empty = asyncio.Event()

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Listen, with TLS if a context is given."""
        loop = asyncio.get_running_loop()
        self._sweeper = loop.create_task(self._sweep(loop))
        self._server = await loop.create_server(
            lambda: Connection(self, loop),
            sock=listener,
            backlog=4096,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if tls else None,
        )

    def refuse_connections(self) -> None:
        """Listen no more; those that are open stay so."""
        if self._server is not None:
            self._server.close()

    async def stop(self, grace: float = 10.0) -> None:
        """Accept nothing more, let requests under way end within ``grace`` seconds, close everything.

        Those that have not ended by then are cancelled, and have a moment to tell their clients.
        """
        self.refuse_connections()
        for connection in list(self.connections):
            connection.finish()
        for seconds in (grace, FAREWELL_SECONDS):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.wait_empty()
            for connection in list(self.connections):
                connection.cancel()
        self.abort()
        await self.wait_empty()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)

    def abort(self) -> None:
        """Close every connection at once."""
        for connection in list(self.connections):
            connection.abort()

    async def wait_empty(self) -> None:
        """Return once there is no connection."""
        while self.connections:
            self._is_empty.clear()
            await self._is_empty.wait()

    async def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """One look at all connections now and then costs less than a timer for each request."""
        pause = min(1.0, self.limits.idle_seconds / 4, self.limits.read_seconds / 4)
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            for connection in list(self.connections):
                if now >= connection.due():
                    connection.expire()

    def closed(self, connection: "Connection") -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._is_empty.set()


class Connection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_half_closed",
        "_is_finishing",
        "_is_lingering",
        "_is_new",
        "_loop",
        "_reader",
        "_refusal",
        "_reply",
        "_running",
        "_server",
        "_since",
        "_stalled_since",
        "_task",
        "_unsent",
        "_unsent_bytes",
        "_waiting",
        "_writable",
        "is_closed",
        "is_stalled",
        "peer",
        "transport",
    )

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._reader = RequestReader(server.limits.max_body_bytes, server.check)
        self.transport: asyncio.Transport
        self.peer = ""
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._waiting: list[Request] = []  # a few at the most; an empty deque takes 600 bytes
        self._refusal: RequestError | None = None  # of what came behind them
        self._reply: Reply | None = None  # to the request under way
        self._task: asyncio.Task[None] | None = None  # which answers it
        self._since = loop.time()  # when what is waited for began: see due
        self.is_stalled = False
        self._stalled_since = 0.0
        self._writable: asyncio.Event | None = None
        self._half_closed: HalfClosed | None = None
        self._running = 0  # coroutines that have not ended, the one of an answer that is written included
        self._is_lingering = False
        self._is_finishing = False
        self._is_new = True  # nothing has come yet
        self.is_closed = False

    @property
    def is_finishing(self) -> bool:
        """Whether the answer under way is the last one."""
        return self._is_finishing or self._server.is_draining

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's are of no class of asyncio's
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
        if self._writable is not None:
            self._writable.set()
        if self._half_closed is not None:
            self._half_closed.stop()
        if not self._running:
            self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        had_begun, self._is_new = reader.has_begun, False
        try:
            reader.feed(data)
        except RequestError as error:
            self._refusal = error
        if reader.ready:
            self._waiting.extend(reader.ready)
            reader.ready.clear()
        if self._reply is None:
            if reader.has_begun and not had_begun:
                self._since = self._loop.time()
            self._answer_waiting()
        elif len(self._waiting) >= MAX_WAITING:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """A client that has said all it wants to may still read."""
        if self._reply is None or self._reply.request.version == "1.0" or not can_be_watched(self.transport):
            return False
        self._half_closed = HalfClosed(self._loop, self.transport, self._probe, self.abort)
        return True

    def _probe(self) -> bool:
        return self._reply is not None and self._reply.probe()

    def pause_writing(self) -> None:
        self._stalled_since = self._loop.time()
        self.is_stalled = True
        if self._writable is not None:
            self._writable.clear()
        if self._reply is not None:
            self._reply.stalled()

    def resume_writing(self) -> None:
        self.is_stalled = False
        if self._writable is not None:
            self._writable.set()
        if self._reply is not None:
            self._reply.flows()

    # Answers

    def _answer_waiting(self) -> None:
        """Answer in order until one takes its time."""
        while self._waiting and self._reply is None and not self.is_closed:
            self._answer(self._waiting.pop(0))
        if self._reply is not None or self.is_closed:
            return
        if self._refusal is not None:
            self._refuse_and_linger(self._refusal)
        elif self._reader.waits_for_leave:
            self._reader.waits_for_leave = False
            self.write(CONTINUE)

    def _answer(self, request: Request) -> None:
        self._reply = reply = Reply(self, request)
        try:
            coming = self._server.app(request, reply)
        except Exception as error:
            self._failed(reply, error)
            return
        if coming is not None:
            self._running += 1
            self._task = self._loop.create_task(self._run(coming, reply))

    async def _run(self, coming: Coroutine[Any, Any, None], reply: Reply) -> None:
        try:
            await coming
            if not reply.has_ended and not self.is_closed:
                reply.break_off()
        except Exception as error:
            self._failed(reply, error)
        finally:
            self._running -= 1
            if self.is_closed and not self._running:
                self._server.closed(self)

    def _failed(self, reply: Reply, error: Exception) -> None:
        request = reply.request
        told = error
        if not isinstance(told, RequestError):
            log.error("%s %r failed", request.method, request.path, exc_info=error)
            told = RequestError("kvlb itself has failed; its log says where")
        if reply.has_begun or self.is_closed:
            reply.break_off()
        else:
            reply.send(self._server.refuse(told))

    def write(self, data: bytes) -> None:
        """Send this, at the end of the loop's turn where it is little.

        A write may wake up the client on this very CPU, and whatever is done next here would find its caches cold; and what
        comes for one client in one turn is one packet.
        """
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > SENT_AT_ONCE:
            self._send()
        elif len(self._unsent) == 1:
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        unsent = self._unsent
        if not unsent:
            return
        data = unsent[0] if len(unsent) == 1 else b"".join(unsent)
        unsent.clear()
        self._unsent_bytes = 0
        if not (self.is_closed or self.transport.is_closing()):
            self.transport.write(data)

    def replied(self, reply: Reply) -> None:
        """The answer under way has been written to its end; the next request has its turn."""
        is_inside = self._task is None  # then ``_answer_waiting`` goes on by itself
        self._reply = self._task = None
        is_last = (self.is_finishing or self._half_closed is not None) and not self._waiting
        if not reply.keeps_alive or is_last:
            self._waiting.clear()
            self._close()
            return
        if self._half_closed is None and not self.transport.is_reading():
            self.transport.resume_reading()
        self._since = self._loop.time()
        if not is_inside:
            self._answer_waiting()

    def _refuse_and_linger(self, error: RequestError) -> None:
        if not self._is_lingering:
            self._is_lingering = True
            Reply(self, Request(method="", path="", keeps_alive=False)).send(self._server.refuse(error))

    def _close(self) -> None:
        self._send()
        if self._is_lingering and self.transport.can_write_eof():
            self._since = self._loop.time()
            self.transport.write_eof()
        else:
            self.transport.close()

    async def drained(self) -> None:
        """Return once what was written is on its way, or the client has gone.

        Raises:
            TimeoutError: it does not read.
        """
        if not self.is_stalled or self.is_closed:
            return
        if self._writable is None:
            self._writable = asyncio.Event()
        async with asyncio.timeout(self._server.limits.idle_seconds):
            await self._writable.wait()

    # Time

    def due(self) -> float:
        """When this connection has to be given up, on the loop's clock, as things are now."""
        limits = self._server.limits
        if self._is_lingering:
            return self._since + LINGER_SECONDS
        if self.is_stalled:
            return self._stalled_since + limits.idle_seconds
        if self._reply is not None:
            return math.inf  # the time is ours, not the client's
        if self._reader.has_begun:
            return self._since + limits.read_seconds + self._reader.body_bytes / limits.min_bytes_per_second
        if self._is_finishing and self._is_new:
            return self._since + min(NEW_SECONDS, limits.idle_seconds)
        return self._since + limits.idle_seconds

    def expire(self) -> None:
        """It was due."""
        if self.is_stalled:
            self.transport.abort()
        else:
            self._send()
            self.transport.close()

    def finish(self) -> None:
        """No further request is taken; one that is under way or on its way has its answer first."""
        self._is_finishing = True
        if self._reply is None and not (self._waiting or self._reader.has_begun or self._is_new):
            self._send()
            self.transport.close()

    def cancel(self) -> None:
        """The request under way is given up."""
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        self.transport.abort()
