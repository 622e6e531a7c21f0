"""``balancer/dumps.py``: one dump at a time, and no client keeps the others waiting for long."""

import asyncio
import contextlib

import pytest

from balancer import dumps as dumps_module
from balancer.dumps import Dumps
from balancer.errors import Conflict
from tests.support.waiting import run


def test_a_turn_ends_with_the_dump_or_with_the_client() -> None:
    async def check() -> None:
        dumps = Dumps()
        for _ in range(2):
            assert [line async for line in dumps.paced(iter([b"a", b"b"]))] == [b"a", b"b"]
        async with contextlib.aclosing(dumps.paced(iter([b"a", b"b"]))) as left:
            assert await anext(left) == b"a"
        assert await anext(dumps.paced(iter([b"c"]))) == b"c"

    run(check())


def test_who_waits_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps_module, "WAIT_SECONDS", 0.01)

    async def check() -> None:
        dumps = Dumps()
        async with contextlib.aclosing(dumps.paced(iter([b"a", b"b"]))) as first:
            await anext(first)
            with pytest.raises(Conflict, match="a dump is under way"):
                await anext(dumps.paced(iter([b"c"])))
            assert await anext(first) == b"b"

    run(check())


def test_who_reads_too_slowly_loses_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps_module, "GRACE_SECONDS", 0.01)

    async def check() -> None:
        dumps = Dumps()
        slow = dumps.paced(iter([b"a", b"b"]))
        assert await anext(slow) == b"a"
        await asyncio.sleep(0.05)
        with pytest.raises(ConnectionResetError, match="too slowly"):
            await anext(slow)
        assert await anext(dumps.paced(iter([b"c"]))) == b"c"

    run(check())
