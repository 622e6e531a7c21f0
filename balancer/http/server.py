"""A small HTTP/1.1 server for paths that must cost little: an asyncio protocol round a C parser.

Knows connections, the order of answers, time limits and the size of bodies. Never knows what a path means: handlers get a whole
``Request`` and return a ``Response``, at once or as an awaitable. Requests of one connection are answered one after the other,
in their order. A handler's ``RequestError`` becomes the answer that ``refuse`` makes of it.
"""

import asyncio
import contextlib
import logging
import socket
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeAlias

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from balancer.errors import BadRequest, BodyTooLarge, RequestError, UnknownPath
from balancer.http.messages import Request, Response, Routes, head

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 64 * 1024
"""Longest request line with its headers."""

MAX_WAITING: Final = 2
"""Requests of one connection that are read before it has its turn again: the one under way and the next."""


Served: TypeAlias = Counter[tuple[str, int]]
"""Requests answered, by path and status; a path that is not there is ``other``."""


class ServerLimits(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in seconds."""

    max_body_bytes: int = 64 * 1024 * 1024
    idle_seconds: float = 75.0
    """How long a connection may do nothing."""
    read_seconds: float = 60.0
    """How long a request may take to come."""


class HttpServer:
    """Serves ``routes`` on a listening socket. ``start`` it in a running loop; ``stop`` closes every connection."""

    def __init__(
        self,
        routes: Routes,
        refuse: Callable[[RequestError], Response],
        limits: ServerLimits | None = None,
        served: Served | None = None,
    ) -> None:
        self.routes = routes
        self.served: Served = Counter() if served is None else served
        self.refuse = refuse
        self.limits = limits or ServerLimits()
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._is_empty = asyncio.Event()

    async def start(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self, loop), sock=listener, backlog=4096)

    async def stop(self, grace: float = 10.0) -> None:
        """Accept nothing more, let answers that have begun end within ``grace`` seconds, close everything."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._wait_empty()
        for connection in list(self.connections):
            connection.abort()
        await self._wait_empty()

    async def _wait_empty(self) -> None:
        while self.connections:
            self._is_empty.clear()
            await self._is_empty.wait()

    def opened(self, connection: "Connection") -> None:
        self.connections.add(connection)

    def closed(self, connection: "Connection") -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._is_empty.set()

    def respond(self, request: Request) -> Response | Awaitable[Response]:
        """The handler's answer, or the refusal of a path or a method that is not there.

        Raises:
            UnknownPath: nothing is served there.
        """
        methods = self.routes.get(request.path)
        if methods is None:
            raise UnknownPath(f"there is no {request.path} here")
        handler = methods.get(request.method) or (methods.get("GET") if request.method == "HEAD" else None)
        if handler is None:
            allowed = ", ".join(sorted(methods))
            refused = self.refuse(UnknownPath(f"{request.method} {request.path} is not served; use {allowed}"))
            return msgspec.structs.replace(refused, status=405, headers=(("allow", allowed),))
        return handler(request)


class Connection(asyncio.Protocol):
    """One client's connection. Everything but the handlers' awaitables happens in the transport's callbacks."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._parser = HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None  # answers the first of them
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._is_finishing = False
        self._is_closed = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._begin()

    def _begin(self) -> None:
        """The next request is to come."""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._body_bytes = 0
        self._has_begun = False

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's are of no class of asyncio's
        self._server.opened(self)
        self._set_deadline(self._server.limits.idle_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self._server.closed(self)
        self._waiting.clear()
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self.finish()  # it was answered as the plain request that it also is; what follows would be another protocol
        except HttpParserError as error:
            told = error.__context__
            if isinstance(told, RequestError):  # raised by a callback below
                self._refuse_and_close(told)
            else:
                self._refuse_and_close(BadRequest(f"not HTTP: {error}"))

    def eof_received(self) -> bool:
        return self._is_busy  # a client that has said all it wants to may still read

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # The parser's side

    def on_message_begin(self) -> None:
        self._has_begun = True
        self._set_deadline(self._server.limits.read_seconds)

    def on_url(self, part: bytes) -> None:
        self._url += part
        self._count_head(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))
        self._count_head(len(name) + len(value) + len(": \r\n"))

    def _count_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > MAX_HEAD_BYTES:
            raise BadRequest(f"the request's head is too long; {MAX_HEAD_BYTES} bytes are the most")

    def on_headers_complete(self) -> None:
        for name, value in self._headers:
            if name == b"content-length" and int(value) > self._server.limits.max_body_bytes:
                raise self._too_large()
            if name == b"expect" and value.lower() == b"100-continue":
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, part: bytes) -> None:
        self._body_bytes += len(part)
        if self._body_bytes > self._server.limits.max_body_bytes:
            raise self._too_large()
        self._body.append(part)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is longer than {self._server.limits.max_body_bytes} bytes")

    def on_message_complete(self) -> None:
        path, _, query = self._url.partition(b"?")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request = Request(
            method=self._parser.get_method().decode("latin-1"),
            path=path.decode("latin-1"),
            query=query.decode("latin-1"),
            headers=tuple(self._headers),
            body=body,
        )
        keeps_alive = self._parser.should_keep_alive() and not self._is_finishing
        self._begin()
        self._waiting.append((request, keeps_alive))
        if len(self._waiting) >= MAX_WAITING:
            self._transport.pause_reading()
        if self._task is None and len(self._waiting) == 1:
            self._answer_waiting()

    # Answers

    @property
    def _is_busy(self) -> bool:
        return self._task is not None or bool(self._waiting)

    def _answer_waiting(self) -> None:
        """Answer in order until one takes its time."""
        while self._waiting and not self._is_closed:
            request, keeps_alive = self._waiting[0]
            response = self._respond(request)
            if not isinstance(response, Response) or not isinstance(response.body, bytes):
                self._task = self._loop.create_task(self._answer_later(request, response, keeps_alive))
                return
            self._write(request, response, keeps_alive)
            self._done(keeps_alive)

    def _respond(self, request: Request) -> Response | Awaitable[Response]:
        try:
            return self._server.respond(request)
        except Exception as error:
            return self._refused(request, error)

    def _refused(self, request: Request, error: Exception) -> Response:
        if isinstance(error, RequestError):
            return self._server.refuse(error)
        log.error("%s %r failed", request.method, request.path, exc_info=error)
        return self._server.refuse(RequestError("kvlb itself has failed; its log says where"))

    async def _answer_later(self, request: Request, coming: Response | Awaitable[Response], keeps_alive: bool) -> None:
        if isinstance(coming, Response):
            response = coming
        else:
            try:
                response = await coming
            except Exception as error:
                response = self._refused(request, error)
        try:
            self._write(request, response, keeps_alive)
            if not isinstance(response.body, bytes) and request.method != "HEAD":
                await self._stream(response.body)
        except TimeoutError:
            self.abort()
            return
        except Exception:
            log.exception("%s %r failed in the middle of its answer", request.method, request.path)
            self.abort()
            return
        self._task = None
        self._done(keeps_alive)
        self._answer_waiting()

    def _write(self, request: Request, response: Response, keeps_alive: bool) -> None:
        start = head(response, keeps_alive=keeps_alive)
        self._server.served[request.path if request.path in self._server.routes else "other", response.status] += 1
        has_body = isinstance(response.body, bytes) and request.method != "HEAD"
        self._transport.write(start + response.body if has_body else start)  # type: ignore[operator]

    async def _stream(self, pieces: AsyncIterator[bytes]) -> None:
        async for piece in pieces:
            if piece:
                self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                async with asyncio.timeout(self._server.limits.idle_seconds):  # a client that does not read
                    await self._writable.wait()
        self._transport.write(b"0\r\n\r\n")

    def _done(self, keeps_alive: bool) -> None:
        self._waiting.popleft()
        if not keeps_alive or (self._is_finishing and not self._waiting):
            self._waiting.clear()
            self._transport.close()
            return
        if not self._transport.is_reading() and not self._transport.is_closing():
            self._transport.resume_reading()
        limits = self._server.limits
        self._set_deadline(limits.read_seconds if self._has_begun else limits.idle_seconds)

    def _refuse_and_close(self, error: RequestError) -> None:
        """What comes after this cannot be read any more; answers that are due go out first."""
        if self._is_busy:
            self.abort()
        if self._transport.is_closing():
            return
        response = self._server.refuse(error)
        assert isinstance(response.body, bytes)
        self._transport.write(head(response, keeps_alive=False) + response.body)
        self._transport.close()

    # Time

    def _set_deadline(self, seconds: float) -> None:
        """One timer, which looks at the deadline when it rings: moving it with every request would cost more."""
        self._deadline = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._task is not None:  # the time is ours, not the client's
            self._set_deadline(self._server.limits.idle_seconds)
        elif self._loop.time() >= self._deadline:
            self._transport.close()
        else:
            self._timer = self._loop.call_at(self._deadline, self._ring)

    def finish(self) -> None:
        """No further request is taken; an answer under way ends first."""
        self._is_finishing = True
        if not self._is_busy:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
