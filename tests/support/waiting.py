"""Running coroutines in tests, and waiting for what must become true.

Knows deadlines. Never sleeps a fixed time: it looks again every few milliseconds until the condition holds.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.005


def run(coroutine: Coroutine[Any, Any, T], seconds: float = 30) -> T:
    """Run to the end on a loop of its own; a test that hangs fails."""

    async def limited() -> T:
        async with asyncio.timeout(seconds):
            return await coroutine

    return asyncio.run(limited())


@contextlib.asynccontextmanager
async def beside(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """They run while the block does, and are cancelled at its end; how they have ended is not looked at."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def eventually(condition: Callable[[], object], seconds: float = 15) -> None:
    """Return as soon as ``condition()`` is true.

    Raises:
        AssertionError: it is still false after so many seconds.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not condition():
        assert loop.time() < until, f"still false after {seconds:g} s: {condition}"
        await asyncio.sleep(POLL_SECONDS)
