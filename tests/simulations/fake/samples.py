"""Engines for tests: on any free ports, and in no hurry; and what their clients do all the time."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import msgspec

from simulations.fake.config import FakeConfig
from simulations.fake.engine import FakeEngine, running
from simulations.latency import LatencyModel
from tests.simulations.fake.exchanges import MAX_MODEL_LEN

NO_TIME: Final = LatencyModel(overhead=0, weights=0, token=0, pair=0, context_token=0)

CONFIG: Final = FakeConfig(
    port=0, event_port=0, replay_port=0, model="tiny", max_model_len=MAX_MODEL_LEN, latency=NO_TIME
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
    while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0.001)


IDS: Final = list(range(40, 110))  # 70 tokens: four blocks of 16, and 6 more


@asynccontextmanager
async def served(settings: FakeConfig | None = None) -> AsyncIterator[tuple[FakeEngine, aiohttp.ClientSession]]:
    async with (
        running(settings or config()) as engine,
        aiohttp.ClientSession(engine.url, connector=aiohttp.TCPConnector(force_close=True)) as session,
    ):
        yield engine, session


async def post(session: aiohttp.ClientSession, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    async with session.post(path, json=body, headers=headers) as response:
        text = await response.text()
        return response.status, json.loads(text) if text else None


async def complete(session: aiohttp.ClientSession, prompt: Any = IDS, **fields: Any) -> Any:
    status, answer = await post(session, "/v1/completions", {"prompt": prompt, "max_tokens": 2, **fields})
    assert status == 200, answer
    return answer


def cached_tokens(answer: Any) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count
