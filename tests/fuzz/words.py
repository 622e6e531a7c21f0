"""Bytes of chance -> bytes that look like something.

Knows how to spell inputs so that a change of one byte changes one word: parsers in C give a fuzzer no hint of how far it came,
and bytes of chance alone would never get past the first line. Never knows what is made of them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

LITERAL: Final = 0xFF
"""The next byte stands for itself."""


def spell(data: bytes, words: Sequence[bytes]) -> bytes:
    """Each byte as one of at most 127 words; above these, as a character of ASCII."""
    assert len(words) < 0x80
    said = bytearray()
    coming = iter(data)
    for byte in coming:
        if byte == LITERAL:
            said.append(next(coming, LITERAL))
        elif byte >= 0x80:
            said.append(byte - 0x80)
        else:
            said += words[byte % len(words)]
    return bytes(said)


def written(data: bytes, words: Sequence[bytes]) -> bytes:
    """By its first bit: the bytes as they are, or spelt out."""
    return spell(data[1:], words) if data[:1] < b"\x80" else data[1:]


def halved(data: bytes) -> tuple[int, bytes]:
    """A place to cut at, taken off the front, and the rest."""
    return int.from_bytes(data[:2], "big"), data[2:]


def json_like(data: bytes, names: Sequence[bytes], values: Sequence[bytes]) -> bytes:
    """An object of members that the bytes choose; some of them are objects or lists again, and some are broken."""
    coming = iter(data)
    return b"{%b}" % b",".join(_members(coming, names, values, 0))


def _members(coming: Iterator[int], names: Sequence[bytes], values: Sequence[bytes], depth: int) -> Iterator[bytes]:
    for byte in coming:
        if byte == LITERAL:
            return
        yield b"%b:%b" % (names[byte % len(names)], _value(coming, names, values, depth))


def _value(coming: Iterator[int], names: Sequence[bytes], values: Sequence[bytes], depth: int) -> bytes:
    byte = next(coming, 0)
    if byte >= 0xE0 and depth < 4:
        return b"{%b}" % b",".join(_members(coming, names, values, depth + 1))
    if byte >= 0xD0 and depth < 4:
        return b"[%b]" % b",".join(_value(coming, names, values, depth + 1) for _ in range(byte % 4))
    return values[byte % len(values)]
