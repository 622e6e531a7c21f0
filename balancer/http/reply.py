"""The answer to one request, on its way to the client.

Knows how an answer is framed for this client (RFC 9112, section 6.3), and that it is written at most once. Never knows where it
comes from. What is written after the client has gone is lost without a word.
"""

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from balancer.http.messages import REASONS, Request, Response, has_no_body

if TYPE_CHECKING:
    import asyncio


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Source(Protocol):
    """Where an answer comes from, while it comes: told when the client reads more slowly than it is written to."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def give_up(self, error: Exception) -> None:
        """End the exchange, with this error; nothing happens where it has ended."""
        ...


class Client(Protocol):
    """The connection that a reply goes out by."""

    is_closed: bool
    is_stalled: bool
    """Whether the client does not keep up with what is written."""
    transport: "asyncio.Transport"
    peer: str
    """Its address; empty where it has none (a socket in the file system)."""

    @property
    def is_finishing(self) -> bool:
        """Whether no further request is taken."""
        ...

    def write(self, data: bytes) -> None: ...

    def replied(self, reply: "Reply") -> None: ...

    def abort(self) -> None: ...

    async def drained(self) -> None: ...


class _Framing(Enum):
    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_CLOSE = auto()


class Reply:
    """One answer. Either ``send`` it whole, or ``start`` it and ``write`` its body as it comes."""

    __slots__ = (
        "_client",
        "_framing",
        "_head",
        "_source",
        "has_begun",
        "has_ended",
        "keeps_alive",
        "lines",
        "request",
        "status",
    )

    def __init__(self, client: Client, request: Request) -> None:
        self._client = client
        self._head = b""
        self._framing = _Framing.NONE
        self.request = request
        self.status = 0
        """That of the answer, once it has been started."""
        self._source: Source | None = None
        self.has_begun = False
        """Whether any byte has gone out."""
        self.has_ended = False
        self.lines = b""
        """Further lines of the head, whatever the answer is."""
        self.keeps_alive = request.keeps_alive
        """Whether another request may follow by the same connection."""

    @property
    def is_lost(self) -> bool:
        """Whether the client has gone."""
        return self._client.is_closed

    @property
    def peer(self) -> str:
        """The address at the other end of the connection; empty where it has none (a socket in the file system)."""
        return self._client.peer

    def comes_from(self, source: Source) -> None:
        """Let this one wait from now on while the client does not keep up."""
        self._source = source
        if self._client.is_stalled:
            source.pause()

    def stalled(self) -> None:
        """The client does not keep up."""
        if self._source is not None:
            self._source.pause()

    def flows(self) -> None:
        """The client keeps up again."""
        if self._source is not None:
            self._source.resume()

    def send(self, response: Response) -> None:
        """Answer at once, with a whole body."""
        assert isinstance(response.body, bytes)
        self.start_response(response)
        self.write(response.body, is_last=True)

    def start_response(self, response: Response) -> None:
        """Start an answer of our own; a body in pieces is for the caller to write."""
        length = len(response.body) if isinstance(response.body, bytes) else None
        more = "".join(f"{name}: {value}\r\n" for name, value in response.headers)
        lines = f"Content-Type: {response.content_type}\r\n{more}".encode(errors="surrogateescape")
        self.start(response.status, REASONS[response.status], lines, length)

    def start(self, status: int, reason: bytes, lines: bytes, length: int | None) -> None:
        """The head: header lines but those of connection and framing, and the body's length where it is known.

        It goes out with the first piece of the body, be it empty.
        """
        assert not self.has_begun
        self.status = status
        is_old = self.request.version == "1.0"
        if self.request.method == "HEAD" or has_no_body(status):
            self._framing = _Framing.NONE
            framing = b"" if length is None or status < 200 or status == 204 else b"Content-Length: %d\r\n" % length
        elif length is not None:
            self._framing = _Framing.LENGTH
            framing = b"Content-Length: %d\r\n" % length
        elif is_old:
            self._framing = _Framing.UNTIL_CLOSE
            self.keeps_alive = False
            framing = b""
        else:
            self._framing = _Framing.CHUNKED
            framing = b"Transfer-Encoding: chunked\r\n"
        if self._client.is_finishing:
            self.keeps_alive = False
        connection = (
            b"Connection: close\r\n" if not self.keeps_alive else b"Connection: keep-alive\r\n" if is_old else b""
        )
        self._head = b"HTTP/1.1 %d %b\r\n%b%b%b%b\r\n" % (status, reason, lines, self.lines, framing, connection)

    def write(self, body: bytes, *, is_last: bool = False) -> None:
        """A piece of the body, framed; what is written at once goes out at once."""
        if self.has_ended or self._client.is_closed:
            return
        if self._framing is _Framing.CHUNKED:
            if body:
                body = b"%x\r\n%b\r\n" % (len(body), body)
            if is_last:
                body += b"0\r\n\r\n"
        elif self._framing is _Framing.NONE:
            body = b""
        if not self.has_begun:
            self.has_begun = True
            body = self._head + body
        if body:
            self._client.write(body)
        if is_last:
            self._end()

    def _end(self) -> None:
        self.has_ended = True
        self._source = None
        self._client.replied(self)

    @property
    def may_end(self) -> bool:
        """Whether the body may end with what was written: it has begun, and nobody has been told how long it is."""
        return self.has_begun and not self.has_ended and self._framing is not _Framing.LENGTH

    def probe(self) -> bool:
        """Send something that says nothing to the client, and return whether that could be done.

        Before the answer, an interim one, which every client of HTTP/1.1 reads over (RFC 9110, section 15.2); in its middle, a
        leading zero of the next chunk's size.
        """
        if self.request.version != "1.1":
            return False
        if not self.has_begun:
            self._client.write(CONTINUE)
        elif self._framing is _Framing.CHUNKED:
            self._client.write(b"0")
        else:
            return False
        return True

    def break_off(self) -> None:
        """End the connection without the answer's end, so that nobody takes it for whole."""
        if not self.has_ended:
            self.keeps_alive = False
            self._framing = _Framing.UNTIL_CLOSE
            self._end()

    async def drained(self) -> None:
        """Return once the client has read most of what was written, or has gone.

        Raises:
            TimeoutError: it does not read.
        """
        await self._client.drained()
