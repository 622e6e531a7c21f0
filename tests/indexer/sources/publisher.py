"""A small publisher for tests, with the habits of vLLM's and the faults of the world.

Knows vLLM's frames: PUB ``[topic, sequence, payload]``, replay answers with a topic (vLLM >= 0.26) or without (<= 0.24), the
end marker. One thread serves replays; ``publish`` may be called from the test's own. Restarts keep the ports.
"""

import threading
from collections.abc import Sequence
from typing import Any

import zmq

END = b"\xff" * 8


class FakePublisher:
    def __init__(
        self,
        *,
        has_replay: bool = True,
        topic: bytes = b"",
        has_topic_in_replay: bool = True,
        is_mute: bool = False,
        drops: Sequence[set[int]] = (),
        drops_end: int = 0,
    ) -> None:
        """``drops``: per replay, the sequences that get lost; ``drops_end``: so many first replays have no end marker."""
        self.topic = topic
        self.asked: list[int] = []
        self._has_topic_in_replay = has_topic_in_replay
        self._is_mute = is_mute
        self._drops = list(drops)
        self._drops_end = drops_end
        self._ports: dict[int, int] = {}
        self._kinds = [zmq.PUB, zmq.ROUTER] if has_replay else [zmq.PUB]
        self.start()

    @property
    def events(self) -> str:
        return f"tcp://127.0.0.1:{self._ports[zmq.PUB]}"

    @property
    def replay(self) -> str | None:
        return f"tcp://127.0.0.1:{self._ports[zmq.ROUTER]}" if zmq.ROUTER in self._ports else None

    def start(self) -> None:
        """Another life: sequence 0, an empty buffer."""
        self.buffer: list[bytes] = []
        self._lock = threading.Lock()
        self._is_stopping = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets = {kind: self._bind(kind) for kind in self._kinds}
        self._thread = threading.Thread(target=self._serve, name="fake-publisher")
        self._thread.start()

    def _bind(self, kind: int) -> "zmq.Socket[bytes]":
        sock = self._context.socket(kind)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.SNDHWM, 0)
        if kind in self._ports:
            sock.bind(f"tcp://127.0.0.1:{self._ports[kind]}")
        else:
            self._ports[kind] = sock.bind_to_random_port("tcp://127.0.0.1")
        return sock

    def stop(self) -> None:
        """Ends this life without a word; returns when the ports are free."""
        self._is_stopping = True
        self._thread.join()
        self._context.destroy(0)

    def publish(self, payload: bytes, *, is_lost: bool = False) -> None:
        with self._lock:
            sequence = len(self.buffer).to_bytes(8, "big")
            self.buffer.append(payload)
        if not is_lost:
            self.send(self.topic, sequence, payload)

    def send(self, *frames: bytes) -> None:
        self._sockets[zmq.PUB].send_multipart(frames)

    def _serve(self) -> None:
        router = self._sockets.get(zmq.ROUTER)
        while not self._is_stopping:
            if router is None or not router.poll(10):
                threading.Event().wait(0.01 if router is None else 0)
                continue
            identity, empty, start = router.recv_multipart()
            assert empty == b""
            self.asked.append(int.from_bytes(start, "big"))
            if not self._is_mute:
                self._answer(router, identity, self.asked[-1])

    def _answer(self, router: Any, identity: bytes, start: int) -> None:
        drops = self._drops.pop(0) if self._drops else set()
        with self._lock:
            kept = list(enumerate(self.buffer))[start:]
        topic = [self.topic] if self._has_topic_in_replay else []
        for sequence, payload in kept:
            if sequence not in drops:
                router.send_multipart([identity, b"", *topic, sequence.to_bytes(8, "big"), payload])
        if self._drops_end:
            self._drops_end -= 1
        else:
            router.send_multipart([identity, b"", *([b""] if topic else []), END, b""])
