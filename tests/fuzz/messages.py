"""Fuzzed HTTP: what is read from clients and replicas, and what goes on to the other side.

The oracle is h11, a parser that shares nothing with ours. Whatever bytes come: nothing but a refusal is raised; they mean the
same however they are cut; where both parsers read a request, they read the same one; and what is forwarded is one message for
h11, with the same body and not a byte behind it.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final

import h11

from balancer import settings as settings_module
from balancer.core import Decision, Replica
from balancer.errors import HeadTooLarge, RequestError
from balancer.gateway import headers
from balancer.gateway.access import Access
from balancer.gateway.front import Front
from balancer.http.client import HttpClient
from balancer.http.exchange import ExchangeFailed, Limits, Receiver, UpstreamConnection
from balancer.http.messages import Outgoing, Request
from balancer.http.parsing import RequestReader
from balancer.http.relay import Relay
from balancer.http.reply import Reply
from balancer.security import CorsSettings
from indexer.index import ReplicaId
from tests.fuzz.words import halved, written

LIMIT: Final = 4_096
CONTROL: Final = "http://control"
REPLICA: Final = "http://replica"
DECISION: Final = Decision(1, Replica(ReplicaId("r"), REPLICA, ranks=2), 4, 0, False, True, "p", ())

WORDS: Final = (
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b": ", b",", b";", b"\0", b"\x0b", b"\x80", b"/", b"?", b"#", b"="),
    *(b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n", b"HTTP/1.1 200 OK\r\n"),
    *(b"GET ", b"POST ", b"HEAD ", b"CONNECT ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"http://a/", b" HTTP/1.1\r\n"),
    *(b" HTTP/1.0\r\n", b" HTTP/0.9\r\n", b"Host: a\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 204 No Content\r\n"),
    *(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 S\r\n", b"HTTP/1.1 304 N\r\n", b"HTTP/1.1 500 \r\n"),
    *(b"Content-Length: ", b"Content-Length: 5\r\n\r\nhello", b"Content-Length: 0\r\n", b"content-length:7\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    *(b"Transfer-Encoding: ", b"chunked", b"identity", b"gzip", b"Connection: close\r\n", b"Connection: keep-alive\r\n"),
    *(b"Connection: ", b"x-a, content-length", b"Upgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"Trailer: t\r\n"),
    *(b"TE: trailers\r\n", b"X-A: b\r\n", b"X-Request-Id: ", b"x-data-parallel-rank: 1\r\n", b"Content-Encoding: "),
    *(b"5\r\nhello\r\n", b"0\r\n\r\n", b"1\r\nx\r\n", b"000;a=b\r\n", b"0\r\nX: y\r\n\r\n", b"ffffffffffffffff\r\n"),
    *(b"+1", b"0x5", b"-1", b"18446744073709551616", b"5", b"hello", b"data: {}\n\n", b"Content-Type: text/event-stream\r\n"),
)  # fmt: skip

Message = tuple[bytes, bytes, bytes]
"""Method (or status), target, body."""


def _now(coming: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        coming.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


class _Sent:
    """Stands for a pool and for its one connection, and keeps what is sent."""

    host = b"replica"

    def __init__(self) -> None:
        self.data = b""
        self._done: asyncio.Future[None] = _LOOP.create_future()
        self._done.set_result(None)

    def take(self, used_after: float) -> "_Sent":
        return self

    def send(
        self, head: bytes, body: bytes, receiver: Receiver, limits: Limits, ends_at: float, *, is_head: bool
    ) -> "asyncio.Future[None]":
        self.data += head + body
        return self._done


class _Nobody:
    """A client that takes everything; keeps what is written to it."""

    is_closed = is_stalled = is_finishing = False
    peer = ""

    def __init__(self) -> None:
        self.data = b""
        self.is_over = False

    def write(self, data: bytes) -> None:
        self.data += data

    def replied(self, reply: Reply) -> None:
        self.is_over = True


class _Loop:
    """A loop in which nothing happens later."""

    def time(self) -> float:
        return 0.0

    def create_future(self) -> "asyncio.Future[None]":
        return _LOOP.create_future()

    def call_soon(self, do: Callable[..., object], *given: Any) -> None:
        do(*given)

    def call_at(self, when: float, do: Callable[..., object]) -> "_Loop":
        return self

    def cancel(self) -> None: ...


class _Wire:
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        self.is_gone = False

    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool:
        return self.is_gone

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.is_gone = True

    close = abort


class _Pool:
    def idle(self, connection: UpstreamConnection) -> None: ...

    def closed(self, connection: UpstreamConnection) -> None: ...


async def _client() -> HttpClient:
    made = HttpClient(60.0)
    made._sweeper.cancel()
    return made


_LOOP: Final = asyncio.new_event_loop()
_CLIENT: Final = _LOOP.run_until_complete(_client())
_FRONT: Final = Front(None, _CLIENT, CONTROL, Access(settings_module.convert({})), CorsSettings())  # type: ignore[arg-type]


# What clients send


def requests(data: bytes) -> None:
    """Bytes of a client."""
    at, data = halved(data)
    data = written(data, WORDS)
    found, error = _read([data])
    at %= len(data) + 1
    cut, cut_error = _read([data[:at], data[at:]])
    assert [(_meaning(each), each.headers, each.keeps_alive) for each in found] == [
        (_meaning(each), each.headers, each.keeps_alive) for each in cut
    ]
    assert error == cut_error
    for ours, theirs in zip(found, _as_h11_reads(data), strict=False):
        method, target, body = theirs
        assert (ours.method.encode(), ours.body) == (method, body)
        if target.startswith(b"/"):
            assert _target(ours) == target
    for request in found:
        _forward(request)


def _read(pieces: list[bytes]) -> tuple[list[Request], type[RequestError] | None]:
    reader = RequestReader(LIMIT)
    for piece in pieces:
        try:
            reader.feed(piece)
        except RequestError as error:
            return reader.ready, type(error)
    return reader.ready, None


def _target(request: Request) -> bytes:
    return (f"{request.path}?{request.query}" if request.query else request.path).encode("latin-1")


def _meaning(request: Request) -> Message:
    return request.method.encode(), _target(request), request.body


def _as_h11_reads(data: bytes) -> list[Message]:
    """The requests that another reader finds, up to the first that it refuses."""
    found: list[Message] = []
    with contextlib.suppress(h11.RemoteProtocolError, h11.LocalProtocolError):
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if not isinstance(event, h11.Request):
                break
            body = b""
            while isinstance(part := connection.next_event(), h11.Data):
                body += bytes(part.data)
            if not isinstance(part, h11.EndOfMessage):
                break
            found.append((event.method, event.target, body))
            connection.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
            connection.send(h11.EndOfMessage())
            connection.start_next_cycle()
    return found


def _forward(request: Request) -> None:
    """Whatever has been read goes on as one message."""
    request_id = headers.request_id(request.named)
    lines = headers.to_replica(request.headers, DECISION, request_id, frozenset(), b"Bearer k")
    target = f"/v1/completions?{request.query}" if request.query else "/v1/completions"
    _CLIENT._pools[REPLICA] = sent = _Sent()  # type: ignore[assignment]
    _now(_CLIENT.exchange(REPLICA, Outgoing(b"POST", target.encode("latin-1"), lines, request.body), _ignore()))
    _check_one(sent.data, (b"POST", target.encode("latin-1"), request.body))
    _CLIENT._pools[CONTROL] = sent = _Sent()  # type: ignore[assignment]
    with contextlib.suppress(RequestError):
        _now(_FRONT._to_control(request, Reply(_Nobody(), request)))  # type: ignore[arg-type]
        _check_one(sent.data, _meaning(request))


def _ignore() -> Relay:
    return Relay(Reply(_Nobody(), Request("POST", "/")))  # type: ignore[arg-type]


def _check_one(data: bytes, meant: Message) -> None:
    found, error = _read([data])
    if error is not HeadTooLarge:  # with the headers that kvlb adds, it may be more than a reader takes
        assert ([_meaning(each) for each in found], error) == ([meant], None)
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(data)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return  # the next one refuses it, and nothing after it is read
    assert isinstance(event, h11.Request)
    body = b""
    while isinstance(part := connection.next_event(), h11.Data):
        body += bytes(part.data)
    assert isinstance(part, h11.EndOfMessage)
    assert (event.method, event.target, body) == meant
    assert connection.trailing_data[0] == b"", "something is left that could be taken for another request"


# What replicas answer


def answers(data: bytes) -> None:
    """Bytes of a replica, to a client whose request is told by the first byte."""
    kind, data = data[:1], data[1:]
    at, data = halved(data)
    data = written(data, WORDS)
    number = kind[0] if kind else 0
    request = Request(
        method=("POST", "GET", "HEAD")[number % 3],
        path="/",
        version=("1.1", "1.0")[number // 3 % 2],
        keeps_alive=bool(number // 6 % 2),
    )
    at %= len(data) + 1
    whole, cut = _relayed([data], request), _relayed([data[:at], data[at:]], request)
    assert whole == cut


def _relayed(pieces: list[bytes], request: Request) -> Message | None:
    """The answer that the client has got, or None where it has no end."""
    connection = UpstreamConnection(_Pool(), _Loop())  # type: ignore[arg-type]
    connection.connection_made(_Wire())  # type: ignore[arg-type]
    client = _Nobody()
    reply = Reply(client, request)  # type: ignore[arg-type]
    done = connection.send(b"", b"", Relay(reply), Limits(), math.inf, is_head=request.method == "HEAD")
    for piece in pieces:
        if piece and not connection._transport.is_closing():
            connection.data_received(piece)
    connection.connection_lost(None)
    assert done.done()
    failure = done.exception()
    assert failure is None or isinstance(failure, ExchangeFailed), failure
    if failure is not None:
        reply.break_off()
    told = _as_client(client.data, request, is_whole=failure is None)
    return told if failure is None else None


def _ends_with_connection(head: h11.Response) -> bool:
    return not {b"content-length", b"transfer-encoding"} & {name for name, _ in head.headers}


def _as_client(data: bytes, request: Request, *, is_whole: bool) -> Message | None:
    """What another reader finds in the answer; it must be whole exactly where the exchange was."""
    if not data:
        assert not is_whole
        return None
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    connection.send(h11.Request(method=request.method, target="/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:  # a reason or a header that it does not like, passed as it came
        return b"", b"", data.partition(b"\r\n\r\n")[2]
    if event is h11.NEED_DATA:
        raise AssertionError("half a head has been sent")
    assert isinstance(event, h11.Response)
    body = b""
    while isinstance(part := connection.next_event(), h11.Data):
        body += bytes(part.data)
    if part is h11.NEED_DATA and _ends_with_connection(event):
        assert request.version == "1.0", (
            "nothing else is framed so that its end cannot be told from a broken connection"
        )
    else:
        assert isinstance(part, h11.EndOfMessage) is is_whole
        assert connection.trailing_data[0] == b""
    return b"%d" % event.status_code, b"", body
