"""A relay that records: every byte that a client and a server say to each other, and the HTTP exchanges that they make.

Knows TCP, and HTTP as h11 reads it after the fact. Never knows kvlb or its reading of HTTP, and changes no byte: what a client
is told before the gateway can be held against what the engine has said behind it.
"""

import asyncio
import threading
from contextlib import suppress
from typing import Final

import h11
import msgspec

WAIT_SECONDS: Final = 20.0

Fields = tuple[tuple[bytes, bytes], ...]
"""Names, as they were written, and values of a message's headers, in their order."""


class Exchange(msgspec.Struct, frozen=True):
    """A request and its answer, without the framing of their bodies.

    ``is_whole``: the answer has come to its end; or ``is_left``: its client has closed the connection before.
    """

    method: bytes
    target: bytes
    asked: Fields
    sent: bytes
    status: int
    reason: bytes
    answered: Fields
    received: bytes
    is_whole: bool
    is_left: bool = False

    @property
    def path(self) -> str:
        return self.target.partition(b"?")[0].decode()


def value(fields: Fields, name: bytes) -> bytes | None:
    """The first value of a header; its name is given in lower case."""
    return next((each for written, each in fields if written.lower() == name), None)


class _Connection:
    """What was said by one connection; mutable. ``is_ended``: the server has closed it, ``is_left``: the client."""

    def __init__(self) -> None:
        self.asked = bytearray()
        self.answered = bytearray()
        self.is_ended = False
        self.is_left = False
        self._whole: list[Exchange] = []

    def exchanges(self) -> list[Exchange]:
        """Those that have an answer. What has been read whole is not read again; more may be added by another thread."""
        while True:
            exchange, asked, answered = read(bytes(self.asked), bytes(self.answered), is_ended=self.is_ended)
            if exchange is None:
                return list(self._whole)
            if not exchange.is_whole:
                return [*self._whole, msgspec.structs.replace(exchange, is_left=self.is_left)]
            self._whole.append(exchange)
            del self.asked[:asked], self.answered[:answered]


class Tap:
    """A relay on a port of its own, in a thread, in front of ``127.0.0.1:port``; stop it at the end."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._connections: list[_Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(WAIT_SECONDS)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accepted, "127.0.0.1", 0)

    def stop(self) -> None:
        """End it with all its connections."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(WAIT_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def exchanges(self) -> list[Exchange]:
        """All exchanges of all connections, in the order in which the connections came."""
        return [exchange for each in list(self._connections) for exchange in each.exchanges()]

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until either side closes; a half-closed connection is none of those that the tests make through here."""
        try:
            answers, out = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        connection = _Connection()
        self._connections.append(connection)
        asking = asyncio.create_task(_pump(reader, out, connection.asked))
        answering = asyncio.create_task(_pump(answers, writer, connection.answered))
        try:
            done, _ = await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
            connection.is_ended = answering in done
            connection.is_left = not connection.is_ended
        finally:
            for pump in (asking, answering):
                pump.cancel()
            await asyncio.gather(asking, answering, return_exceptions=True)
            out.close()
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytearray) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            said += data
            writer.write(data)
            await writer.drain()


def read(asked: bytes, answered: bytes, *, is_ended: bool) -> tuple[Exchange | None, int, int]:
    """The first exchange of what a client and a server have said; none while it has no answer.

    Args:
        asked: what the client has said, from the beginning of a request.
        answered: what the server has said, from the beginning of its answer.
        is_ended: the server has closed the connection, which is the end of a body without a length.

    Returns:
        The exchange, and how many bytes of both it takes if it is whole.
    """
    if not (asked and answered):
        return None, 0, 0
    server = h11.Connection(h11.SERVER)
    server.receive_data(asked)
    request, sent, _ = _message(server)
    if not isinstance(request, h11.Request):
        return None, 0, 0
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=request.method, target=request.target, headers=[("Host", "any")]))
    client.send(h11.EndOfMessage())
    client.receive_data(answered)
    response, received, is_whole = _message(client, is_ended=is_ended)
    if not isinstance(response, h11.Response):
        return None, 0, 0
    exchange = Exchange(
        method=request.method,
        target=request.target,
        asked=tuple(request.headers.raw_items()),
        sent=sent,
        status=response.status_code,
        reason=response.reason,
        answered=tuple(response.headers.raw_items()),
        received=received,
        is_whole=is_whole,
    )
    return exchange, len(asked) - len(server.trailing_data[0]), len(answered) - len(client.trailing_data[0])


def _message(
    connection: h11.Connection, *, is_ended: bool = False
) -> tuple[h11.Request | h11.Response | None, bytes, bool]:
    """The next message, its body, and whether that is all of it."""
    message: h11.Request | h11.Response | None = None
    body = bytearray()
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            assert is_ended, "what was said is no HTTP"
            return message, bytes(body), False  # the end came in the middle
        if isinstance(event, h11.Request | h11.Response):
            message = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return message, bytes(body), True
        elif event is h11.NEED_DATA and is_ended:
            connection.receive_data(b"")
        elif not isinstance(event, h11.InformationalResponse):
            return message, bytes(body), False
