"""One rank's publisher: a PUB socket for live batches, a ROUTER socket that replays the last of them.

Knows sockets, sequence numbers and the two framings of a replay (vLLM 0.11 - 0.32, ``vllm/distributed/kv_events.py``); payloads
come in encoded. Lives on an event loop's thread: PUB never blocks, and a replay is answered as soon as the loop is free, where
vLLM's own thread may take a tenth of a second. As in vLLM, a replay to a slow reader loses frames (the ROUTER's high-water
mark is ZeroMQ's default).
"""

import asyncio
from collections import deque
from typing import Final

import zmq

from simulations.fake.releases import Release

END_MARKER: Final = b"\xff" * 8
BUFFER_STEPS: Final = 10_000
HIGH_WATER_MARK: Final = 100_000

_Socket = zmq.Socket[bytes]


class EventPublisher:
    """Sends batches; mutable. Sequence numbers begin at 0.

    Raises:
        OSError: an address is in use, or cannot be bound.
    """

    def __init__(self, release: Release, events: str, replay: str | None, topic: str) -> None:
        self._has_topic = release.has_replay_topic
        self._topic = topic.encode()
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=BUFFER_STEPS)
        self._to_drop = 0
        self.next_sequence = 0
        self._context: zmq.Context[_Socket] = zmq.Context()
        self._loop = asyncio.get_running_loop()
        self._router: _Socket | None = None
        address = events
        try:
            self._pub = self._bound(zmq.PUB, address)
            if replay is not None:
                address = replay
                self._router = self._bound(zmq.ROUTER, address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise OSError(error.errno, f"{address}: {zmq.strerror(error.errno or 0)}") from error
        self.events = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay = None if self._router is None else self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        if self._router is not None:
            self._loop.add_reader(_number(self._router, zmq.FD), self._serve_replays)

    def _bound(self, kind: int, address: str) -> _Socket:
        new = self._context.socket(kind)
        if kind == zmq.PUB:
            new.set_hwm(HIGH_WATER_MARK)
        new.setsockopt(zmq.IPV6, int("[" in address))
        new.bind(address)
        return new

    def publish(self, payload: bytes) -> None:
        """Send the next batch to whoever has subscribed by now, and keep it for replays."""
        sequence = self.next_sequence
        self.next_sequence += 1
        self._buffer.append((sequence, payload))
        if self._to_drop:
            self._to_drop -= 1
            return
        self._pub.send_multipart((self._topic, sequence.to_bytes(8, "big"), payload), copy=True)

    def drop_next(self, count: int) -> None:
        """Lose the next ``count`` batches on their way: they get their numbers and can be replayed, and are not sent."""
        self._to_drop += count

    def forget_buffer(self) -> None:
        """Lose what could be replayed."""
        self._buffer.clear()

    def close(self) -> None:
        """At once; what has not left yet is lost, and the ports are free when this returns."""
        if self._router is not None:
            self._loop.remove_reader(_number(self._router, zmq.FD))
        self._context.destroy(linger=0)

    def _serve_replays(self) -> None:
        # The descriptor tells of changes only: go on until there is nothing left, sending included.
        router = self._router
        assert router is not None
        while _number(router, zmq.EVENTS) & zmq.POLLIN:
            request = router.recv_multipart()
            if len(request) == 3:
                self._replay(router, request[0], int.from_bytes(request[2], "big"))

    def _replay(self, router: _Socket, client: bytes, start: int) -> None:
        topic = [self._topic] if self._has_topic else []
        for sequence, payload in self._buffer:
            if sequence >= start:
                router.send_multipart([client, b"", *topic, sequence.to_bytes(8, "big"), payload])
        router.send_multipart([client, b"", *([b""] if self._has_topic else []), END_MARKER, b""])


def _number(socket: _Socket, option: int) -> int:
    value = socket.getsockopt(option)
    assert isinstance(value, int)
    return value
