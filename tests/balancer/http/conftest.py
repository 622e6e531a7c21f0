"""Tests with connections run on both event loops: their transports differ where connections end."""

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "uvloop":
        asyncio.set_event_loop_policy(pytest.importorskip("uvloop").EventLoopPolicy())
    yield request.param
    asyncio.set_event_loop_policy(None)
