"""All stores at work: sessions that are kept going, and lookups that are never waited for longer than is worth it.

Knows tasks, deadlines, the breaker and the cache of what was asked. Never knows what a store is. A store that fails is left
alone for a while, counts for nothing meanwhile, and is tried again; a request waits for it at most ``timeout_ms``.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from balancer.connectors import base
from balancer.connectors.base import Connector, FetchCost, Question, Session, StoreError, Way, Writer, fetch_cost
from balancer.core import Replica, RouteRequest
from balancer.errors import ConfigError
from balancer.hashes import PromptHashes
from balancer.matching import usable_blocks
from balancer.router import Router
from balancer.store_settings import StoreSettings
from balancer.stores import Store
from hashing.chain import Chain
from hashing.recipes import Recipe
from indexer.places import Tier

log = logging.getLogger(__name__)

REMEMBERED: Final = 8_192
"""Prompts whose answers are remembered, of each store; some 100 bytes each."""

MAX_PAUSE: Final = 60.0


def stores_of(settings: Sequence[StoreSettings], processes: int = 1) -> list[Store]:
    """The stores of the settings, as a router knows them.

    Raises:
        ConfigError: a connector or a setting of one that there is not, or one that needs tokens where the brain has none.
    """
    found = []
    for each in settings:
        made = base.make(each)
        if made.is_asked and processes > 1:
            raise ConfigError(
                f"stores.{each.name}.connector: {each.connector} is asked about each prompt's tokens, which a brain with "
                "several gateways does not have; set server.processes = 1, or let it be known by events"
            )
        found.append(Store(each, made.traits))
    return found


class StoreRunner:
    """Owns a session for each store that needs one. ``start`` it in a running event loop."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._stores = router.caches.stores
        self._asked: list[_Asked] = []
        self._sessions: dict[str, Session] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._told: set[Tier] = set()
        self.connectors: dict[str, Connector] = {store.name: base.make(store.settings) for store in self._stores}

    def start(self) -> None:
        for store in self._stores:
            connector = self.connectors[store.name]
            writer = Writer(store, self._stores.index)
            session = connector.open(store.settings, writer)
            if session is None:
                continue
            self._sessions[store.name] = session
            self._tasks.append(asyncio.create_task(self._keep(store, session, writer)))
            if connector.is_asked:
                self._asked.append(_Asked(store, session))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(session.close() for session in self._sessions.values()), return_exceptions=True)

    def look(self) -> None:
        """Tell, once, of places that replicas speak of as shared and no setting names."""
        for tier in self._router.caches.index.tiers:
            if tier.locality == "REMOTE" and tier not in self._told:
                self._told.add(tier)
                log.warning(
                    "KV events speak of %s, which others may read, too: it counts for the replicas that tell of it alone, "
                    "until a [[stores]] has it among its tiers",
                    tier.label,
                )

    def cost(self, name: str) -> FetchCost:
        """What a fetch from this store costs."""
        store = self._stores.get(name)
        return FetchCost(0.0, None) if store is None else fetch_cost(store.settings)

    def asking(self, request: RouteRequest) -> Awaitable[None] | None:
        """What has to be awaited before this request is routed; None where all is known that can be."""
        if not self._asked or len(request.prompt_lengths) != 1 or not request.reads_cache:
            return None
        if not isinstance(request.hashes, PromptHashes):
            return None
        now = time.monotonic()
        lookups: list[Awaitable[None]] = []
        for asked in self._asked:
            question = None if asked.rests_until > now else self._question(asked.store, request)
            if question is not None and asked.is_due(question, now):
                lookups.append(asked.look_up(question))
        return _all(lookups) if lookups else None

    def status(self) -> list[dict[str, Any]]:
        """Each store for people."""
        return [
            {
                "store": store.name,
                "connector": store.settings.connector,
                "up": store.is_up,
                "problem": store.problem or None,
                "blocks": self._stores.index.blocks(store.name),
                "models": sorted({each.model for each in self._stores.index.namespaces(store.name)}),
                "attached": [
                    live.replica.id for live in self._router.fleet if store in self._stores.attached(live.replica.id)
                ],
                "counts": dict(store.counts),
            }
            for store in self._stores
        ]

    def _question(self, store: Store, request: RouteRequest) -> Question | None:
        """The prompt as those would look for it who serve its model and read from this store."""
        hashes = request.hashes
        assert isinstance(hashes, PromptHashes)
        matcher = self._router.caches.matcher
        ways: dict[object, Way] = {}
        for live in self._router.fleet.serving(request.model):
            replica = live.replica
            if store not in self._stores.attached(replica.id):
                continue
            way = _way(replica, matcher.recipe(replica), request, hashes)
            if way is not None:
                ways.setdefault((way.chain.recipe, replica.adapter(request.model), replica.root), way)
        return Question(hashes.prompts[0], tuple(ways.values()), hashes.salt) if ways else None

    async def _keep(self, store: Store, session: Session, writer: Writer) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                await session.run()
                return
            except StoreError as error:
                why = str(error)
            except Exception as error:
                log.exception("store %s: it has failed in a way that was not foreseen, and is begun anew", store.name)
                why = f"{type(error).__name__}: {error}"
            _tell(store, why)
            store.counts["failed"] += 1
            writer.clear()
            failures = 1 if time.monotonic() - began > MAX_PAUSE else failures + 1
            pause = min(MAX_PAUSE, store.settings.pause_seconds * 2 ** min(failures - 1, 6))
            await asyncio.sleep(pause * (0.5 + random.random() / 2))


class _Asked:
    """One store that is asked about prompts, with its breaker and what it has answered lately."""

    def __init__(self, store: Store, session: Session) -> None:
        self.store = store
        self.rests_until = 0.0
        self._session = session
        self._failures = 0
        self._until: OrderedDict[tuple[int, ...], float] = OrderedDict()

    def is_due(self, question: Question, now: float) -> bool:
        """Whether the answer is not known, or not any more; then it will be, for whoever asks next."""
        name = tuple(_last_key(way.chain) for way in question.ways)
        if self._until.get(name, 0.0) > now:
            self.store.counts["lookup_remembered"] += 1
            return False
        self._until[name] = now + self.store.settings.cache_seconds
        self._until.move_to_end(name)
        if len(self._until) > REMEMBERED:
            self._until.popitem(last=False)
        return True

    async def look_up(self, question: Question) -> None:
        """Ask; a failure costs time, and nothing else."""
        settings = self.store.settings
        try:
            async with asyncio.timeout(settings.timeout_ms / 1e3):
                await self._session.ask(question)
        except TimeoutError:
            self._failed(f"it has not answered within {settings.timeout_ms:g} ms", "lookup_late", question)
        except StoreError as error:
            self._failed(str(error), "lookup_failed", question)
        except Exception as error:
            log.exception("store %s: a lookup has failed in a way that was not foreseen", self.store.name)
            self._failed(f"{type(error).__name__}: {error}", "lookup_failed", question)
        else:
            self._failures = 0
            self.store.counts["lookup_answered"] += 1
            if not self.store.is_up:
                log.info("store %s: answers again", self.store.name)
                self.store.problem = ""

    def _failed(self, why: str, what: str, question: Question) -> None:
        self._failures += 1
        self.store.counts[what] += 1
        self._until.pop(tuple(_last_key(way.chain) for way in question.ways), None)
        if self._failures >= self.store.settings.failures:
            self.rests_until = time.monotonic() + self.store.settings.pause_seconds
            _tell(self.store, why)
            self._until.clear()


def _way(replica: Replica, recipe: object, request: RouteRequest, hashes: PromptHashes) -> Way | None:
    """None where nobody can say what its engine would look for."""
    if not isinstance(recipe, Recipe) or not usable_blocks(request.prompt_lengths[0], recipe.block_size):
        return None
    adapter = replica.adapter(request.model)
    chain = hashes.whole(recipe, adapter)
    return None if chain is None else Way(replica, chain, adapter)


def _last_key(chain: Chain) -> int:
    count = usable_blocks(chain.token_count, chain.block_size)
    return chain.keys(count)[count - 1]


def _tell(store: Store, why: str) -> None:
    if store.problem != why:
        log.warning("store %s: %s; its blocks are not counted on until it can be used", store.name, why)
    store.problem = why


async def _all(lookups: Sequence[Awaitable[None]]) -> None:
    await asyncio.gather(*lookups)
