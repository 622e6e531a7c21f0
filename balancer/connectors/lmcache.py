"""LMCache: its multi-process server, known by events and watched by its status; or its controller, asked about each prompt.

Knows two HTTP APIs of LMCache 0.5.6. The server's ``/status`` tells of a restart, which empties its memory: what its events
said before is void then; and of chunks that no event can tell of. Its own lookup takes read locks and starts loads, so it is
not used. Engines publish what the server keeps as medium ``CPU`` with hashes and chunks of LMCache's own (with
``mp_transfer_mode`` ``lmcache_driven`` alone): by tokens they are known all the same. The controller's ``/lookup`` says for
each instance how many leading tokens it has; LMCache's instances share them.
"""

import asyncio
import logging
from typing import Any

import msgspec

from balancer.connectors.asking import Server, decoded
from balancer.connectors.base import Question, Session, StoreError, Way, Writer, connector
from balancer.errors import ConfigError
from balancer.store_settings import StoreSettings
from balancer.stores import Reading, Traits
from hashing.errors import UnhashableError
from hashing.extras import Extras
from hashing.own import LearnedKeys, OwnChain

log = logging.getLogger(__name__)


class _Events(msgspec.Struct, frozen=True):
    enabled: bool = True
    incarnation: int | None = None
    unbound_stores: int = 0
    """Chunks that it has kept without their tokens: no event can name them."""


class _Memory(msgspec.Struct, frozen=True):
    total_object_count: int | None = None


class _Storage(msgspec.Struct, frozen=True):
    num_l2_adapters: int = 0
    l1_manager: _Memory = _Memory()


class _Status(msgspec.Struct, frozen=True):
    kv_events: _Events = _Events()
    is_healthy: bool = True
    storage_manager: _Storage = _Storage()

    @property
    def is_empty(self) -> bool:
        """Whether it says that it keeps nothing at all."""
        return not self.storage_manager.num_l2_adapters and self.storage_manager.l1_manager.total_object_count == 0


class _Layout(msgspec.Struct, frozen=True):
    layout_info: dict[str, tuple[str, int]]


@connector("lmcache")
class LMCache(msgspec.Struct, frozen=True):
    """``url`` is the multi-process server's HTTP port, ``controller`` the controller's; ``chunk_size`` is in tokens."""

    url: str | None = None
    controller: str | None = None
    chunk_size: int = 256
    interval_seconds: float = 2.0

    @property
    def traits(self) -> Traits:
        if self.controller is not None:  # what an instance keeps in its engine's memory is its engine's alone
            return Traits(Reading.BUT_ONE, has_own_hashes=True)
        return Traits(Reading.BUT_ONE, ("CPU",), has_own_hashes=True)

    @property
    def is_asked(self) -> bool:
        return self.controller is not None

    def open(self, settings: StoreSettings, writer: Writer) -> Session | None:
        if self.url is not None and self.controller is not None:
            raise ConfigError(f"stores.{settings.name}.controller: url is given, too; they are two kinds of LMCache")
        if self.chunk_size < 1 or self.interval_seconds <= 0:
            raise ConfigError(f"stores.{settings.name}: chunk_size and interval_seconds must be above 0")
        if self.controller is not None:
            return Controller(Server(self.controller), LearnedKeys(self.chunk_size), self.interval_seconds, writer)
        if self.url is None:
            return None
        return MultiProcess(settings.name, Server(self.url), self.interval_seconds, writer)

    def carries(self, tokens: int) -> dict[str, Any]:
        """Nothing steers it."""
        return {}


class MultiProcess:
    """A session with the multi-process server."""

    def __init__(self, name: str, server: Server, interval: float, writer: Writer) -> None:
        self._name = name
        self._server = server
        self._interval = interval
        self._writer = writer
        self._life: int | None = None
        self._was_empty = False
        self._untold = 0

    async def run(self) -> None:
        """Look whether it is there, and still in the same life.

        Raises:
            StoreError: it is not.
        """
        while True:
            status = decoded(await self._server.get("/status"), _Status, "LMCache's server")
            if not status.is_healthy:
                raise StoreError("LMCache's server says that it is not healthy; see its /status")
            if not status.kv_events.enabled:
                raise StoreError("LMCache's server tells no events: start it with --kv-event-log-size above 0")
            life = status.kv_events.incarnation
            if self._life not in {None, life}:
                self._writer.restarted()
            self._life = life
            self._warn(status.kv_events.unbound_stores)
            if status.is_empty and self._was_empty:  # twice: what is stored between the two is announced meanwhile
                self._writer.clear()  # its /cache/clear is announced by nothing
            self._was_empty = status.is_empty
            self._writer.up()
            await asyncio.sleep(self._interval)

    def _warn(self, untold: int) -> None:
        """Say once in a life that it keeps what nobody here can know of."""
        if untold and not self._untold:
            told = (
                "store %s: LMCache's server keeps chunks that no event tells of, and kvlb does not count on them: start "
                "engines with lmcache.mp.mp_transfer_mode = lmcache_driven in kv_connector_extra_config"
            )
            log.warning(told, self._name)
        self._writer.count("untold", max(0, untold - self._untold))
        self._untold = untold

    async def ask(self, question: Question) -> None:
        """Nothing to ask: events say all."""

    async def close(self) -> None:
        await self._server.close()


class Controller:
    """A session with the controller."""

    def __init__(self, server: Server, keys: LearnedKeys, interval: float, writer: Writer) -> None:
        self._server = server
        self._keys = keys
        self._interval = interval
        self._writer = writer

    async def run(self) -> None:
        """Nothing to follow: lookups tell whether it is there."""

    async def ask(self, question: Question) -> None:
        body = await self._server.post("/lookup", {"tokens": list(question.tokens)})
        told = decoded(body, _Layout, "LMCache's controller").layout_info
        held = max((tokens for _, tokens in told.values()), default=0)
        for way in question.ways:
            self._keep(question, way, held)

    async def close(self) -> None:
        await self._server.close()

    def _keep(self, question: Question, way: Way, held: int) -> None:
        try:
            chain = OwnChain(self._keys, question.tokens, Extras(lora=way.adapter, salt=question.salt))
        except UnhashableError:
            return
        keys, chunks = chain.keys(len(chain)), held // self._keys.block_size
        model = way.replica.base_models[0] if way.replica.base_models else ""
        namespace = self._writer.add(model, keys[:chunks], self._keys)
        self._writer.discard(namespace, keys[chunks:])
