"""A Redis behind LMCache (its ``redis://`` remote backend): asked which chunks of a prompt there are.

Knows the names that LMCache (0.5.6, ``CacheEngineKey`` and ``RedisConnector``) gives to chunks:
``MODEL@WORLD_SIZE@WORKER@HASH@DTYPE``, and ``metadata`` behind it. They can be computed where LMCache hashes with
``sha256_cbor``; its default draws a number for each process. Needs redis-py (the extra ``kvlb[redis]``).
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from balancer.connectors.base import Question, StoreError, Way, Writer, connector
from balancer.errors import ConfigError
from balancer.store_settings import StoreSettings
from balancer.stores import Reading, Traits
from hashing.errors import UnhashableError
from hashing.extras import Extras
from hashing.lmcache import chunk_hashes
from hashing.own import LearnedKeys, OwnChain

if TYPE_CHECKING:
    from redis.asyncio import Redis as Client

EXTRA: Final = "kvlb[redis]"

ASKED_AT_ONCE: Final = 64
"""Chunks in one round: a prompt of 16,384 tokens, at LMCache's usual 256."""


@connector("redis")
class Redis(msgspec.Struct, frozen=True):
    """``url`` is as LMCache's ``remote_url``, and names of chunks have the rest in them.

    ``model_name`` is where the engines have their model from, unless it is given; ``dtype`` is that of the cache, in LMCache's
    words; ``hash_seed`` is PYTHONHASHSEED in the engines' environment, where it is set.
    """

    url: str
    model_name: str | None = None
    chunk_size: int = 256
    world_size: int = 1
    dtype: str = "bfloat16"
    hash_seed: str | None = None
    interval_seconds: float = 2.0

    @property
    def traits(self) -> Traits:
        return Traits(Reading.BUT_ONE)

    @property
    def is_asked(self) -> bool:
        return True

    def open(self, settings: StoreSettings, writer: Writer) -> "Names":
        if self.chunk_size < 1 or self.world_size < 1 or self.interval_seconds <= 0:
            raise ConfigError(f"stores.{settings.name}: chunk_size, world_size and interval_seconds must be above 0")
        try:
            from redis import asyncio as client  # noqa: PLC0415  # only those who have such a store need it
        except ImportError:
            raise ConfigError(f"stores.{settings.name}.connector: redis needs redis-py; install {EXTRA}") from None
        try:
            made: Client = client.from_url(self.url)
        except ValueError as error:
            raise ConfigError(f"stores.{settings.name}.url: {error}") from error
        return Names(self, made, writer)

    def carries(self, tokens: int) -> dict[str, Any]:
        """Nothing steers it."""
        return {}


class Names:
    """A session with the server (``balancer.connectors.base.Session``)."""

    def __init__(self, settings: Redis, client: "Client", writer: Writer) -> None:
        self._settings = settings
        self._client = client
        self._writer = writer

    async def run(self) -> None:
        """Look whether it is there.

        Raises:
            StoreError: it is not.
        """
        while True:
            try:
                await self._client.execute_command("PING")  # type: ignore[no-untyped-call]
            except Exception as error:
                raise StoreError(f"Redis cannot be asked: {error}") from error
            self._writer.up()
            await asyncio.sleep(self._settings.interval_seconds)

    async def ask(self, question: Question) -> None:
        told = self._settings
        hashes = chunk_hashes(question.tokens, told.chunk_size, told.hash_seed)
        for way in question.ways:
            model = told.model_name or way.replica.root or next(iter(way.replica.base_models), "")
            names = [f"{model}@{told.world_size}@0@{each:x}@{told.dtype}metadata" for each in hashes]
            self._keep(question, way, await self._leading(names))

    async def close(self) -> None:
        await self._client.aclose()

    async def _leading(self, names: list[str]) -> int:
        """How many of the first names there are."""
        for start in range(0, len(names), ASKED_AT_ONCE):
            try:
                pipeline = self._client.pipeline(transaction=False)
                for name in names[start : start + ASKED_AT_ONCE]:
                    pipeline.exists(name)
                found = [bool(each) for each in await pipeline.execute()]
            except Exception as error:
                raise StoreError(f"Redis cannot be asked: {error}") from error
            if False in found:
                return start + found.index(False)
        return len(names)

    def _keep(self, question: Question, way: Way, chunks: int) -> None:
        keys = LearnedKeys(self._settings.chunk_size)
        try:
            chain = OwnChain(keys, question.tokens, Extras(lora=way.adapter, salt=question.salt))
        except UnhashableError:
            return
        every = chain.keys(len(chain))
        model = way.replica.base_models[0] if way.replica.base_models else ""
        namespace = self._writer.add(model, every[:chunks], keys)
        self._writer.discard(namespace, every[chunks:])
