"""What every discovery must do: a suite for its author, run here over those of kvlb itself.

``Case`` says how to make one and how to change what it finds. Name the ``test_*`` of here in a test file of your own, beside a
fixture ``case``.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import msgspec
import pytest

from balancer.discovery.base import Discovery, Failed, Found
from balancer.settings import check_replicas
from tests.support.waiting import run


class Case(msgspec.Struct, frozen=True):
    """One discovery under test. ``set_urls`` makes it find these; it may be called from the loop only."""

    make: Callable[[], Discovery]
    set_urls: Callable[[Sequence[str]], None]
    break_it: Callable[[], None] | None = None
    """Makes it unable to say who is there, until ``set_urls`` is called again; None where it always can."""


TWO = ("http://10.0.0.1:8000", "http://10.0.0.2:8000")


@contextlib.asynccontextmanager
async def watching(discovery: Discovery) -> AsyncIterator[AsyncIterator[Found | Failed]]:
    """Its news; closed at the end, as the gateway does."""
    async with contextlib.aclosing(cast(Any, discovery.watch())) as news:
        yield news


async def until(news: AsyncIterator[Found | Failed], urls: Sequence[str]) -> Found:
    """The first list that has exactly these endpoints."""
    async for each in news:
        if isinstance(each, Found) and {replica.url for replica in each.replicas} == set(urls):
            return each
    raise AssertionError(f"it has ended before it found {urls}")


def test_the_first_list_is_complete_and_can_be_used(case: Case) -> None:
    async def check() -> None:
        case.set_urls(TWO)
        async with watching(case.make()) as news:
            first = await anext(news)
            assert isinstance(first, Found)
            check_replicas(first.replicas)
            assert {replica.url for replica in first.replicas} == set(TWO)
            assert first.reason

    run(check())


def test_each_list_replaces_the_one_before(case: Case) -> None:
    async def check() -> None:
        case.set_urls(TWO)
        async with watching(case.make()) as news:
            await until(news, TWO)
            for urls in ((*TWO, "http://10.0.0.3:8000"), TWO[:1], ("http://10.0.0.9:8000",)):
                case.set_urls(urls)
                await until(news, urls)

    run(check())


def test_what_cannot_be_told_is_said_and_is_no_empty_list(case: Case) -> None:
    if case.break_it is None:
        pytest.skip("it can always tell")
    broken = case.break_it

    async def check() -> None:
        case.set_urls(TWO)
        async with watching(case.make()) as news:
            await until(news, TWO)
            broken()
            async for each in news:
                if isinstance(each, Failed):
                    assert each.reason
                    break
                assert {replica.url for replica in each.replicas} == set(TWO)
            case.set_urls(TWO[:1])
            await until(news, TWO[:1])

    run(check())


def test_it_can_be_closed_at_any_time(case: Case) -> None:
    async def check() -> None:
        case.set_urls(TWO)
        async with watching(case.make()) as news:
            await until(news, TWO)
            waiting = asyncio.ensure_future(anext(news))
            await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await waiting
        assert asyncio.all_tasks() == {asyncio.current_task()}, "it has left a task behind"

    run(check())
