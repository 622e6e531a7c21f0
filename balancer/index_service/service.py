"""The index service with the world attached: publishers, time, and what an operator is told.

Knows the event feed and the clock, and feeds ``Workers`` with them. Decides nothing itself.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from balancer.caches import Caches, Renew
from balancer.core import PrefixHashes
from balancer.dumps import Dumps
from balancer.errors import BadRequest
from balancer.feed import EventFeed
from balancer.index_service import answers
from balancer.index_service.answers import Scores
from balancer.index_service.bodies import DEFAULT_TENANT, Query, Registration, Scope, Unregistration
from balancer.index_service.workers import MAX_SUBSCRIPTIONS, Workers
from balancer.index_tables import IndexQuery, answer_query, answer_replicas, dump
from balancer.json_bodies import as_text
from balancer.knowledge import Knowledge
from balancer.news import News
from balancer.prefixes import LocalHashes, TextHashes
from balancer.settings import Settings
from hashing.errors import UnhashableError
from hashing.extras import Lora
from hashing.memory import ChainMemory
from indexer.index import ReplicaId
from indexer.sources.vllm import Publisher, PublisherStatus
from indexer.stream import Step

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.1


class IndexService:
    """Owns one index and what feeds it. Start it in a running event loop; ``stop`` ends every task, thread and connection."""

    def __init__(self, settings: Settings, max_publishers: int = MAX_SUBSCRIPTIONS) -> None:
        self.caches = Caches(settings.index.max_blocks)
        self.workers = Workers(self.caches, max_publishers)
        self.memory = ChainMemory(settings.hashing.memory_bytes, secret=secrets.randbits(64))
        self.feed: EventFeed
        self._news = News()
        self._dumps = Dumps()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.feed = EventFeed(self._take)
        self._tasks.append(asyncio.create_task(self._tick()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.feed.close()

    # Coming and going

    def register(self, registration: Registration) -> None:
        """Follow this publisher from now on.

        Raises:
            Conflict: another one is registered in its place, or there are too many.
        """
        subscription = self.workers.register(registration)
        if subscription is not None:
            replay = f"replays from {registration.replay}" if registration.replay else "no replays"
            log.info("%s: registered, with events from %s and %s", subscription.id, registration.endpoint, replay)
            self.feed.reader.add(
                Publisher(subscription.id, registration.endpoint, registration.replay, registration.topic)
            )

    def unregister(self, wanted: Unregistration) -> None:
        """Follow it no longer, and forget what it held.

        Raises:
            UnknownInstance: it is not registered.
        """
        for subscription in self.workers.unregister(wanted):
            log.info("%s: unregistered; what it held is forgotten", subscription.id)
            self.feed.reader.remove(subscription.id)
            for replica in subscription.replicas.values():
                self._news.forget(replica.id)

    def _take(self, replica: ReplicaId, step: Step) -> None:
        if replica in self.workers:  # of one that was unregistered, that has been told
            self._news.step(replica, step)
        self.workers.observe(replica, step)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            self.caches.tick(now)
            self._obey_orders()
            for replica, view in self.caches.views(now).items():
                # Nobody has to say how an engine hashes: only where somebody did are learned keys a surprise.
                is_normal = view.state is Knowledge.LEARNED and self.caches.recognitions[replica].declared is None
                self._news.knowledge(replica, view, now, is_normal=is_normal)

    def _obey_orders(self) -> None:
        orders, self.caches.orders = self.caches.orders, []
        for order in orders:
            if isinstance(order, Renew) and (subscription := self.workers.follower(order.replica)) is not None:
                log.warning("%s: its events are followed anew: %s", order.replica, order.reason)
                self.feed.reader.restart(subscription, order.reason)

    # Questions

    def by_tokens(self, query: Query) -> Scores:
        """What each instance holds of a prompt given by its token ids.

        Raises:
            BadRequest: one of them is none.
            UnknownModel: nobody is registered for this model and tenant.
        """
        return self._scores(query, TextHashes(query.text, query.salt, self.memory), "token_ids")

    def by_local_hashes(self, query: Query) -> Scores:
        """What each instance holds of a prompt given by the hashes of its blocks.

        Raises:
            BadRequest: one of them is none.
            UnknownModel: nobody is registered for this model and tenant.
        """
        scores = self._scores(query, LocalHashes(query.text, query.salt, self.memory), "block_hashes")
        return answers.warn_unasked(scores, self.workers, query)

    def _scores(self, query: Query, hashes: PrefixHashes, field: str) -> Scores:
        try:
            return answers.scores(self.workers, query, hashes, time.monotonic())
        except UnhashableError as error:
            raise BadRequest(f"{field}: {str(error).partition(': ')[2]}", param=field) from error

    def listing(self) -> list[dict[str, Any]]:
        """Every instance with its listeners."""
        return answers.listing(self.workers, time.monotonic())

    def asked(self, query: IndexQuery) -> dict[str, Any]:
        """What each replica of the query's model and tenant holds of its prompt.

        Raises:
            BadRequest: it names no model.
            UnknownModel: nobody is registered for it.
        """
        if not query.model:
            raise BadRequest("model: missing; name the model that the engines serve", param="model")
        subscriptions = self.workers.subscriptions(Scope(query.model, as_text(query.tenant_id) or DEFAULT_TENANT))
        replicas = [replica for _, each in subscriptions for replica in each.replicas.values()]
        adapter = Lora(query.lora_name) if query.lora_name else None
        answer = answer_query(self.caches, replicas, query, self.memory, lambda _: adapter, time.monotonic())
        return {"model": query.model, **answer}

    def replicas(self) -> dict[str, Any]:
        """Everything that is indexed."""
        return answer_replicas(self.caches, self.workers.replicas(), self.publishers(), time.monotonic())

    def dump(self) -> AsyncIterator[bytes]:
        """The whole index in lines, when it is this client's turn."""
        return self._dumps.paced(dump(self.caches, self.workers.replicas(), time.monotonic()))

    def publishers(self) -> dict[ReplicaId, PublisherStatus]:
        """The state of every event subscription."""
        return self.feed.reader.status()
