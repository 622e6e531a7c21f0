"""An answer that is kept here instead of being passed on.

Knows how much of it is kept. Never knows what it says.
"""

from typing import Final

from balancer.http.exchange import BrokenOff
from balancer.http.messages import Head
from balancer.http.reply import Source

MAX_BODY: Final = 64 * 1024 * 1024
"""Bytes. A prefill leg that has to name the tokens of its prompt answers with some megabytes for a million of them."""


class Collected:
    """A ``Receiver``. ``head`` and ``body`` are there once the exchange is over."""

    is_opening = False

    def __init__(self) -> None:
        self.answer: Head
        self.arrived = 0
        self.connection: Source | None = None
        self._pieces: list[bytes] = []

    def opened(self, connection: Source) -> None:
        self.connection = connection

    def head(self, head: Head) -> None:
        self.answer = head

    def received(self, body: bytes, *, is_last: bool) -> None:
        self.arrived += len(body)
        if self.arrived > MAX_BODY:
            raise BrokenOff(f"the answer has more than {MAX_BODY:,} bytes")
        self._pieces.append(body)

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)
