"""ZeroMQ without sockets, in moved time: handed to the reader of ``indexer.sources.vllm`` instead of a ``zmq.Context``.

Knows how PUB, ROUTER and a socket's monitor look to their reader (libzmq 4.3): one queue for each SUB, which outlives a broken
connection, so what came over the old one is read before what comes over the new one; messages published before the
subscription has arrived are gone; a DEALER's question is answered by whoever is there when it is served. Never knows what
frames mean. Nothing moves by itself: whoever tells the story says what is published, carried, lost and served.
"""

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

END_MARKER: Final = b"\xff" * 8
Frames = list[bytes]


class _Socket:
    """What every kind of socket has."""

    def __init__(self) -> None:
        self.inbox: deque[Frames] = deque()
        self.address = ""
        self.is_closed = False

    def setsockopt(self, option: int, value: object) -> None:
        pass

    def connect(self, address: str) -> None:
        self.address = address

    def recv_multipart(self, flags: int) -> Frames:
        assert flags == zmq.NOBLOCK
        if not self.inbox:
            raise zmq.Again
        return self.inbox.popleft()

    def close(self, linger: int) -> None:
        self.is_closed = True


class Monitor(_Socket):
    """Tells of the connections of one SUB; ``life`` is the engine behind the last one that was told of."""

    def __init__(self) -> None:
        super().__init__()
        self.told: deque[int | None] = deque()
        self.life: int | None = None
        self.surprise: Callable[[], None] | None = None
        """What happens after the SUB was read and before its monitor is, once."""

    def tell(self, event: zmq.Event, life: int | None) -> None:
        self.inbox.append([struct.pack("=hi", event, 0), b""])
        self.told.append(life)

    def recv_multipart(self, flags: int) -> Frames:
        if self.surprise is not None:
            surprise, self.surprise = self.surprise, None
            surprise()
        frames = super().recv_multipart(flags)
        self.life = self.told.popleft()
        return frames


class Sub(_Socket):
    """One subscription; ``wire`` is what has left the publisher and not arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.monitor = Monitor()
        self.wire: deque[Frames] = deque()
        self.life: int | None = None
        """The engine it is connected to; None while it is not."""
        self.is_subscribed = False
        """Whether the subscription has arrived there."""

    def get_monitor_socket(self, events: int) -> Monitor:
        return self.monitor

    def disable_monitor(self) -> None:
        pass

    def join(self, life: int) -> None:
        """The connection stands; the subscription is still on its way."""
        self.life = life
        self.monitor.tell(zmq.Event.HANDSHAKE_SUCCEEDED, life)

    def part(self, arrives: int) -> None:
        """The connection breaks; of what is on its way the first ``arrives`` messages have made it."""
        self.carry(arrives)
        self.wire.clear()
        self.life = None
        self.is_subscribed = False
        self.monitor.tell(zmq.Event.DISCONNECTED, None)

    def carry(self, count: int) -> None:
        """The next ``count`` messages arrive."""
        for _ in range(min(count, len(self.wire))):
            self.inbox.append(self.wire.popleft())


class Dealer(_Socket):
    """One question to a publisher's buffer, and the answer on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: int | None = None
        """The sequence number asked for, until the question is served or lost."""
        self.start = 0
        """The same, for good."""
        self.wire: deque[Frames] = deque()
        self.ends_at: tuple[int, int] | None = None
        """The engine's life and how many batches it had published, when the answer has an end."""

    @property
    def was_read(self) -> bool:
        """Whether the whole answer was taken in."""
        return not self.wire and not self.inbox

    def send_multipart(self, frames: Frames) -> None:
        empty, start = frames
        assert empty == b""
        self.asked = self.start = int.from_bytes(start, "big")

    def carry(self, count: int) -> None:
        """The next ``count`` messages of the answer arrive."""
        for _ in range(min(count, len(self.wire))):
            self.inbox.append(self.wire.popleft())


class Network:
    """Every socket that was opened; stands where a ``zmq.Context`` stands."""

    def __init__(self) -> None:
        self._subs: list[Sub] = []
        self._dealers: list[Dealer] = []

    def socket(self, kind: int) -> Any:
        match kind:
            case zmq.SUB:
                self._subs.append(Sub())
                return self._subs[-1]
            case zmq.DEALER:
                self._dealers.append(Dealer())
                return self._dealers[-1]
        raise AssertionError(f"the reader opens no socket of kind {kind}")

    def subs(self, address: str) -> list[Sub]:
        """The open subscriptions to an address."""
        self._subs = [sub for sub in self._subs if not sub.is_closed]
        return [sub for sub in self._subs if sub.address == address]

    def dealers(self, address: str) -> list[Dealer]:
        """The open questions to an address."""
        self._dealers = [dealer for dealer in self._dealers if not dealer.is_closed]
        return [dealer for dealer in self._dealers if dealer.address == address]

    def publish(self, address: str, frames: Sequence[bytes]) -> None:
        """A PUB socket sends: whoever has subscribed by now gets it."""
        for sub in self.subs(address):
            if sub.is_subscribed:
                sub.wire.append(list(frames))
