"""A Mooncake store behind vLLM's MooncakeStoreConnector: its master is asked which blocks of a prompt there are.

Knows the names that vLLM (0.32.0, ``PoolKey``) gives to blocks, and two paths of the master's HTTP port (mooncake 0.3.13,
``-metrics_port``): ``/health`` and ``/batch_query_keys``. Without a ``url`` it is known by events alone: the connector
publishes what it stores as medium ``cpu``, in lower case, and never what goes.
"""

import asyncio
from typing import Any, Final

import msgspec

from balancer.connectors.asking import Server, decoded
from balancer.connectors.base import Question, StoreError, Way, Writer, connector
from balancer.errors import ConfigError
from balancer.matching import usable_blocks
from balancer.store_settings import StoreSettings
from balancer.stores import Reading, Traits

FIRST_ASKED: Final = 8
"""Blocks asked for at first; then twice as many each time, up to ``MOST_ASKED``: most prompts miss at once."""

MOST_ASKED: Final = 1_024

IN_ONE_QUESTION: Final = 32
"""Names in one URL, some 130 bytes each: more than 8 KiB of it are refused by many a server. Several are asked at once."""


class _Answer(msgspec.Struct):
    data: dict[str, dict[str, Any]] = {}


class _Health(msgspec.Struct):
    status: str = ""
    service_ready: bool = True


@connector("mooncake")
class Mooncake(msgspec.Struct, frozen=True):
    """``url`` is the master's HTTP port. Names of blocks have the rest in them.

    ``model_name`` is the last part of where the engines have their model from, unless it is given; ``cache_prefix`` is empty
    unless the connector has one. All of the ranks of ``tensor_parallel_size`` must have a block.
    """

    url: str | None = None
    model_name: str | None = None
    cache_prefix: str = ""
    tensor_parallel_size: int = 1
    interval_seconds: float = 2.0

    @property
    def traits(self) -> Traits:
        return Traits(Reading.WHOLE, ("cpu",))

    @property
    def is_asked(self) -> bool:
        return self.url is not None

    def open(self, settings: StoreSettings, writer: Writer) -> "Master | None":
        if self.tensor_parallel_size < 1 or self.interval_seconds <= 0:
            raise ConfigError(f"stores.{settings.name}: tensor_parallel_size and interval_seconds must be above 0")
        return None if self.url is None else Master(self, Server(self.url), writer)

    def carries(self, tokens: int) -> dict[str, Any]:
        """Nothing steers it."""
        return {}


class Master:
    """A session with the master (``balancer.connectors.base.Session``)."""

    def __init__(self, settings: Mooncake, server: Server, writer: Writer) -> None:
        self._settings = settings
        self._server = server
        self._writer = writer

    async def run(self) -> None:
        """Look whether it is there: without it, engines load nothing.

        Raises:
            StoreError: it is not.
        """
        while True:
            health = decoded(await self._server.get("/health"), _Health, "Mooncake's master")
            if not health.service_ready:
                raise StoreError(f"Mooncake's master is not ready: it says '{health.status[:80]}'")
            self._writer.up()
            await asyncio.sleep(self._settings.interval_seconds)

    async def ask(self, question: Question) -> None:
        await asyncio.gather(*(self._ask(way) for way in question.ways))

    async def close(self) -> None:
        await self._server.close()

    async def _ask(self, way: Way) -> None:
        blocks = usable_blocks(way.chain.token_count, way.chain.block_size)
        digests, names = way.chain.digests(blocks), self._names(way)
        held, count = 0, FIRST_ASKED
        while held < blocks:
            wanted = [[f"{name}@{digest.hex()}" for name in names] for digest in digests[held : held + count]]
            there = await self._there([key for each in wanted for key in each])
            found = [there.issuperset(each) for each in wanted]
            leading = found.index(False) if False in found else len(found)
            held += leading
            if leading < len(found):
                break
            count = min(2 * count, MOST_ASKED)
        keys = way.chain.keys(blocks)[:blocks]
        namespace = self._writer.add(way.replica.base_models[0] if way.replica.base_models else "", keys[:held])
        self._writer.discard(namespace, keys[held:])

    async def _there(self, keys: list[str]) -> set[str]:
        """Those of the keys that the master has."""
        pieces = [keys[at : at + IN_ONE_QUESTION] for at in range(0, len(keys), IN_ONE_QUESTION)]
        bodies = await asyncio.gather(
            *(self._server.get("/batch_query_keys", keys=",".join(piece)) for piece in pieces)
        )
        answers = [decoded(body, _Answer, "Mooncake's master").data for body in bodies]
        return {key for data in answers for key, told in data.items() if told.get("ok") is True}

    def _names(self, way: Way) -> list[str]:
        """What the names of a block begin with, on each rank."""
        told, root = self._settings, way.replica.root or next(iter(way.replica.base_models), "")
        model = told.model_name or root.rstrip("/").rpartition("/")[2]
        before = f"{told.cache_prefix}@" if told.cache_prefix else ""
        return [
            f"{before}{model}@tp_rank:{rank}@pcp0@dcp0@pp_rank:0@group:0" for rank in range(told.tensor_parallel_size)
        ]
