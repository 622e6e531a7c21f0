"""``balancer/http``: every request gets one answer, in order, and no client can hold or hurt the others."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from balancer.errors import BadRequest, RequestError
from balancer.http.fields import named
from balancer.http.messages import Request, Response
from balancer.http.routes import Routes, RouteTable, Served
from balancer.http.server import HttpServer, ServerLimits
from tests.support.gateways import get, post, split, unchunk
from tests.support.waiting import eventually, run

pytestmark = pytest.mark.usefixtures("loop_kind")

JSON = {"Content-Type": "application/json"}


def echo(request: Request) -> Response:
    return Response(
        b"%s %s?%s " % (request.method.encode(), request.path.encode(), request.query.encode()) + request.body
    )


def refuse(error: RequestError) -> Response:
    return Response(error.message.encode(), error.status)


class Front:
    """A server, and what it has served."""

    def __init__(self, server: HttpServer, served: Served, address: tuple[str, int]) -> None:
        self.server = server
        self.served = served
        self.address = address

    async def exchange(self, *parts: bytes) -> bytes:
        """Everything that comes back for these bytes, each sent by itself, until the server closes."""
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
            return await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def with_server(check: Callable[[Front], Awaitable[None]], routes: Routes | None = None, **limits: Any) -> None:
    async def begin() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        table = RouteTable(routes or {"/echo": {"POST": echo, "GET": echo}}, refuse)
        server = HttpServer(table, refuse, ServerLimits(**limits))
        await server.start(listener)
        try:
            await check(Front(server, table.served, listener.getsockname()))
        finally:
            await server.stop(grace=0.2)
            assert not server.connections

    run(begin())


def bodies(answers: bytes) -> list[bytes]:
    """The bodies of answers that follow each other, each with its length."""
    found = []
    while answers:
        head, _, answers = answers.partition(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
        found.append(answers[:length])
        answers = answers[length:]
    return found


def test_a_request_is_answered_whatever_pieces_it_comes_in() -> None:
    async def check(served: Front) -> None:
        whole = post("/echo?a=1", b"body", "X-Odd:  value ")
        status, headers, body = split(await served.exchange(whole))
        assert (status, body) == ("HTTP/1.1 200 OK", b"POST /echo?a=1 body")
        assert ("Content-Type", "application/json") in headers
        for at in range(1, len(whole), 7):
            assert split(await served.exchange(whole[:at], whole[at:]))[2] == body

    with_server(check)


def test_a_chunked_body_is_joined() -> None:
    async def check(served: Front) -> None:
        head = b"POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert split(await served.exchange(head, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"))[2] == b"POST /echo? abcde"

    with_server(check)


def test_requests_of_one_connection_are_answered_in_order() -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.05)
        return echo(request)

    async def check(served: Front) -> None:
        paths = ["/slow", "/echo", "/slow", "/echo", "/echo", "/slow"]
        sent = b"".join(post(path, b"%d" % at, close=at == len(paths) - 1) for at, path in enumerate(paths))
        expected = [f"POST {path}? {at}".encode() for at, path in enumerate(paths)]
        assert bodies(await served.exchange(sent)) == expected
        assert served.served == {("/slow", 200): 3, ("/echo", 200): 3}

    with_server(check, {"/echo": {"POST": echo}, "/slow": {"POST": slow}})


def test_paths_and_methods_that_are_not_there_are_refused() -> None:
    async def check(served: Front) -> None:
        status, _, body = split(await served.exchange(get("/nope")))
        assert (status, body) == ("HTTP/1.1 404 Not Found", b"there is no /nope here")
        status, headers, body = split(await served.exchange(get("/echo", "DELETE")))
        assert status == "HTTP/1.1 405 Method Not Allowed"
        assert ("Allow", "GET, POST") in headers
        status, headers, body = split(await served.exchange(get("/echo", "HEAD")))
        assert (status, body) == ("HTTP/1.1 200 OK", b"")
        assert ("Content-Length", str(len("HEAD /echo? "))) in headers
        assert served.served == {("other", 404): 1, ("/echo", 405): 1, ("/echo", 200): 1}

    with_server(check)


def test_what_a_handler_refuses_or_breaks_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    def bad(_: Request) -> Response:
        raise BadRequest("field: wrong")

    async def bad_later(_: Request) -> Response:
        raise BadRequest("field: wrong later")

    def broken(_: Request) -> Response:
        raise KeyError("broken on purpose")

    async def check(served: Front) -> None:
        assert split(await served.exchange(get("/bad")))[::2] == ("HTTP/1.1 400 Bad Request", b"field: wrong")
        assert split(await served.exchange(get("/later")))[::2] == ("HTTP/1.1 400 Bad Request", b"field: wrong later")
        assert not caplog.records
        status, _, body = split(await served.exchange(get("/broken")))
        assert (status, body) == ("HTTP/1.1 500 Internal Server Error", b"kvlb itself has failed; its log says where")
        assert "broken on purpose" in caplog.text

    with_server(check, {"/bad": {"GET": bad}, "/later": {"GET": bad_later}, "/broken": {"GET": broken}})


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_the_connection_closed(sent: bytes) -> None:
    async def check(served: Front) -> None:
        assert split(await served.exchange(sent))[0] == "HTTP/1.1 400 Bad Request"

    with_server(check)


@pytest.mark.parametrize(
    "sent", [b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"GET /echo HTTP/1.1\r\n" + b"a: b\r\n" * 20_000]
)
def test_a_head_over_the_limit_is_refused(sent: bytes) -> None:
    async def check(served: Front) -> None:
        assert split(await served.exchange(sent))[0] == "HTTP/1.1 431 Request Header Fields Too Large"

    with_server(check)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_over_the_limit_is_refused(is_chunked: bool) -> None:
    async def check(served: Front) -> None:
        how = "Transfer-Encoding: chunked" if is_chunked else "Content-Length: 11"
        sent = f"POST /echo HTTP/1.1\r\nHost: a\r\n{how}\r\n\r\n".encode()
        sent += b"b\r\n" + b"x" * 11 + b"\r\n0\r\n\r\n" if is_chunked else b"x" * 11
        status, _, body = split(await served.exchange(sent))
        assert (status, body) == (
            "HTTP/1.1 413 Request Entity Too Large",
            b"the body is larger than 10 bytes; the limit is server.max_body_bytes",
        )
        assert split(await served.exchange(post("/echo", b"x" * 10)))[0] == "HTTP/1.1 200 OK"

    with_server(check, max_body_bytes=10)


def test_a_client_that_waits_for_leave_gets_it() -> None:
    async def check(served: Front) -> None:
        whole = post("/echo", b"body", "Expect: 100-continue")
        head, body = whole[: -len(b"body")], b"body"
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(head)
        assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        writer.write(body)
        assert (await reader.read()).endswith(b"POST /echo? body")
        writer.close()

    with_server(check)


def test_leave_is_given_when_the_request_has_its_turn() -> None:
    go_on = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        await go_on.wait()
        yield b"second"

    async def check(served: Front) -> None:
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(get("/pieces").replace(b"Connection: close\r\n", b""))
        first = await reader.readuntil(b"first\r\n")
        whole = post("/echo", b"body", "Expect: 100-continue")
        writer.write(whole[: -len(b"body")])
        await asyncio.sleep(0.02)
        go_on.set()
        answer = first + await reader.readuntil(b"0\r\n\r\n")
        assert split(answer)[2] == b"firstsecond"
        assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        writer.write(b"body")
        assert (await reader.read()).endswith(b"POST /echo? body")
        writer.close()

    with_server(check, {"/echo": {"POST": echo}, "/pieces": {"GET": lambda request: Response(pieces())}})


def test_nobody_is_given_leave_to_send_what_is_too_large() -> None:
    async def check(served: Front) -> None:
        sent = post("/echo", b"", "Expect: 100-continue").replace(b"Content-Length: 0", b"Content-Length: 11")
        assert (await served.exchange(sent)).startswith(b"HTTP/1.1 413 ")

    with_server(check, max_body_bytes=10)


def test_what_is_due_is_answered_before_what_cannot_be_read() -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.05)
        return echo(request)

    async def check(served: Front) -> None:
        due, refused = bodies(await served.exchange(post("/slow", b"1", close=False) + b"garbage\r\n\r\n"))
        assert due == b"POST /slow? 1"
        assert b"not HTTP" in refused

    with_server(check, {"/slow": {"POST": slow}})


def test_an_address_in_front_of_the_path_is_passed_over() -> None:
    async def check(served: Front) -> None:
        assert split(await served.exchange(get("http://gateway/echo?a=1")))[2] == b"GET /echo?a=1 "

    with_server(check)


def test_an_upgrade_is_answered_as_the_plain_request_it_is() -> None:
    """With its body, and with the requests that follow it: curl --http2 and Java's client ask so unless told otherwise."""

    async def check(served: Front) -> None:
        fields = b" /echo HTTP/1.1\r\nHost: a\r\n"
        fields += b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
        sent = b"POST" + fields + b"Content-Length: 3\r\n\r\nabc"
        sent += b"POST" + fields + b"Transfer-Encoding: chunked\r\n\r\n2\r\nde\r\n0\r\n\r\n" + b"GET" + fields + b"\r\n"
        assert bodies(await served.exchange(sent + get("/echo"))) == [
            b"POST /echo? abc",
            b"POST /echo? de",
            b"GET /echo? ",
            b"GET /echo? ",
        ]

    with_server(check)


def test_a_long_answer_goes_out_in_pieces_as_fast_as_it_is_read() -> None:
    made = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(1_000):
            made += 1
            yield b"x" * 65_536

    async def check(served: Front) -> None:
        reader, writer = await asyncio.open_connection(*served.address, limit=4_096)
        writer.write(get("/long"))
        await reader.readline()
        await asyncio.sleep(0.1)
        assert made < 500, "nobody reads, and yet it is all made"
        rest = await reader.read()
        assert rest.count(b"x") == 1_000 * 65_536
        assert rest.endswith(b"\r\n0\r\n\r\n")
        writer.close()

    with_server(check, {"/long": {"GET": lambda _: Response(pieces())}})


def test_an_answer_in_pieces_that_is_refused_before_the_first_is_a_refusal() -> None:
    lines = [b""]

    async def pieces() -> AsyncIterator[bytes]:
        for line in lines:
            if not line:
                raise BadRequest("not now")
            yield line

    async def check(served: Front) -> None:
        status, _, body = split(await served.exchange(get("/pieces")))
        assert (status, body) == ("HTTP/1.1 400 Bad Request", b"not now")

    with_server(check, {"/pieces": {"GET": lambda request: Response(pieces())}})


def test_a_client_that_leaves_ends_its_answer() -> None:
    ended = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65_536
                await asyncio.sleep(0)
        finally:
            ended.set()

    async def check(served: Front) -> None:
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(get("/long"))
        await reader.readline()
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 5)
        await eventually(lambda: not served.server.connections)

    with_server(check, {"/long": {"GET": lambda _: Response(pieces())}})


def without_interim(answer: bytes) -> bytes:
    while answer.startswith(b"HTTP/1.1 100 "):
        answer = answer.partition(b"\r\n\r\n")[2]
    return answer


def test_a_client_that_has_said_its_last_word_still_gets_its_answers() -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.2)
        return echo(request)

    async def check(served: Front) -> None:
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(post("/slow", b"1", close=False) + post("/slow", b"2", close=False))
        writer.write_eof()
        answer = without_interim(await reader.read())
        assert bodies(answer) == [b"POST /slow? 1", b"POST /slow? 2"]
        writer.close()

    with_server(check, {"/slow": {"POST": slow}})


def test_a_stream_to_a_half_closed_client_stays_whole() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one", b"two", b"three"):
            yield piece
            await asyncio.sleep(0.2)

    async def check(served: Front) -> None:
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(get("/long"))
        await reader.readuntil(b"one\r\n")
        writer.write_eof()
        rest = await reader.read()
        assert unchunk(rest) == (b"twothree", True)
        assert rest.startswith(b"0"), "it was not looked whether the client is there"
        writer.close()

    with_server(check, {"/long": {"GET": lambda _: Response(pieces())}})


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("is_half_closed_first", [False, True])
def test_a_client_that_has_gone_is_noticed_while_nothing_is_sent(has_begun: bool, is_half_closed_first: bool) -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"begun"
        await wait()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            gone.set()

    async def silent(request: Request) -> Response:
        if not has_begun:
            await wait()
        return Response(pieces())

    async def check(served: Front) -> None:
        _, writer = await asyncio.open_connection(*served.address)
        writer.write(get("/silent"))
        await begun.wait()
        if is_half_closed_first:
            writer.write_eof()
            await asyncio.sleep(0.1)
        writer.close()
        await asyncio.wait_for(gone.wait(), 3)

    with_server(check, {"/silent": {"GET": silent}})


def test_an_answer_that_breaks_off_is_not_ended(caplog: pytest.LogCaptureFixture) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"begun"
        raise ValueError("broken on purpose")

    async def check(served: Front) -> None:
        with contextlib.suppress(ConnectionError):
            assert not (await served.exchange(get("/long"))).endswith(b"0\r\n\r\n")
        assert "broken on purpose" in caplog.text

    with_server(check, {"/long": {"GET": lambda _: Response(pieces())}})


@pytest.mark.parametrize("sent", [b"", b"GET /echo HTT", get("/echo")[:-2], post("/echo", b"1234")[:-1]])
def test_a_client_that_says_nothing_more_is_left(sent: bytes) -> None:
    async def check(served: Front) -> None:
        assert await served.exchange(sent) == b""

    with_server(check, idle_seconds=0.1, read_seconds=0.1)


def test_time_that_a_handler_takes_is_not_the_clients() -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.3)
        return echo(request)

    async def check(served: Front) -> None:
        assert split(await served.exchange(get("/slow")))[0] == "HTTP/1.1 200 OK"

    with_server(check, {"/slow": {"GET": slow}}, idle_seconds=0.05, read_seconds=0.05)


def test_a_stop_lets_answers_end_and_takes_no_more() -> None:
    entered = asyncio.Event()
    leave = asyncio.Event()

    async def slow(request: Request) -> Response:
        entered.set()
        await leave.wait()
        return echo(request)

    async def check(served: Front) -> None:
        idle_reader, idle_writer = await asyncio.open_connection(*served.address)
        idle_writer.write(post("/nope", b"", close=False))
        await idle_reader.readuntil(b"there is no /nope here")
        answer = asyncio.create_task(served.exchange(post("/slow", b"", close=False)))
        await entered.wait()
        stop = asyncio.create_task(served.server.stop(grace=5))
        assert await idle_reader.read() == b"", "an idle connection is closed at once"
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(*served.address)
        leave.set()
        assert split(await answer)[0] == "HTTP/1.1 200 OK"
        await stop
        idle_writer.close()

    with_server(check, {"/slow": {"POST": slow}})


@pytest.mark.parametrize("read", [0, 1, 20, -1])
def test_a_stop_lets_a_request_come_that_is_on_its_way(read: int) -> None:
    """A client that has connected sends at once; whatever was read of that, a close would leave it without a word."""

    async def check(served: Front) -> None:
        reader, writer = await asyncio.open_connection(*served.address)
        await eventually(lambda: len(served.server.connections) == 1)
        whole = post("/echo", b"body", close=False)
        writer.write(whole[:read])
        await asyncio.sleep(0.02)
        stop = asyncio.create_task(served.server.stop(grace=5))
        await asyncio.sleep(0.05)
        writer.write(whole[read:])
        answer = await reader.read()
        assert split(answer)[0] == "HTTP/1.1 200 OK"
        assert b"\r\nConnection: close\r\n" in answer
        await stop
        writer.close()

    with_server(check)


def test_a_stop_does_not_wait_long_for_a_client_that_says_nothing() -> None:
    async def check(served: Front) -> None:
        reader, writer = await asyncio.open_connection(*served.address)
        await eventually(lambda: len(served.server.connections) == 1)
        stop = asyncio.create_task(served.server.stop(grace=60))
        assert await reader.read() == b""
        await stop
        writer.close()

    with_server(check, idle_seconds=0.4)


def test_a_server_that_drains_answers_and_ends_each_connection() -> None:
    async def check(served: Front) -> None:
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(post("/echo", b"", close=False))
        assert b"Connection: close" not in await reader.readuntil(b"\r\n\r\n")
        served.server.is_draining = True
        writer.write(post("/echo", b"", close=False))
        assert b"\r\nConnection: close\r\n" in await reader.read(), "kept from before"
        assert b"\r\nConnection: close\r\n" in await served.exchange(post("/echo", b"", close=False)), "a new one"
        writer.close()

    with_server(check)


def test_what_has_not_ended_in_time_is_cancelled_and_may_say_so() -> None:
    entered = asyncio.Event()

    async def endless(request: Request) -> Response:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise BadRequest("it ends") from None
        return echo(request)

    async def check(served: Front) -> None:
        answer = asyncio.create_task(served.exchange(post("/endless", b"", close=False)))
        await entered.wait()
        await served.server.stop(grace=0.01)
        assert b"it ends" in await answer

    with_server(check, {"/endless": {"POST": endless}})


def test_values_of_a_request_are_found_by_name() -> None:
    assert named(((b"A", b"1"), (b"b", b"2"), (b"a", b"3"))) == {b"a": b"1", b"b": b"2"}


def test_nothing_is_logged_for_what_clients_do(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def check(served: Front) -> None:
        await served.exchange(b"nonsense\r\n\r\n")
        await served.exchange(get("/nope"))
        assert not [record for record in caplog.records if record.name.startswith("balancer")]

    with_server(check)
