"""Bytes of a connection -> requests, and bytes of another -> answers.

Knows the C parser (llhttp, in ``httptools``) and what it lets pass that must not go on to anybody else: what two readers could
cut differently is refused here. Never knows sockets or time. Trailers and chunk extensions are read over.
"""

from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, HttpResponseParser

from balancer.errors import BadRequest, BodyTooLarge, HeadTooLarge, RequestError
from balancer.http.messages import Head, Request, has_no_body

MAX_HEAD_BYTES: Final = 64 * 1024
"""Longest first line with its headers, of a request or of an answer."""

MAX_FIELDS: Final = 256
"""Most headers of a request or of an answer."""


class RequestReader:
    """The requests of one connection. Feed it what comes; take them from ``ready``."""

    def __init__(self, max_body_bytes: int) -> None:
        self._parser = HttpRequestParser(self)
        self._max_body_bytes = max_body_bytes
        self.ready: list[Request] = []
        self.is_over = False
        """Whether no further request can come: the last one said so, or something could not be read."""
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._has_head = False
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
        if not self.is_over:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            pass  # it is answered as the plain request that it also is; another protocol would follow
        except HttpParserError as error:
            if self.is_over:  # what follows a last request is nobody's
                return
            self.is_over = True
            told = error.__context__
            if isinstance(told, RequestError):  # raised by a callback below
                raise told from None
            raise BadRequest(f"not HTTP: {error}") from error

    # The parser's side

    def on_message_begin(self) -> None:
        self.has_begun = True

    def on_url(self, part: bytes) -> None:
        self._url += part
        self._count(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self._has_head:  # a trailer
            return
        self._headers.append((name, value))

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge(f"the request's head is longer than {MAX_HEAD_BYTES} bytes")
        if len(self._headers) > MAX_FIELDS:
            raise HeadTooLarge(f"the request has more than {MAX_FIELDS} headers")

    def on_headers_complete(self) -> None:
        self._has_head = True
        version = self._parser.get_http_version()
        if version not in {"1.1", "1.0"}:
            raise BadRequest(f"HTTP/{version} is not spoken here; use HTTP/1.1")
        hosts = 0
        for name, value in self._headers:
            match name.lower():
                case b"host":
                    hosts += 1
                case b"content-length" if int(value) > self._max_body_bytes:
                    raise self._too_large()
                case b"transfer-encoding" if version == "1.0" or value.lower() != b"chunked":
                    raise BadRequest("Transfer-Encoding: only chunked is read here, and only in HTTP/1.1")
                case b"expect" if version == "1.1" and value.lower() == b"100-continue":
                    self.waits_for_leave = True
        if hosts > 1 or (not hosts and version == "1.1"):
            raise BadRequest("Host: must be there once (RFC 9112, section 3.2)")

    def on_body(self, part: bytes) -> None:
        self.waits_for_leave = False
        self.body_bytes += len(part)
        if self.body_bytes > self._max_body_bytes:
            raise self._too_large()
        self._body.append(part)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"the body is larger than {self._max_body_bytes:,} bytes; the limit is server.max_body_bytes"
        )

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("latin-1")
        path, _, query = _origin_form(method, self._url).partition(b"?")
        keeps_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        self.ready.append(
            Request(
                method=method,
                path=path.decode("latin-1"),
                query=query.decode("latin-1"),
                headers=self._headers,
                body=self._body[0] if len(self._body) == 1 else b"".join(self._body),
                version=self._parser.get_http_version(),
                keeps_alive=keeps_alive,
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

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        """What has come of the body and was not taken yet; whoever takes it clears it."""
        self.on_body = self.pieces.append
        self.begin()

    def begin(self, *, to_head: bool = False) -> None:
        """The next answer is to come; with ``to_head``, to a HEAD request."""
        self._parser = HttpResponseParser(self)
        self._to_head = to_head
        self.head: Head | None = None
        """The final head, once it is there; interim ones (1xx) are read over."""
        self.is_complete = False
        self.is_reusable = False
        """Once complete: whether the connection can be used for another request."""
        self.ends_with_connection = False
        """Whether the body's end is that of the connection."""
        self._start()

    def _start(self) -> None:
        self._reason = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0

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

    # The parser's side

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise BadAnswer("more came than the answer")

    def on_status(self, part: bytes) -> None:
        self._reason += part
        self._count(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self.head is None:  # else a trailer
            self._headers.append((name, value))

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or len(self._headers) > MAX_FIELDS:
            raise BadAnswer("its head is too long")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            if status == 101:
                raise BadAnswer("it switches to another protocol")
            self._start()
            return
        length: int | None = None
        is_chunked = False
        for name, value in self._headers:
            match name.lower():
                case b"content-length":
                    length = int(value)
                case b"transfer-encoding":
                    if value.lower() != b"chunked" or self._parser.get_http_version() != "1.1":
                        raise BadAnswer("its Transfer-Encoding is not chunked")
                    is_chunked = True
        if has_no_body(status) and not self._to_head:
            length = 0
        self.head = Head(status, self._reason, self._headers, length)
        self.ends_with_connection = length is None and not is_chunked and not self._to_head
        if self._to_head:
            self._complete()

    def on_message_complete(self) -> None:
        if self.head is not None and not self.is_complete:
            self._complete()

    def _complete(self) -> None:
        self.is_complete = True
        self.is_reusable = self._parser.should_keep_alive()
