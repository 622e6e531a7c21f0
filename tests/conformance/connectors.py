"""What every connector of a shared store must do: a suite for its author, run in the tests of kvlb's own.

``Case`` says how a store is filled, emptied and broken. Name the ``test_*`` of here in a test file of your own, beside a
fixture ``case``. What a connector finds is judged by what a router then says can be loaded, whatever its keys are.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import msgspec

from balancer.connectors.base import make
from balancer.connectors.running import StoreRunner
from balancer.core import RouteRequest
from balancer.hashes import PromptHashes
from balancer.policies.cache_aware import CacheAware
from balancer.router import Router
from balancer.store_settings import StoreSettings
from balancer.stores import Store
from tests.support.routing import MODEL, replica
from tests.support.waiting import eventually, run

PROMPT: Final = list(range(500, 638))  # 138 tokens
OTHER: Final = list(range(900, 1038))


class Stage(msgspec.Struct, frozen=True):
    """A store that is there. ``put`` keeps all full blocks of a prompt; ``take`` empties it; ``end`` makes it unreachable."""

    settings: dict[str, Any]
    put: Callable[[Sequence[int]], None]
    take: Callable[[], None]
    end: Callable[[], None]


class Case(msgspec.Struct, frozen=True):
    """``tokens`` are what is to be loaded of ``PROMPT`` once it was ``put``, by an engine with blocks of four tokens."""

    name: str
    stage: Callable[[], AbstractAsyncContextManager[Stage]]
    tokens: int


@contextlib.asynccontextmanager
async def used(case: Case, stage: Stage) -> AsyncIterator[tuple[Router, Callable[[Sequence[int]], Any]]]:
    """A router whose replica reads from the store, and what it could load of a prompt."""
    settings = StoreSettings(
        name="s", connector=case.name, settings=stage.settings, timeout_ms=5_000, cache_seconds=0, failures=1
    )
    settings = msgspec.structs.replace(settings, pause_seconds=0.05)
    router = Router(CacheAware(), "cache_aware", stores=[Store(settings, make(settings).traits)])
    router.put(replica("a", root="/models/tiny"))
    runner = StoreRunner(router)
    runner.start()

    async def loadable(tokens: Sequence[int]) -> int:
        asked = RouteRequest(MODEL, PromptHashes([tokens], None, None), (len(tokens),))
        if (asking := runner.asking(asked)) is not None:
            await asking
        return router.consider(asked, 0.0, 0.0).candidates[0].loadable_tokens

    try:
        yield router, loadable
    finally:
        await runner.stop()


async def until(loadable: Callable[[Sequence[int]], Any], tokens: Sequence[int], count: int) -> None:
    deadline = time.monotonic() + 10
    while (last := await loadable(tokens)) != count:
        assert time.monotonic() < deadline, f"{last} can be loaded instead of {count}"
        await asyncio.sleep(0.01)


def test_what_is_put_there_can_be_loaded_and_what_is_taken_cannot(case: Case) -> None:
    async def story() -> None:
        async with case.stage() as stage, used(case, stage) as (router, loadable):
            await until(loadable, PROMPT, 0)
            stage.put(PROMPT)
            await until(loadable, PROMPT, case.tokens)
            assert await loadable(OTHER) == 0
            stage.put(OTHER)
            await until(loadable, OTHER, case.tokens)
            stage.take()
            await until(loadable, PROMPT, 0)
            await until(loadable, OTHER, 0)
            router.caches.index.check()

    run(story())


def test_a_store_that_is_gone_is_down_and_counts_for_nothing(case: Case) -> None:
    async def story() -> None:
        async with case.stage() as stage, used(case, stage) as (router, loadable):
            (store,) = router.caches.stores
            stage.put(PROMPT)
            await until(loadable, PROMPT, case.tokens)
            stage.end()
            await until(loadable, PROMPT, 0)
            await eventually(lambda: bool(store.problem))

    run(story())


def test_a_connector_is_a_frozen_value_that_says_what_requests_carry(case: Case) -> None:
    async def story() -> None:
        async with case.stage() as stage:
            made = make(StoreSettings(name="s", connector=case.name, settings=stage.settings))
            assert made.__struct_config__.frozen  # type: ignore[attr-defined]
            assert hash(made) == hash(make(StoreSettings(name="s", connector=case.name, settings=stage.settings)))
            for tokens in (0, 96):
                assert msgspec.json.decode(msgspec.json.encode(made.carries(tokens))) == made.carries(tokens)

    run(story())
