"""``balancer/http/client.py``, ``exchange.py``: answers come whole or not at all, and connections are used again with care."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from balancer.http.client import HttpClient
from balancer.http.exchange import (
    BrokenOff,
    ExchangeFailed,
    Limits,
    NotConnected,
    TimedOut,
    Unanswered,
    UpstreamConnection,
)
from balancer.http.messages import Head, Outgoing
from balancer.http.reply import Source
from tests.support.waiting import eventually, run

pytestmark = pytest.mark.usefixtures("loop_kind")

Talk = Callable[["Peer", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

QUICK = Limits(connect=5, first_byte=5, idle=5)
ASKED = Outgoing(b"POST", b"/x?y=1", b"A: b\r\n", b"body")
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello"


class Peer:
    """Whoever is asked. ``asked`` are the requests as they came, each with the number of its connection."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.address = ""
        self.asked: list[tuple[int, bytes]] = []
        self.open = 0
        self.opened = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.opened += 1
        try:
            await self.talk(self, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """The next request, head and body."""
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        whole = head + await reader.readexactly(int(lengths[0]) if lengths else 0)
        self.asked.append((self.opened, whole))
        return whole


class Taken:
    """A receiver that keeps everything."""

    is_opening = False

    def __init__(self, surprise: Exception | None = None) -> None:
        self.source: Source | None = None
        self.heads: list[Head] = []
        self.pieces: list[bytes] = []
        self.has_ended = False
        self.surprise = surprise

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def opened(self, connection: Source) -> None:
        self.source = connection

    def head(self, head: Head) -> None:
        self.heads.append(head)

    def received(self, body: bytes, *, is_last: bool) -> None:
        assert not self.has_ended
        assert self.heads
        if self.surprise is not None:
            raise self.surprise
        self.pieces.append(body)
        self.has_ended = is_last


def answering(*pieces: bytes, then_close: bool = False, pause: float = 0.0) -> Talk:
    """Every request gets these bytes, each piece by itself."""

    async def talk(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await peer.request(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
            if then_close:
                return

    return talk


def falling_silent(after: bytes = b"") -> Talk:
    async def talk(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(after)
        await reader.read()

    return talk


def with_peer(talk: Talk, check: Callable[[HttpClient, Peer], Awaitable[None]], keepalive: float = 5.0) -> None:
    async def begin() -> None:
        peer = Peer(talk)
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
        peer.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = HttpClient(keepalive)
        try:
            await check(client, peer)
        finally:
            await client.close()
            await eventually(lambda: peer.open == 0)
            server.close()

    run(begin())


def test_what_is_sent_is_what_was_given() -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        taken = Taken()
        await client.exchange(peer.address, ASKED, taken, QUICK)
        host = peer.address.removeprefix("http://").encode()
        assert peer.asked[0][1] == b"POST /x?y=1 HTTP/1.1\r\nHost: %b\r\nA: b\r\nContent-Length: 4\r\n\r\nbody" % host
        (head,) = taken.heads
        assert (head.status, head.reason, head.length, head.named[b"x"]) == (200, b"OK", 5, b"y")
        assert (taken.body, taken.has_ended) == (b"hello", True)

    with_peer(answering(WHOLE), check)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: t\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nhello"


@pytest.mark.parametrize("answer", [WHOLE, CHUNKED, INTERIM + WHOLE, INTERIM + CHUNKED, UNTIL_CLOSE])
def test_an_answer_is_read_whatever_pieces_it_comes_in(answer: bytes) -> None:
    is_last = answer is UNTIL_CLOSE

    async def check(client: HttpClient, peer: Peer) -> None:
        for at in range(1, len(answer)):
            peer.talk = answering(answer[:at], answer[at:], then_close=is_last, pause=0.001)
            taken = Taken()
            await client.exchange(peer.address, ASKED, taken, QUICK)
            assert (taken.body, taken.has_ended, taken.heads[0].status) == (b"hello", True, 200)
            assert all(name.lower() != b"trailer" for name, _ in taken.heads[0].headers)

    with_peer(answering(answer, then_close=is_last), check, keepalive=0)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 No\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 N\r\nETag: x\r\n\r\n"),
    ],
)
def test_an_answer_without_a_body_leaves_its_connection_usable(method: bytes, answer: bytes) -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        for _ in range(3):
            taken = Taken()
            await client.exchange(peer.address, Outgoing(method, b"/"), taken, QUICK)
            assert (taken.body, taken.has_ended) == (b"", True)
        assert {by for by, _ in peer.asked} == {1}

    with_peer(answering(answer), check)


def test_a_connection_is_used_again() -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        for _ in range(5):
            await client.exchange(peer.address, ASKED, Taken(), QUICK)
        assert [by for by, _ in peer.asked] == [1] * 5
        await asyncio.gather(*(client.exchange(peer.address, ASKED, Taken(), QUICK) for _ in range(3)))
        assert peer.opened == 3

    with_peer(answering(WHOLE), check)


def test_as_many_connections_are_open_as_requests_are_under_way() -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        everybody = asyncio.Event()

        async def talk(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await peer.request(reader)
            if peer.open == 300:
                everybody.set()
            await everybody.wait()
            writer.write(WHOLE)
            await reader.read()

        peer.talk = talk
        await asyncio.gather(*(client.exchange(peer.address, ASKED, Taken(), QUICK) for _ in range(300)))

    with_peer(answering(WHOLE), check)


@pytest.mark.parametrize(
    "answer",
    [
        WHOLE.replace(b"X: y", b"Connection: close"),
        WHOLE.replace(b"1.1", b"1.0"),
        WHOLE + b"more",
        WHOLE + WHOLE,
        CHUNKED + b"\0",
    ],
)
def test_a_connection_that_is_not_to_be_used_again_is_closed(answer: bytes) -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        for _ in range(2):
            taken = Taken()
            await client.exchange(peer.address, ASKED, taken, QUICK)
            assert taken.body == b"hello", "what comes behind an answer is nobody's"
        assert [by for by, _ in peer.asked] == [1, 2]
        await eventually(lambda: peer.open == 0)

    with_peer(answering(answer), check)


def test_a_connection_on_which_somebody_speaks_unasked_is_closed() -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        await client.exchange(peer.address, ASKED, Taken(), QUICK)
        await eventually(lambda: peer.open == 0)
        taken = Taken()
        await client.exchange(peer.address, ASKED, taken, QUICK)
        assert taken.body == b"hello"

    with_peer(answering(WHOLE, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", pause=0.02), check)


def test_a_kept_connection_is_closed_in_time() -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        await client.exchange(peer.address, ASKED, Taken(), QUICK)
        assert peer.open == 1
        await eventually(lambda: peer.open == 0, 2)
        await client.exchange(peer.address, ASKED, Taken(), QUICK)
        assert peer.opened == 2

    with_peer(answering(WHOLE), check, keepalive=0.1)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_the_race_with_the_other_sides_close_costs_a_second_try(how: str) -> None:
    """The second request on a connection finds it closing: it goes out again, the same, on a new one."""

    async def talk(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(WHOLE)
        await peer.request(reader)
        if how == "reset":
            writer.transport.abort()

    async def check(client: HttpClient, peer: Peer) -> None:
        for _ in range(3):
            taken = Taken()
            await client.exchange(peer.address, ASKED, taken, QUICK)
            assert taken.body == b"hello"
        assert [by for by, _ in peer.asked] == [1, 1, 2, 2, 3]
        assert len({asked for _, asked in peer.asked}) == 1

    with_peer(talk, check)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_new_connection_without_an_answer_is_not_tried_again(how: str) -> None:
    async def talk(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        if how == "reset":
            writer.transport.abort()

    async def check(client: HttpClient, peer: Peer) -> None:
        with pytest.raises(Unanswered):
            await client.exchange(peer.address, ASKED, Taken(), QUICK)
        assert len(peer.asked) == 1

    with_peer(talk, check)


@pytest.mark.parametrize(
    "answer",
    [
        b"H",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        WHOLE[:-1],
        CHUNKED[:-1],
        CHUNKED[:-20],
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"Content-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
def test_what_is_no_whole_answer_is_broken_off(answer: bytes) -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        taken = Taken()
        with pytest.raises(BrokenOff):
            await client.exchange(peer.address, ASKED, taken, QUICK)
        assert not taken.has_ended
        assert len(peer.asked) == 1

    with_peer(answering(answer, then_close=True), check)


@pytest.mark.parametrize(
    ("talk", "limits", "told"),
    [
        (falling_silent(), Limits(first_byte=0.05), "nothing came for 0.05 s"),
        (falling_silent(WHOLE[:-1]), Limits(idle=0.05), "nothing came for 0.05 s"),
        (falling_silent(WHOLE[:9]), Limits(first_byte=0.05), "nothing came for 0.05 s"),
        (
            answering(WHOLE[:-3], *[b"."] * 2, pause=0.1),
            Limits(idle=0.2, total=0.25),
            "has not come to its end for 0.25 s",
        ),
    ],
)
def test_an_answer_has_its_time(talk: Talk, limits: Limits, told: str) -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        with pytest.raises(TimedOut, match=told):
            await client.exchange(peer.address, ASKED, Taken(), limits)
        await eventually(lambda: peer.open == 0)

    with_peer(talk, check)


def test_until_it_says_something_an_answer_has_the_time_of_its_beginning() -> None:
    """Engines send the head of a stream at once, and only then compute the prompt."""

    async def check(client: HttpClient, peer: Peer) -> None:
        taken = Taken()
        taken.is_opening = True
        with pytest.raises(TimedOut, match=r"nothing came for 0\.1 s"):
            await client.exchange(peer.address, ASKED, taken, Limits(first_byte=0.1, idle=0.02))
        with pytest.raises(TimedOut, match=r"nothing came for 0\.02 s"):
            await client.exchange(peer.address, ASKED, Taken(), Limits(first_byte=5, idle=0.02))

    with_peer(falling_silent(WHOLE[:-2]), check)


def test_time_to_connect_is_part_of_the_whole() -> None:
    async def late(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        await asyncio.sleep(0.2)
        writer.write(WHOLE)

    async def check(client: HttpClient, peer: Peer) -> None:
        pool = client._open_pool(peer.address)
        connect = pool.connect

        async def slowly(seconds: float) -> UpstreamConnection:
            await asyncio.sleep(0.3)
            return await connect(seconds)

        pool.connect = slowly  # type: ignore[method-assign]
        with pytest.raises(TimedOut, match=r"for 0\.35 s"):
            await client.exchange(peer.address, ASKED, Taken(), Limits(total=0.35))

    with_peer(late, check)


def test_an_answer_that_goes_on_may_take_long() -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        taken = Taken()
        await client.exchange(peer.address, ASKED, taken, Limits(first_byte=0.3, idle=0.3))
        assert taken.body == b"." * 10

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
    with_peer(answering(head, *[b"."] * 10, pause=0.06), check)


def test_a_receiver_that_lets_wait_is_not_the_replicas_fault() -> None:
    size = 20_000_000

    async def check(client: HttpClient, peer: Peer) -> None:
        taken = Taken()
        asking = asyncio.create_task(client.exchange(peer.address, ASKED, taken, Limits(idle=0.1)))
        await eventually(lambda: taken.pieces)
        assert taken.source is not None
        taken.source.pause()
        await asyncio.sleep(0.05)
        held = len(taken.body)
        await asyncio.sleep(0.3)
        assert len(taken.body) == held < size
        assert not asking.done()
        taken.source.resume()
        await asking
        assert len(taken.body) == size

    with_peer(answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, b"x" * size), check)


def test_who_gives_up_closes_the_connection() -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        for _ in range(2):
            asking = asyncio.create_task(client.exchange(peer.address, ASKED, Taken(), QUICK))
            await eventually(lambda: peer.open == 1 and peer.asked)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await eventually(lambda: peer.open == 0)
            peer.asked.clear()

    with_peer(falling_silent(), check)


def test_what_the_receiver_raises_ends_the_exchange() -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        for answer in (WHOLE, UNTIL_CLOSE):
            peer.talk = answering(answer, then_close=answer is UNTIL_CLOSE)
            with pytest.raises(ZeroDivisionError):
                await client.exchange(peer.address, ASKED, Taken(ZeroDivisionError()), QUICK)
            await eventually(lambda: peer.open == 0)

    with_peer(answering(WHOLE), check)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "unix:/nowhere/at/all", "http://no.such.host.invalid:80"])
def test_nobody_there_is_told_and_nothing_was_sent(endpoint: str) -> None:
    async def check() -> None:
        client = HttpClient(1.0)
        with pytest.raises(NotConnected):
            await client.exchange(endpoint, ASKED, Taken(), QUICK)
        await client.close()

    run(check())


class Patched:
    """A loop whose connections never come about; uvloop's own cannot be changed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def create_connection(self, *_: Any, **__: Any) -> None:
        await asyncio.sleep(60)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def test_who_does_not_take_the_connection_in_time_is_not_there() -> None:
    async def check() -> None:
        client = HttpClient(1.0)
        client._loop = Patched(asyncio.get_running_loop())  # type: ignore[assignment]
        with pytest.raises(NotConnected, match=r"no connection within 0\.05 s"):
            await client.exchange("http://127.0.0.1:1", ASKED, Taken(), Limits(connect=0.05))
        await client.close()

    run(check())


def test_a_socket_in_the_file_system_is_asked_alike(tmp_path: Path) -> None:
    async def check() -> None:
        peer = Peer(answering(WHOLE))
        path = tmp_path / "socket"
        server = await asyncio.start_unix_server(peer.serve, path)
        client, taken = HttpClient(1.0), Taken()
        await client.exchange(f"unix:{path}", ASKED, taken, QUICK)
        assert taken.body == b"hello"
        await client.close()
        server.close()

    run(check())


def test_nothing_is_left_of_a_client_that_is_closed() -> None:
    async def check(client: HttpClient, peer: Peer) -> None:
        asking = asyncio.create_task(client.exchange(peer.address, ASKED, Taken(), QUICK))
        await eventually(lambda: peer.asked)
        await client.close()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError, ExchangeFailed):
            await asking
        await eventually(lambda: peer.open == 0)

    with_peer(falling_silent(), check)
