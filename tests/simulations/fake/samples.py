"""Engines for tests: on any free ports, and in no hurry."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from simulations.fake.config import FakeConfig
from simulations.latency import LatencyModel

NO_TIME: Final = LatencyModel(overhead=0, weights=0, token=0, pair=0, context_token=0)

CONFIG: Final = FakeConfig(
    port=0, event_port=0, replay_port=0, model="tiny", max_model_len=4096, latency=NO_TIME
)


def config(**changes: Any) -> FakeConfig:
    return msgspec.structs.replace(CONFIG, **changes)


def run(test: Callable[[], Coroutine[Any, Any, None]], seconds: float = 20.0) -> None:
    """The coroutine, to its end or a deadline."""

    async def timed() -> None:
        async with asyncio.timeout(seconds):
            await test()

    asyncio.run(timed())


async def until(condition: Callable[[], object]) -> None:
    """Give way to others until the condition holds; the deadline is the caller's."""
    while not condition():
        await asyncio.sleep(0.001)
