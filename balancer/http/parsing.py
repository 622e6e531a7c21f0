"""Bytes of a connection -> requests, and bytes of another -> answers.

Knows the C parser (llhttp, in ``httptools``) and what it lets pass that must not go on to anybody else: what two readers could
cut differently is refused here. Never knows sockets or time. Trailers and chunk extensions are read over.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, HttpResponseParser

from balancer.errors import BadRequest, BodyTooLarge, HeadTooLarge, RequestError
from balancer.http.fields import Fields, lines
from balancer.http.messages import Head, Request, has_no_body

MAX_HEAD_BYTES: Final = 64 * 1024
"""Longest first line with its headers, of a request or of an answer."""

MAX_FIELDS: Final = 256
"""Most headers of a request or of an answer."""

MAX_OVERHEAD: Final = 16
"""Most bytes that come for each byte of a body, over long times: a chunk of one byte takes six."""

SMALL_BODY: Final = 16 * 1024
"""Bytes of a body that are read before anybody asks whose it is."""

Check: TypeAlias = Callable[[Fields], object]
"""Looks at the headers of a request before its body is read; what it raises is the answer."""

_FRAMING: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect"})


class RequestReader:
    """The requests of one connection. Feed it what comes; take them from ``ready``."""

    __slots__ = (
        "_body",
        "_check",
        "_fed",
        "_has_large_body",
        "_head",
        "_headers",
        "_last",
        "_max_body_bytes",
        "_named",
        "_parser",
        "_url",
        "_version",
        "body_bytes",
        "has_begun",
        "is_over",
        "ready",
        "waits_for_leave",
    )

    def __init__(self, max_body_bytes: int, check: Check | None = None) -> None:
        """``check`` is asked before a body of more than ``SMALL_BODY`` is read, or one whose length nobody knows."""
        self._check = check
        self._parser = HttpRequestParser(self)
        self._max_body_bytes = max_body_bytes
        self._last = 0  # bytes fed by the last call
        self.ready: list[Request] = []
        self.is_over = False
        """Whether no further request can come: the last one said so, or something could not be read."""
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head: list[tuple[bytes, bytes]] | None = (
            None  # once it is whole; what comes into _headers then is a trailer
        )
        self._named: dict[bytes, bytes] = {}
        self._version = ""
        self._has_large_body = False
        self._body: list[bytes] = []
        self._fed = self._last  # bytes, at most one feed more than those of this request
        self.has_begun = False
        """Whether a request has come in part."""
        self.body_bytes = 0
        """How much has come of its body."""
        self.waits_for_leave = False
        """Whether the client wants to be told to go on before it sends the body (``Expect: 100-continue``)."""

    def feed(self, data: bytes) -> None:
        """Take in what has come; nothing happens once ``is_over``.

        Raises:
            RequestError: it cannot be read, nor can anything after it. Requests before it are ``ready``.
        """
        if self.is_over:
            return
        self._last = len(data)
        self._fed += len(data)
        try:
            self._parse(data)
            if self._fed > MAX_HEAD_BYTES and self.has_begun:
                self._check_size()
        except HttpParserError as error:
            self._end(error)
        except RequestError:
            self.is_over = True
            raise

    def _parse(self, data: bytes) -> None:
        rest: bytes | memoryview = data
        while True:
            try:
                return self._parser.feed_data(rest)
            except HttpParserUpgrade as told:
                if self.is_over:
                    return None
                rest = memoryview(rest)[told.args[0] :]
                self._read_as_plain()

    def _read_as_plain(self) -> None:
        """Read the head again without its ``Upgrade``: the parser leaves out the body of a request that has one, and whatever
        follows. No other protocol is spoken here, so what follows is of this one (RFC 9110, section 7.8).
        """
        fields = [field for field in self._head or () if field[0].lower() != b"upgrade"]
        start = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._url, self._version.encode())
        self._parser = HttpRequestParser(self)
        self._url, self._headers, self._head = b"", [], None
        self._parser.feed_data(start + lines(fields) + b"\r\n")

    def _end(self, error: HttpParserError) -> None:
        if self.is_over:  # what follows a last request is nobody's
            return
        self.is_over = True
        told = error.__context__
        if isinstance(told, RequestError):  # raised by a callback below
            raise told from None
        raise BadRequest(f"not HTTP: {error}") from error

    def _check_size(self) -> None:
        """Of a request that is not whole: that what is read over cannot go on for ever."""
        if self._head is None and self._fed - self._last > MAX_HEAD_BYTES:
            raise self._head_too_large()
        if self._fed - self._last > 2 * MAX_HEAD_BYTES + MAX_OVERHEAD * self.body_bytes:
            raise BadRequest("the body is not worth its framing: its chunk extensions or trailers are too long")

    # The parser's side

    def on_message_begin(self) -> None:
        self.has_begun = True

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self._headers) >= MAX_FIELDS:
            raise HeadTooLarge(f"the request has more than {MAX_FIELDS} headers")
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        fields = self._headers
        if self._fed > MAX_HEAD_BYTES and len(self._url) + sum(len(n) + len(v) + 4 for n, v in fields) > MAX_HEAD_BYTES:
            raise self._head_too_large()
        self._version = version = self._parser.get_http_version()
        if version not in {"1.1", "1.0"}:
            raise BadRequest(f"HTTP/{version} is not spoken here; use HTTP/1.1")
        hosts = 0
        named: dict[bytes, bytes] = {}
        for name, value in fields:
            lower = name.lower()
            named.setdefault(lower, value)
            if lower in _FRAMING:
                hosts += lower == b"host"
                self._read_framing(lower, value)
        if hosts > 1 or (not hosts and version == "1.1"):
            raise BadRequest("Host: must be there once (RFC 9112, section 3.2)")
        if self._has_large_body and self._check is not None:
            self._check(fields)
        self._head, self._headers, self._named = fields, [], named

    def _read_framing(self, name: bytes, value: bytes) -> None:
        is_new = self._version == "1.1"
        if name == b"content-length":
            if int(value) > self._max_body_bytes:
                raise self._body_too_large()
            self._has_large_body = int(value) > SMALL_BODY
        if name == b"transfer-encoding" and (value.lower() != b"chunked" or not is_new):
            raise BadRequest("Transfer-Encoding: only chunked is read here, and only in HTTP/1.1")
        self._has_large_body |= name == b"transfer-encoding"
        if name == b"expect" and is_new:
            self.waits_for_leave = value.lower() == b"100-continue"

    def on_body(self, part: bytes) -> None:
        self.waits_for_leave = False
        self.body_bytes += len(part)
        if self.body_bytes > self._max_body_bytes:
            raise self._body_too_large()
        self._body.append(part)

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the request's head is longer than {MAX_HEAD_BYTES} bytes")

    def _body_too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"the body is larger than {self._max_body_bytes:,} bytes; the limit is server.max_body_bytes"
        )

    def on_message_complete(self) -> None:
        parser = self._parser
        method = parser.get_method().decode()
        if parser.should_upgrade() and method != "CONNECT":
            return  # it is not: ``_read_as_plain``
        path, _, query = _origin_form(method, self._url).decode("latin-1").partition("?")
        body = self._body
        keeps_alive = parser.should_keep_alive() and not parser.should_upgrade()
        self.ready.append(
            Request(
                method,
                path,
                query,
                self._head or (),
                body[0] if len(body) == 1 else b"".join(body),
                self._version,
                keeps_alive,
                self._named,
            )
        )
        self.is_over = not keeps_alive
        self._begin()


def _origin_form(method: str, target: bytes) -> bytes:
    """Path and query of any form of target (RFC 9112, section 3.2)."""
    if target.startswith(b"/"):
        return target
    if method == "CONNECT":
        return b""
    _, is_absolute, rest = target.partition(b"://")
    if not is_absolute:
        return target  # "*", which is no path of anybody's
    _, slash, path = rest.partition(b"/")
    return slash + path or b"/"


class BadAnswer(Exception):
    """What came is no answer that can be read."""


class AnswerReader:
    """The answers of one connection, one after the other. ``begin`` before each; feed it what comes."""

    __slots__ = (
        "_fed",
        "_headers",
        "_parser",
        "_reason",
        "_to_head",
        "ends_with_connection",
        "head",
        "is_complete",
        "is_reusable",
        "on_body",
        "pieces",
    )

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        """What has come of the body and was not taken yet; whoever takes it clears it."""
        self.on_body = self.pieces.append
        self._parser = HttpResponseParser(self)
        self._to_head = False
        self.begin()

    def begin(self, *, to_head: bool = False) -> None:
        """The next answer is to come; with ``to_head``, to a HEAD request. The last one was complete."""
        if self._to_head:  # the parser awaits the body that it told of
            self._parser = HttpResponseParser(self)
        self._to_head = to_head
        self._reason = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._fed = 0
        self.head: Head | None = None
        """The final head, once it is there; interim ones (1xx) are read over."""
        self.is_complete = False
        self.is_reusable = False
        """Once complete: whether the connection can be used for another request."""
        self.ends_with_connection = False
        """Whether the body's end is that of the connection."""

    def feed(self, data: bytes) -> None:
        """Take in what has come.

        Raises:
            BadAnswer: it cannot be read.
        """
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise BadAnswer("it switches to another protocol") from None
        except HttpParserError as error:
            if not self.is_complete:
                told = error.__context__
                raise BadAnswer(str(told if isinstance(told, BadAnswer) else error)) from error
            self.is_reusable = False  # more has come than was asked for
        if self.head is None:
            self._fed += len(data)
            if self._fed > MAX_HEAD_BYTES:
                raise BadAnswer("its head is too long")

    # The parser's side

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise BadAnswer("more came than the answer")

    def on_status(self, part: bytes) -> None:
        self._reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self._headers) >= MAX_FIELDS:
            raise BadAnswer("it has too many headers")
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        fields, self._headers = self._headers, []  # what comes from now on is a trailer
        if status < 200:
            if status == 101:
                raise BadAnswer("it switches to another protocol")
            self._reason = b""
            return
        length: int | None = None
        is_chunked = False
        named: dict[bytes, bytes] = {}
        for name, value in fields:
            lower = name.lower()
            named.setdefault(lower, value)
            if lower == b"content-length":
                length = int(value)
            elif lower == b"transfer-encoding":
                if value.lower() != b"chunked" or self._parser.get_http_version() != "1.1":
                    raise BadAnswer("its Transfer-Encoding is not chunked")
                is_chunked = True
        if has_no_body(status) and not self._to_head:
            length = 0
        self.head = Head(status, self._reason, fields, length, named)
        self.ends_with_connection = length is None and not is_chunked and not self._to_head
        if self._to_head:
            self._complete()

    def on_message_complete(self) -> None:
        if self.head is not None and not self.is_complete:
            self._complete()

    def _complete(self) -> None:
        self.is_complete = True
        self.is_reusable = self._parser.should_keep_alive()
