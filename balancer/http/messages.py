"""Requests and answers, as those who handle them see them.

Knows names, values and bodies. Never knows connections, framing or order.
"""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Final

import msgspec

from balancer.http.fields import Fields, Named


class Request(msgspec.Struct, frozen=True):
    """One request, read whole. ``path`` is as it came, without its query; empty where there is none (CONNECT)."""

    method: str
    path: str
    query: str = ""
    headers: Fields = ()
    body: bytes = b""
    version: str = "1.1"
    keeps_alive: bool = True
    """Whether the client may send another one by the same connection."""
    named: Named = {}
    """The headers by their names."""


class Response(msgspec.Struct, frozen=True):
    """One answer of our own: its body whole, or in pieces as they are made."""

    body: bytes | AsyncIterator[bytes] = b""
    status: int = 200
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Head(msgspec.Struct, frozen=True):
    """The head of somebody else's answer. ``length`` is that of the body in bytes; None where only its end will tell."""

    status: int
    reason: bytes
    headers: Fields
    length: int | None
    named: Named = {}
    """The headers by their names."""


class Outgoing(msgspec.Struct, frozen=True):
    """A request to somebody else. ``target`` has path and query, ``lines`` the headers but those of connection and framing."""

    method: bytes
    target: bytes
    lines: bytes = b""
    body: bytes = b""


REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


def has_no_body(status: int) -> bool:
    """Whether an answer of this status has none, whatever its head says (RFC 9110, section 6.4.1)."""
    return status < 200 or status in {204, 304}
