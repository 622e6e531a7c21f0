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
        pause: float = 0.0,
        host: str = "127.0.0.1",
        dials: str | None = None,
        keeps: int | None = None,
        end: Sequence[bytes] | None = None,
    ) -> None:
        """``drops``: per replay, the sequences that get lost; ``drops_end``: so many first replays have no end marker.

        ``pause`` is in seconds, before each batch of a replay. ``dials``: where it connects to instead of listening.
        ``keeps``: how many of the last batches it can replay; all when None. ``end``: the frames of its end marker.
        """
        self.topic = topic
        self.asked: list[int] = []
        self._has_topic_in_replay = has_topic_in_replay
        self._is_mute = is_mute
        self._drops = list(drops)
        self._drops_end = drops_end
        self._pause = pause
        self._host = host
        self._dials = dials
        self._keeps = keeps
        self._end = end
        self._ports: dict[int, int] = {}
        self._kinds = [zmq.PUB, zmq.ROUTER] if has_replay else [zmq.PUB]
        self.start()

    @property
    def events(self) -> str:
        return f"tcp://{self._host}:{self._ports[zmq.PUB]}" if self._dials is None else self._dials

    @property
    def replay(self) -> str | None:
        return f"tcp://{self._host}:{self._ports[zmq.ROUTER]}" if zmq.ROUTER in self._ports else None

    def start(self) -> None:
        """Another life: sequence 0, an empty buffer."""
        self.buffer: list[bytes] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets = {kind: self._bind(kind) for kind in self._kinds}
        self._thread = threading.Thread(target=self._serve, name="fake-publisher")
        self._thread.start()

    def _bind(self, kind: int) -> "zmq.Socket[bytes]":
        sock = self._context.socket(zmq.XPUB if kind == zmq.PUB else kind)  # XPUB is PUB that tells who subscribes
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.SNDHWM, 0)
        sock.setsockopt(zmq.IPV6, ":" in self._host)
        if kind == zmq.PUB and self._dials is not None:
            sock.connect(self._dials)
        elif kind in self._ports:
            sock.bind(f"tcp://{self._host}:{self._ports[kind]}")
        else:
            self._ports[kind] = sock.bind_to_random_port(f"tcp://{self._host}")
        return sock

    def stop(self) -> None:
        """Ends this life without a word; returns when the ports are free."""
        self._stopping.set()
        self._thread.join()
        self._context.destroy(0)

    def wait_subscribed(self, seconds: float = 10.0) -> None:
        """Return once somebody has subscribed: what is published from here on is heard."""
        pub = self._sockets[zmq.PUB]
        assert pub.poll(round(seconds * 1000)), "nobody subscribes"
        pub.recv()

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
        while not self._stopping.is_set():
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
            first = start if self._keeps is None else max(start, len(self.buffer) - self._keeps)
            kept = list(enumerate(self.buffer))[first:]
        topic = [self.topic] if self._has_topic_in_replay else []
        for sequence, payload in kept:
            if self._pause:
                self._stopping.wait(self._pause)
            if sequence not in drops:
                router.send_multipart([identity, b"", *topic, sequence.to_bytes(8, "big"), payload])
        if self._drops_end:
            self._drops_end -= 1
        else:
            router.send_multipart([identity, b"", *(self._end or ([b""] if topic else []) + [END, b""])])
