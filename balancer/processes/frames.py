"""Messages on a stream of bytes: each is four bytes of length, big-endian, and so many bytes of msgpack.

Knows lengths. Never knows what is in a message, or sockets.
"""

from typing import Final

MAX_FRAME: Final = 256 * 1024 * 1024
"""Bytes of one message; a prompt of a million tokens in blocks of 16 has keys of half a MiB."""

HEAD_BYTES: Final = 4


class ProtocolError(Exception):
    """The other side speaks another language."""


def framed(message: bytes) -> bytes:
    """The message as it is sent.

    Raises:
        ProtocolError: it is too long.
    """
    if len(message) > MAX_FRAME:
        raise ProtocolError(f"a message of {len(message):,} bytes is longer than {MAX_FRAME:,}")
    return len(message).to_bytes(HEAD_BYTES, "big") + message


class FrameReader:
    """Cuts what comes. Mutable: it remembers the beginning of a message whose end has not come."""

    def __init__(self) -> None:
        self._begun = bytearray()

    @property
    def wanted(self) -> int:
        """How many bytes are missing of the message that has begun, or of its length."""
        missing = HEAD_BYTES - len(self._begun)
        return missing if missing > 0 else missing + int.from_bytes(self._begun[:HEAD_BYTES], "big")

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole by now.

        Raises:
            ProtocolError: a length that nobody sends.
        """
        held: bytes | bytearray = data
        if self._begun:
            self._begun += data
            held = self._begun
        at, end = 0, len(held)
        messages = []
        while end - at >= HEAD_BYTES:
            size = int.from_bytes(held[at : at + HEAD_BYTES], "big")
            if size > MAX_FRAME:
                raise ProtocolError(f"a message of {size:,} bytes is announced")
            if end - at - HEAD_BYTES < size:
                break
            at += HEAD_BYTES + size
            messages.append(bytes(held[at - size : at]))
        self._begun = bytearray(held[at:])
        return messages
