"""One connection between a gateway and the brain, seen from either end.

Knows bytes and when the other side was heard last. Never knows what messages mean: each goes to ``receive`` as it came. What is
sent within one turn of the loop leaves in one piece.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from balancer.processes.frames import FrameReader, ProtocolError

FAREWELL_SECONDS: Final = 2.0

log = logging.getLogger(__name__)


class Link(asyncio.Protocol):
    """``receive`` may raise ``ProtocolError``, which ends the connection; ``ended`` is called once, when it has ended."""

    def __init__(self, receive: Callable[[bytes], None], ended: Callable[[], None] = lambda: None) -> None:
        self._receive = receive
        self._ended = ended
        self._reader = FrameReader()
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport
        self.closed = asyncio.Event()
        self.heard_at = self._loop.time()
        """When the other side has said anything last."""
        self.has_spoken = False
        """Whether it ever has: a process that stands still is connected to all the same."""

    def send(self, frame: bytes) -> None:
        """Send a whole frame; nothing comes of it once the connection has ended."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def close(self) -> None:
        """End it once everything has been sent."""
        if not self.closed.is_set():
            self._flush()
            self._transport.close()

    async def finish(self, seconds: float = FAREWELL_SECONDS) -> None:
        """End it once everything has been sent, or after so many seconds."""
        self.close()
        try:
            async with asyncio.timeout(seconds):
                await self.closed.wait()
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        self._transport.abort()

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and not self.closed.is_set():
            self._transport.write(b"".join(out))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's are of no class of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._ended()

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        self.has_spoken = True
        try:
            for message in self._reader.feed(data):
                self._receive(message)
        except ProtocolError as error:
            log.warning("what comes from another process of kvlb cannot be read: %s", error)
            self._transport.abort()
