"""Requests and responses, as handlers see them.

Knows names, values and the bytes of a response's head. Never knows connections or order.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Final, TypeAlias

import msgspec


class Request(msgspec.Struct, frozen=True):
    """One request, read whole. Header names are lower case; ``path`` is as it came, without its query."""

    method: str
    path: str
    query: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""

    def header(self, name: bytes) -> bytes | None:
        """The first header of this name (given in lower case)."""
        return next((value for known, value in self.headers if known == name), None)


class Response(msgspec.Struct, frozen=True):
    """One answer: its body whole, or in pieces as they are made. Pieces go out chunked."""

    body: bytes | AsyncIterator[bytes] = b""
    status: int = 200
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


Handler: TypeAlias = Callable[[Request], Response | Awaitable[Response]]
Routes: TypeAlias = dict[str, dict[str, Handler]]
"""Path -> method -> handler. A path is matched as a whole."""

STATUS_LINE: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def head(response: Response, *, keeps_alive: bool) -> bytes:
    """Status line and headers, with the empty line behind them."""
    length = (
        f"content-length: {len(response.body)}\r\n"
        if isinstance(response.body, bytes)
        else "transfer-encoding: chunked\r\n"
    )
    lines = "".join(f"{name}: {value}\r\n" for name, value in response.headers)
    end = "" if keeps_alive else "connection: close\r\n"
    text = f"content-type: {response.content_type}\r\n{length}{lines}{end}\r\n"
    return STATUS_LINE[response.status] + text.encode("latin-1")
