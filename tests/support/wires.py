"""A wire between a client and a server on loopback that can fall silent, as when a host vanishes or a firewall drops.

Knows bytes alone. A silent wire keeps its connections open and carries nothing; once mended it carries new connections,
while those of before stay dead.
"""

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator


class Wire:
    """Forwards from ``port`` to a port of the same host, in one thread."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._dead: list[socket.socket] = []
        self._is_silent = threading.Event()
        self._is_cut = threading.Event()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wire")
        self._thread.start()

    def silence(self) -> None:
        """Nothing passes any more once this returns, and nobody is told."""
        self._is_silent.set()
        assert self._is_cut.wait(10.0)

    def mend(self) -> None:
        self._is_silent.clear()
        self._is_cut.clear()

    def close(self) -> None:
        self._is_closing.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        for each in self._dead:
            each.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._is_closing.is_set():
            for key, _ in self._selector.select(0.01):
                if key.data is None:
                    self._accept()
                elif not self._is_silent.is_set():
                    self._carry(key.fileobj, key.data)  # type: ignore[arg-type]
            if self._is_silent.is_set():
                self._kill_all()
                self._is_cut.set()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._target))
        for here, there in ((near, far), (far, near)):
            self._selector.register(here, selectors.EVENT_READ, there)

    def _carry(self, here: socket.socket, there: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = here.recv(65536)
            there.sendall(data)
        if not data:
            for each in (here, there):
                with contextlib.suppress(KeyError):
                    self._selector.unregister(each)
                each.close()

    def _kill_all(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._selector.unregister(key.fileobj)
                self._dead.append(key.fileobj)  # type: ignore[arg-type]


@contextlib.contextmanager
def wire(target: int) -> Iterator[Wire]:
    """A wire to this port until the block is left."""
    made = Wire(target)
    try:
        yield made
    finally:
        made.close()
