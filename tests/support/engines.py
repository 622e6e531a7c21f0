"""Fake engines in this process with a gateway before them, and the question whether the index mirrors their caches.

Knows configurations that take no time. Nothing is shared between two fleets but the machine.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import aiohttp
import msgspec

from balancer.facts import replica_id
from simulations.fake_engine import FakeConfig, FakeEngine, running
from simulations.latency import LatencyModel
from tests.support.gateways import Gateway, gateway
from tests.support.waiting import eventually

MODEL: Final = "m"
NO_TIME: Final = LatencyModel(overhead=0, weights=0, token=0, pair=0, context_token=0)

CONFIG: Final = FakeConfig(
    port=0, event_port=0, replay_port=0, model=MODEL, latency=NO_TIME, num_gpu_blocks=512, max_model_len=2048
)


def config(**changes: Any) -> FakeConfig:
    return msgspec.structs.replace(CONFIG, **changes)


class Fleet:
    """Engines, their gateway, and a client."""

    def __init__(self, engines: Sequence[FakeEngine], front: Gateway, client: aiohttp.ClientSession) -> None:
        self.engines = engines
        self.front = front
        self.router = front.service.router
        self._client = client

    async def post(self, path: str, body: dict[str, Any], **headers: str) -> tuple[dict[str, str], bytes]:
        """An answer that must be a good one, as (headers, body)."""
        async with self._client.post(self.front.url + path, json={"model": MODEL, **body}, headers=headers) as response:
            answer = await response.read()
            assert response.status == 200, answer
            return {name.lower(): value for name, value in response.headers.items()}, answer

    async def complete(self, prompt: Any, **fields: Any) -> tuple[str, int, int]:
        """A completion, as (replica, cached tokens as predicted, cached tokens as the engine counts them)."""
        headers, body = await self.post("/v1/completions", {"prompt": prompt, "max_tokens": 2, **fields})
        actual = json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"]
        return headers["x-kvlb-replica"], int(headers["x-kvlb-cached-tokens"]), actual

    def mirrors(self) -> bool:
        """Whether the index says of every engine that runs exactly what its cache holds."""
        return all(
            self.router.caches.index.gpu.held(replica_id(engine.url, rank, engine.config.data_parallel_size))
            == engine.cached(rank)
            for engine in self.engines
            if engine.is_running
            for rank in range(engine.config.data_parallel_size)
        )

    async def settle(self) -> None:
        """Return once all events have arrived."""
        await eventually(self.mirrors)

    def follows(self) -> bool:
        """Whether the events of every rank are subscribed to, and nothing that can be asked for is missing."""
        service = self.front.service
        ranks = sum(engine.config.data_parallel_size for engine in self.engines)
        links = [
            (service.router.caches._standings[replica], each.replay) for replica, each in service._publishers.items()
        ]
        return len(links) == ranks and all(
            link.is_connected and (link.is_complete or not replay) for link, replay in links
        )

    def exact_share(self) -> tuple[int, int]:
        """(exact predictions, predictions compared), over all replicas."""
        tallies = self.router.caches.audit.tallies.values()
        return sum(tally.exact for tally in tallies), sum(tally.compared for tally in tallies)

    async def wait_usable(self, count: int) -> None:
        """Return once exactly so many endpoints can be used."""
        watchers = self.front.service.watchers.values()
        await eventually(lambda: sum(not watcher.problem for watcher in watchers) == count)


@contextlib.asynccontextmanager
async def fleet(
    *configs: FakeConfig, replicas: Sequence[dict[str, Any]] | None = None, **sections: Any
) -> AsyncIterator[Fleet]:
    """Engines with these configurations; ``replicas`` adds settings to each one's endpoint."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running(each)) for each in configs]
        extra = replicas or [{} for _ in engines]
        endpoints = [
            {"url": engine.url, **{name: value(engine) if callable(value) else value for name, value in more.items()}}
            for engine, more in zip(engines, extra, strict=True)
        ]
        front = await stack.enter_async_context(gateway(endpoints, **sections))
        connector = aiohttp.TCPConnector(limit=0)
        made = Fleet(engines, front, await stack.enter_async_context(aiohttp.ClientSession(connector=connector)))
        await eventually(made.follows)
        yield made
