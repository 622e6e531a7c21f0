"""A fake engine as its owner holds it: started, killed, started again at the same addresses, and moved by hand.

Knows the listening socket and the lives of the process behind it. Between ``start`` and ``kill`` or ``stop`` there is exactly
one life; outside it asking for one is a mistake.
"""

import contextlib
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from simulations.fake.app import build_app
from simulations.fake.config import FakeConfig
from simulations.fake.rank import Rank
from simulations.fake.samples import Sampler
from simulations.fake.server import EngineProcess, speak

_ATTEMPTS: Final = 50


class FakeEngine:
    """A server that can be killed and started again at the same addresses; mutable."""

    def __init__(self, config: FakeConfig, sampler: Sampler = speak) -> None:
        self.config = config
        self._sampler = sampler
        self._process: EngineProcess | None = None
        self._runner: web.AppRunner | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin a life, with an empty cache. Ports of 0 are chosen once and kept from then on.

        Raises:
            OSError: an address is in use, or cannot be bound.
        """
        self.config = _with_port_ranges(self.config)
        self._process = EngineProcess(self.config, self._sampler)
        self._runner = web.AppRunner(
            build_app(lambda: self.process), handler_cancellation=True, shutdown_timeout=5, access_log=None
        )
        try:
            await self._runner.setup()
            await web.TCPSite(self._runner, self.config.host, self.config.port, backlog=1024).start()
        except OSError as error:
            await self._end()
            raise OSError(error.errno, f"{self.url}: {os.strerror(error.errno or 0)}") from error
        publisher = self.rank(0).publisher
        self.config = self.config.with_ports(
            self._runner.addresses[0][1],
            None if publisher is None else _port(publisher.events),
            None if publisher is None else _port(publisher.replay),
        )

    async def kill(self) -> None:
        """End this life as a crash does: connections break, nothing is said, the ports are free when this returns."""
        assert self._runner is not None
        server = self._runner.server
        for connection in list(server.connections) if server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()
        await self._end()

    async def stop(self) -> None:
        """End this life as SIGTERM does: after ``shutdown_timeout``, what still runs is answered with reason "abort"."""
        await self.process.drain(self.config.shutdown_timeout)
        await self._end()

    async def _end(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._process is not None:
            await self._process.close()
        self._runner = self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def process(self) -> EngineProcess:
        """The life that goes on now."""
        if self._process is None:
            raise RuntimeError("the engine is not running")
        return self._process

    # -- where it is ---------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://{_bracketed(self.config.host)}:{self.config.port}"

    def events(self, rank: int = 0) -> str:
        """Where to subscribe to a rank's events."""
        publisher = self.rank(rank).publisher
        assert publisher is not None, "it publishes no events"
        return publisher.events

    def replay(self, rank: int = 0) -> str | None:
        """Where to ask for a rank's last batches."""
        publisher = self.rank(rank).publisher
        return None if publisher is None else publisher.replay

    # -- for tests -----------------------------------------------------------------------------------------------------

    def rank(self, number: int = 0) -> Rank:
        return self.process.ranks[number]

    def cached(self, rank: int = 0) -> Counter[int]:
        """What a rank's cache really holds: each key with its number of blocks."""
        return self.rank(rank).engine.cached()

    def reset(self, *, reset_running_requests: bool = False) -> bool:
        """Clear the cache, as ``POST /reset_prefix_cache`` does; announced with the next step."""
        return self.process.reset_prefix_cache(reset_running_requests=reset_running_requests)

    def hold(self) -> None:
        """Stop the clock of every rank; ``step`` moves them by hand."""
        for rank in self.process.ranks:
            rank.hold()

    def release(self) -> None:
        """Let the clocks run again."""
        for rank in self.process.ranks:
            rank.release()

    def step(self, rank: int = 0) -> bool:
        """One step of a rank in no time; whether there was anything to do."""
        return self.rank(rank).step()

    def drop_next_batches(self, count: int, rank: int = 0) -> None:
        """Lose batches on their way to subscribers; a replay still has them."""
        publisher = self.rank(rank).publisher
        assert publisher is not None, "it publishes no events"
        publisher.drop_next(count)

    def forget_replay(self, rank: int = 0) -> None:
        """Lose what could be replayed until now."""
        publisher = self.rank(rank).publisher
        assert publisher is not None, "it publishes no events"
        publisher.forget_buffer()


@contextlib.asynccontextmanager
async def running(config: FakeConfig, sampler: Sampler = speak) -> AsyncIterator[FakeEngine]:
    """A fake engine that listens, until the block is left; killed then.

    Raises:
        OSError: an address is in use, or cannot be bound.
    """
    engine = FakeEngine(config, sampler)
    await engine.start()
    try:
        yield engine
    finally:
        if engine.is_running:
            await engine.kill()


def _port(endpoint: str | None) -> int | None:
    return None if endpoint is None else int(endpoint.rpartition(":")[2])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _with_port_ranges(config: FakeConfig) -> FakeConfig:
    """The same with event ports of which the following ones are free too, one for each rank."""
    count = config.data_parallel_size
    if count == 1:
        return config
    events, replay = config.event_port, config.replay_port
    while events == 0 or replay == 0 or (events and replay and abs(events - replay) < count):
        events = _free_range(config.host, count) if config.event_port == 0 else events
        replay = _free_range(config.host, count) if config.replay_port == 0 else replay
    return config.with_ports(config.port, events, replay)


def _free_range(host: str, count: int) -> int:
    """The first of ``count`` ports in a row that nobody uses now.

    Raises:
        OSError: none were found.
    """
    for _ in range(_ATTEMPTS):
        with contextlib.ExitStack() as held:
            try:
                first = _bound(host, 0, held)
                for number in range(1, count):
                    _bound(host, first + number, held)
            except (OSError, OverflowError):
                continue
            return first
    raise OSError(f"{host}: no {count} free ports in a row")


def _bound(host: str, port: int, held: contextlib.ExitStack) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = held.enter_context(socket.socket(family))
    sock.bind((host, port))
    bound: int = sock.getsockname()[1]
    return bound
