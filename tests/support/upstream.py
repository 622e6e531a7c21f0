"""A replica made of raw bytes: it records exactly what reaches it and answers exactly what a test says.

Knows enough HTTP/1.1 to cut requests out of a connection. It answers a gateway's questions about itself like an engine without
KV events, unless ``paths`` says otherwise; every other request is recorded and handed to ``answer``.
"""

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, cast

OK: Final = b'{"id":"1",  "choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":1}}'


class Received:
    """One request, and the connection it came by. ``gone`` is set when the other side has closed it."""

    def __init__(self, head: bytes, body: bytes, connection: "_Connection") -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.path = self.target.partition("?")[0]
        self.headers = [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        self.body = body
        self.gone = connection.gone
        self._connection = connection

    def values(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for each, value in self.headers if each.lower() == name.lower()]

    def send(self, data: bytes) -> None:
        self._connection.transport.write(data)

    def close(self) -> None:
        self._connection.transport.close()

    def reset(self) -> None:
        """Break the connection as a killed process does."""
        self._connection.transport.abort()

    def answer(
        self, body: bytes, *, status: str = "200 OK", headers: str = "Content-Type: application/json\r\n"
    ) -> None:
        """A whole answer."""
        self.send(f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def begin_stream(self) -> None:
        self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

    def chunk(self, data: bytes) -> None:
        """A piece of a stream; the empty one ends it."""
        self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def answer_ok(request: Received) -> None:
    request.answer(OK)


Answer = Callable[[Received], Awaitable[None]]


class Upstream:
    """The server; mutable."""

    def __init__(self, model: str = "m") -> None:
        self.answer: Answer = answer_ok
        self.received: list[Received] = []
        self.questions: list[Received] = []
        self.url = ""
        self.connections: set[_Connection] = set()
        models = {"object": "list", "data": [{"id": model, "object": "model", "root": model, "max_model_len": 4096}]}
        self.paths: dict[str, Answer | bytes] = {
            "/health": b"",
            "/v1/models": json.dumps(models).encode(),
            "/version": b'{"version": "0.32.0"}',
            "/metrics": b'vllm:cache_config_info{engine="0",block_size="4"} 1.0\n',
        }
        self.is_question: Callable[[Received], bool] = lambda request: not request.values("User-Agent")
        """Whether who asks is the gateway itself: clients of tests send that header."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, request: Received) -> None:
        if self.is_question(request):
            self.questions.append(request)
            found = self.paths.get(request.path)
            if isinstance(found, bytes):
                request.answer(found)
            elif found is None:
                request.answer(b'{"detail":"Not Found"}', status="404 Not Found")
            else:
                await found(request)
            return
        self.received.append(request)
        await self.answer(request)

    def begin(self, request: Received) -> None:
        task = asyncio.ensure_future(self.serve(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        for connection in list(self.connections):
            connection.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._buffer = b""
        self.gone = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._upstream.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._upstream.connections.discard(self)
        self.gone.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            head, separator, rest = self._buffer.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            size = int(length[1]) if length else 0
            if not separator or len(rest) < size:
                return
            body = rest[:size]
            if re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
                found = _unchunked(rest)
                if found is None:
                    return
                body, size = found
            if not head.partition(b"\r\n")[0].endswith((b"HTTP/1.1", b"HTTP/1.0")):  # some try HTTP/2 first
                self.transport.abort()
                return
            self._buffer = rest[size:]
            self._upstream.begin(Received(head, body, self))


def _unchunked(data: bytes) -> tuple[bytes, int] | None:
    """(body, bytes that it takes) of a chunked body as proxies send it, without trailers; None until it is whole."""
    body, at = b"", 0
    while (end := data.find(b"\r\n", at)) >= 0:
        size, begin = int(data[at:end], 16), end + 2
        if len(data) < begin + size + 2:
            return None
        body, at = body + data[begin : begin + size], begin + size + 2
        if not size:
            return body, at
    return None


@contextlib.asynccontextmanager
async def upstream(
    model: str = "m", paths: Mapping[str, Any] | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Upstream]:
    """One that listens until the block is left, with TLS if a context is given."""
    made = Upstream(model)
    made.paths.update(paths or {})
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(made), "127.0.0.1", 0, ssl=tls)
    made.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await made.end()
        await server.wait_closed()
