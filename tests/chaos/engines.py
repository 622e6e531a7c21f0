"""Replicas that can be hurt: fake engines as processes of their own, some behind a saboteur that breaks their connections.

Knows processes, signals and sockets. Never knows when anything is to happen (``tests.chaos.faults``).
"""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from simulations.demo import free_ports
from tests.chaos.asks import MODEL

ROOT: Final = Path(__file__).parents[2]
WELL: Final = 1.0
"""Seconds in which a replica answers that is well: half of what kvlb's probes have."""

PROBED: Final = ("/health", "/v1/models", "/version", "/metrics", "/kv_event_sources")
"""What kvlb asks a replica that it does not know, or not any more."""

SLICE: Final = 8 * 1024
"""Bytes that a saboteur passes on at once: so that long answers are under way for a while."""


class Saboteur:
    """Passes bytes on between a port of its own and an engine's; breaks what it passes, when it is told to. Mutable."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.port = 0
        self.refuses = False
        """While it is set, each new connection is reset as soon as it stands."""
        self._flows = asyncio.Event()
        self._flows.set()
        self._wires: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        self.break_all(clean=False)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stall(self, *, flows: bool) -> None:
        """Pass nothing on, or pass on again."""
        (self._flows.set if flows else self._flows.clear)()

    def break_all(self, *, clean: bool) -> None:
        """End every connection now: cleanly, as if the engine had closed it, or with a reset."""
        for wire in list(self._wires):
            if not clean:
                _reset(wire)
                wire.transport.abort()
            else:
                wire.close()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other: asyncio.StreamWriter | None = None
        self._wires.add(writer)
        try:
            if self.refuses:
                _reset(writer)
                return
            back, other = await asyncio.open_connection("127.0.0.1", self._port)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, other))
                both.create_task(self._pass(back, writer))
        except (OSError, ExceptionGroup):
            _reset(writer)
        finally:
            self._wires.discard(writer)
            for each in (writer, other):
                if each is not None:
                    each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(SLICE):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionError("one side has ended it")


def _reset(writer: asyncio.StreamWriter) -> None:
    """Have its end be a reset, which takes back what was not read."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Engine:
    """One replica. ``hurt`` while something is done to it; ``bad_at`` is when it last was not well (monotonic)."""

    def __init__(self, name: str, folder: Path, *flags: str, has_saboteur: bool) -> None:
        self.name = name
        self.hurt = ""
        self.bad_at = 0.0
        self._log = folder / f"engine-{name}.log"
        port, events, replay = free_ports(3)
        self.port = port
        words = ("--port", port, "--event-port", events, "--replay-port", replay, "--model", MODEL, *flags)
        self._command = [sys.executable, "-m", "balancer", "fake-engine", *map(str, words)]
        self.saboteur = Saboteur(port) if has_saboteur else None
        self.process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port if self.saboteur is None else self.saboteur.port}"

    def start(self) -> None:
        """Begin a process at the ports that it always has."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)

    async def answers(self, seconds: float = 180.0) -> None:
        """Return once it can be asked; start it again where its ports were still in use."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                self.start()
            if await self._is_well(self.port):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"engine {self.name} does not come back; {self._log} says why")

    async def watch(self) -> None:
        """Look whether it answers, from where kvlb stands, until cancelled: a busy machine is no fault of kvlb's."""
        while True:
            port = self.port if self.saboteur is None else self.saboteur.port
            is_well = all(await asyncio.gather(*(self._is_well(port, path) for path in PROBED)))
            if self.hurt or not is_well:
                self.bad_at = time.monotonic()
            await asyncio.sleep(0.2)

    async def _is_well(self, port: int, path: str = "/health") -> bool:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(WELL):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
                    return (await reader.read(100)).startswith(b"HTTP/1.1 200")
                finally:
                    writer.close()
        return False

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """At once, whether it is frozen or not."""
        self.process.kill()
        self.process.wait()

    async def terminate(self) -> None:
        """As an operator does: it answers what it has with ``abort``."""
        self.process.send_signal(signal.SIGTERM)
        for _ in range(200):
            if self.process.poll() is not None:
                return
            await asyncio.sleep(0.02)
        self.kill()
