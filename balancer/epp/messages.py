"""The messages of one ext_proc stream, between bytes and values.

Knows envoy.service.ext_proc.v3 as Envoy 1.40 has it: the fields that an endpoint picker reads, and the replies that it gives.
What else a proxy says is read over. Never knows in which order messages come, nor what is decided.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

import msgspec

from balancer.epp.wire import (
    LENGTH,
    VARINT,
    WireError,
    encoded_varint,
    field,
    fields,
    read_entry,
    read_struct,
    struct_of,
)
from balancer.epp.wire import varint as read_varint
from balancer.http.fields import Fields

NAMESPACE: Final = "envoy.lb"
"""Of dynamic metadata, where load balancers look for what was chosen (Gateway API Inference Extension, protocol 1.0)."""

HINTS: Final = "envoy.lb.subset_hint"
"""Of dynamic metadata, where a proxy says whom it would have chosen."""

_READ: Final = frozenset({NAMESPACE, HINTS})


class Kind(IntEnum):
    """What a message from the proxy is about; the numbers are those of its fields."""

    REQUEST_HEADERS = 2
    RESPONSE_HEADERS = 3
    REQUEST_BODY = 4
    RESPONSE_BODY = 5
    REQUEST_TRAILERS = 6
    RESPONSE_TRAILERS = 7

    @property
    def reply(self) -> int:
        """The number of the reply's field."""
        return self.value - 1


class BodyMode(IntEnum):
    """How a body is sent (``ProcessingMode.BodySendMode``)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class Modes(msgspec.Struct, frozen=True, gc=False):
    """How both bodies are sent; told with the first message of a stream (``ProtocolConfiguration``, Envoy >= 1.33)."""

    request: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response: BodyMode = BodyMode.FULL_DUPLEX_STREAMED


class Message(msgspec.Struct, frozen=True):
    """What a proxy says. ``fields`` are headers or trailers, names in lower case; ``is_last`` when no more of its kind comes.

    ``metadata`` are the namespaces that are of interest, ``modes`` are None but in the first message. With ``is_observed``
    nobody waits for a reply.
    """

    kind: Kind
    fields: Fields = ()
    body: bytes = b""
    is_last: bool = False
    metadata: Mapping[str, Mapping[str, Any]] = {}
    modes: Modes | None = None
    is_observed: bool = False


class Mutation(msgspec.Struct, frozen=True):
    """Headers that are set, whatever was there, and those that are taken away."""

    set: Sequence[tuple[bytes, bytes]] = ()
    remove: Sequence[bytes] = ()


NOTHING: Final = Mutation()


def read(data: bytes) -> Message:
    """A ``ProcessingRequest``.

    Raises:
        WireError: it is none.
    """
    kind: Kind | None = None
    told = b""
    metadata: dict[str, Mapping[str, Any]] = {}
    modes: Modes | None = None
    is_observed = False
    for number, wire_type, value in fields(data):
        if 2 <= number <= 7 and wire_type == LENGTH:
            assert isinstance(value, bytes)
            if kind is not None and kind != number:
                told = b""  # of a oneof, the last one counts
            kind = _KINDS[number]
            told = told + value if told else value
        elif number == 8 and wire_type == LENGTH:
            assert isinstance(value, bytes)
            _read_metadata(value, metadata)
        elif number == 10 and wire_type == VARINT:
            is_observed = bool(value)
        elif number == 11 and wire_type == LENGTH:
            assert isinstance(value, bytes)
            modes = _read_modes(value)
    if kind is None:
        raise WireError("a message of the proxy that is none of those there are")
    found: Fields = ()
    body, is_last = b"", False
    if kind in _OF_HEADERS:
        found, is_last = _read_headers(told)
    elif kind in _OF_BODIES:
        body, is_last = _read_body(told)
    else:
        found = _read_trailers(told)
        is_last = True
    return Message(kind, found, body, is_last, metadata, modes, is_observed)


_KINDS: Final = {kind.value: kind for kind in Kind}
_MODES: Final = {mode.value: mode for mode in BodyMode}
_OF_HEADERS: Final = frozenset({Kind.REQUEST_HEADERS, Kind.RESPONSE_HEADERS})
_OF_BODIES: Final = frozenset({Kind.REQUEST_BODY, Kind.RESPONSE_BODY})


def _read_headers(data: bytes) -> tuple[Fields, bool]:
    """An ``HttpHeaders``."""
    found: list[tuple[bytes, bytes]] = []
    is_last = False
    for number, kind, value in fields(data):
        if number == 1 and kind == LENGTH:
            assert isinstance(value, bytes)
            _read_map(value, found)
        elif number == 3 and kind == VARINT:
            is_last = bool(value)
    return found, is_last


def _read_trailers(data: bytes) -> Fields:
    found: list[tuple[bytes, bytes]] = []
    for number, kind, value in fields(data):
        if number == 1 and kind == LENGTH:
            assert isinstance(value, bytes)
            _read_map(value, found)
    return found


def _read_map(data: bytes, found: list[tuple[bytes, bytes]]) -> None:
    """A ``HeaderMap``: as ``fields`` of ``fields``, in half of their time; there are twenty headers in a request."""
    at, end = 0, len(data)
    while at < end:
        if data[at] != _FIRST:  # something else than a header
            for number, kind, value in fields(data[at:]):
                if number == 1 and kind == LENGTH:
                    assert isinstance(value, bytes)
                    found.append(_read_header(value))
            return
        size, at = read_varint(data, at + 1)
        until = at + size
        if until > end:
            raise WireError("a header is longer than its map")
        begin, name, plain, raw = at, b"", b"", b""
        while at < until:
            tag = data[at]
            length, stop = read_varint(data, at + 1)
            at, stop = stop, stop + length
            if tag not in _OF_HEADER or stop > until:
                name, raw = _read_header(data[begin:until])
                at = until
            elif tag == _FIRST:
                name, at = data[at:stop], stop
            elif tag == _RAW_VALUE:
                raw, at = data[at:stop], stop
            else:
                plain, at = data[at:stop], stop
        found.append((name.lower(), raw or plain))


_FIRST: Final = 1 << 3 | LENGTH
_RAW_VALUE: Final = 3 << 3 | LENGTH
_OF_HEADER: Final = frozenset({_FIRST, 2 << 3 | LENGTH, _RAW_VALUE})


def _read_header(data: bytes) -> tuple[bytes, bytes]:
    """A ``HeaderValue``, whatever else it has."""
    told = {1: b"", 2: b"", 3: b""}
    for number, kind, value in fields(data):
        if number in told and kind == LENGTH:
            assert isinstance(value, bytes)
            told[number] = value
    return told[1].lower(), told[3] or told[2]


def _read_body(data: bytes) -> tuple[bytes, bool]:
    body, is_last = b"", False
    for number, kind, value in fields(data):
        if number == 1 and kind == LENGTH:
            assert isinstance(value, bytes)
            body = value
        elif number == 2 and kind == VARINT:
            is_last = bool(value)
    return body, is_last


def _read_metadata(data: bytes, found: dict[str, Mapping[str, Any]]) -> None:
    """A core ``Metadata``: those namespaces of it that anybody here asks for."""
    for number, kind, value in fields(data):
        if number == 1 and kind == LENGTH:
            assert isinstance(value, bytes)
            name, told = read_entry(value)
            if name in _READ:
                found[name] = read_struct(told)


def _read_modes(data: bytes) -> Modes:
    told = {1: BodyMode.NONE, 2: BodyMode.NONE}
    for number, kind, value in fields(data):
        if number in told and kind == VARINT:
            assert isinstance(value, int)
            told[number] = _MODES.get(value, BodyMode.NONE)
    return Modes(told[1], told[2])


# Replies (``ProcessingResponse``)


def headers_reply(kind: Kind, mutation: Mutation = NOTHING, chosen: Mapping[str, str] | None = None) -> bytes:
    """To headers of a request or an answer; ``chosen`` is what load balancers shall find, by a route that is looked up anew."""
    common = _common(mutation, is_rerouted=chosen is not None)
    return field(kind.reply, field(1, common) if common else b"") + _metadata(chosen)


def body_reply(
    kind: Kind, mutation: Mutation = NOTHING, chosen: Mapping[str, str] | None = None, body: bytes | None = None
) -> bytes:
    """To a body, or a piece of one, that goes on as it came unless there is a ``body``."""
    common = _common(mutation, is_rerouted=chosen is not None)
    if body is not None:
        common += field(3, field(1, body))
    return field(kind.reply, field(1, common) if common else b"") + _metadata(chosen)


def streamed(kind: Kind, body: bytes, *, is_last: bool) -> bytes:
    """A piece of a body where both sides stream (``FULL_DUPLEX_STREAMED``): nothing goes on but what is given back so."""
    told = field(1, body) if body else b""
    if is_last:
        told += b"\x10\x01"
    return field(kind.reply, field(1, field(3, field(3, told))))


def trailers_reply(kind: Kind) -> bytes:
    """To trailers, which go on as they came."""
    return field(kind.reply, b"")


def immediate(status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes, details: str = "") -> bytes:
    """An answer in place of the replica's; ``details`` are for the proxy's own log."""
    told = field(1, b"\x08" + encoded_varint(status)) + field(2, _mutation(Mutation(headers))) + field(3, body)
    if details:
        told += field(5, details.encode())
    return field(7, told)


def _common(mutation: Mutation, *, is_rerouted: bool) -> bytes:
    """A ``CommonResponse``."""
    told = field(2, _mutation(mutation)) if mutation.set or mutation.remove else b""
    return told + b"\x28\x01" if is_rerouted else told


def _mutation(mutation: Mutation) -> bytes:
    pieces = [field(1, field(1, field(1, name) + field(3, value)) + _OVERWRITE) for name, value in mutation.set] + [
        field(2, name) for name in mutation.remove
    ]
    return b"".join(pieces)


_OVERWRITE: Final = b"\x18\x02"
"""``append_action`` OVERWRITE_IF_EXISTS_OR_ADD: with ADD_IF_ABSENT a client could name its own destination."""


def _metadata(chosen: Mapping[str, str] | None) -> bytes:
    return b"" if chosen is None else field(8, struct_of({NAMESPACE: chosen}))
