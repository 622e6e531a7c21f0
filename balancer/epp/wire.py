"""Protocol Buffers on the wire, as far as the endpoint picker's few messages need them.

Knows varints, lengths and the generic ``Struct`` (protobuf.dev, "Encoding"; google/protobuf/struct.proto). Knows no message of
ours. A generated class would build an object for every header; here bytes are cut where they lie.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5

MAX_DEPTH: Final = 32
"""Lists and structs within each other; protobuf's own readers stop at 100 messages, of which each level here takes three."""

MAX_VARINT_BYTES: Final = 10

_KINDS: Final = frozenset({VARINT, FIXED64, LENGTH, FIXED32})


class WireError(ValueError):
    """These bytes are no such message."""


Value: TypeAlias = int | bytes


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, where it ends).

    Raises:
        WireError: it does not end, or is longer than any may be.
    """
    try:
        byte = data[at]
        if byte < 0x80:  # nearly all of them
            return byte, at + 1
        number, shift = byte & 0x7F, 7
        while True:
            at += 1
            byte = data[at]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number & 0xFFFF_FFFF_FFFF_FFFF, at + 1
            shift += 7
            if shift >= 7 * MAX_VARINT_BYTES:
                raise WireError("a number has more than 10 bytes")
    except IndexError:
        raise WireError("a message ends in the middle of a number") from None


def fields(data: bytes) -> Iterator[tuple[int, int, Value]]:
    """(number, wire type, value) of each field; what has a length as bytes, what has a fixed width as its bytes.

    Raises:
        WireError: it is no message.
    """
    at, end = 0, len(data)
    while at < end:
        tag, at = varint(data, at)
        kind = tag & 7
        number = tag >> 3
        if not 0 < number < 1 << 29 or kind not in _KINDS:
            raise WireError(f"field {number} of wire type {kind}")
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, kind, value
            continue
        if kind == LENGTH:
            size, at = varint(data, at)
        else:
            size = 8 if kind == FIXED64 else 4
        if at + size > end:
            raise WireError("a field is longer than its message")
        yield number, kind, data[at : at + size]
        at += size


def encoded_varint(number: int) -> bytes:
    """Of a number that is not negative."""
    if number < 0x80:
        return bytes((number,))
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def field(number: int, payload: bytes) -> bytes:
    """A field with a length: text, bytes or a message. Numbers are those below 16."""
    size = len(payload)
    if size < 0x80:
        return bytes((number << 3 | LENGTH, size)) + payload
    return b"".join((bytes((number << 3 | LENGTH,)), encoded_varint(size), payload))


# google.protobuf.Struct


def read_struct(data: bytes, depth: int = 0) -> dict[str, Any]:
    """Names and plain values: None, bool, float, str, list, dict.

    Raises:
        WireError: it is none, or nested too deeply.
    """
    found: dict[str, Any] = {}
    for number, kind, value in fields(data):
        if number == 1 and kind == LENGTH:
            assert isinstance(value, bytes)
            name, told = read_entry(value)
            found[name] = read_value(told, depth)
    return found


def read_entry(data: bytes) -> tuple[str, bytes]:
    """(key, message) of one entry of a map from text to messages."""
    name, told = b"", b""
    for number, kind, value in fields(data):
        if kind == LENGTH:
            assert isinstance(value, bytes)
            if number == 1:
                name = value
            elif number == 2:
                told += value  # a message that comes in two pieces is both (protobuf.dev, "Last One Wins")
    return _text(name), told


def read_value(data: bytes, depth: int = 0) -> Any:
    """One ``google.protobuf.Value``; None where it says nothing.

    Raises:
        WireError: as ``read_struct``.
    """
    if depth > MAX_DEPTH:
        raise WireError(f"lists and structs more than {MAX_DEPTH} deep within each other")
    found: Any = None
    for number, kind, value in fields(data):
        match number, kind:
            case 1, 0:
                found = None
            case 2, 1:
                assert isinstance(value, bytes)
                (found,) = struct.unpack("<d", value)
            case 3, 2:
                assert isinstance(value, bytes)
                found = _text(value)
            case 4, 0:
                found = bool(value)
            case 5, 2:
                assert isinstance(value, bytes)
                found = read_struct(value, depth + 1)
            case 6, 2:
                assert isinstance(value, bytes)
                found = [
                    read_value(each, depth + 1)
                    for inner, of, each in fields(value)
                    if inner == 1 and of == LENGTH and isinstance(each, bytes)
                ]
    return found


def struct_of(told: Mapping[str, "str | Mapping[str, Any] | Sequence[str]"]) -> bytes:
    """A ``Struct`` of texts, lists of texts, and structs of them."""
    return b"".join([field(1, field(1, name.encode()) + field(2, _value_of(value))) for name, value in told.items()])


def _value_of(value: "str | Mapping[str, Any] | Sequence[str]") -> bytes:
    if isinstance(value, str):
        return field(3, value.encode())
    if isinstance(value, Mapping):
        return field(5, struct_of(value))
    return field(6, b"".join([field(1, _value_of(each)) for each in value]))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise WireError("a text is not UTF-8") from None
