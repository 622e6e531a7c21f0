"""Conversations over real processes: two gateways, a brain and three engines keep each where it is."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.support.several import MODEL, PATH, Kvlb, engines, kvlb
from tests.support.waiting import run


async def home(front: Kvlb, chat: int, salt: int) -> str:
    """Where a request of this conversation is sent: no two have a block in common, and each has a connection of its own."""
    body = {"model": MODEL, "prompt": [1_000 + chat, 5_000 + salt, *range(300, 340)], "max_tokens": 1}
    async with (
        aiohttp.ClientSession() as client,
        client.post(front.url + PATH, json=body, headers={"X-Session-Id": f"chat-{chat}"}) as response,
    ):
        assert response.status == 200
        return response.headers["x-kvlb-replica"]


@pytest.mark.parametrize("policy", ['name = "session_sticky"', 'name = "consistent_hash"\nby = "session"'])
def test_a_conversation_stays_where_it_is_whichever_gateway_takes_it(policy: str, tmp_path: Path) -> None:
    async def check(front: Kvlb) -> None:
        turns = [await asyncio.gather(*[home(front, chat, turn) for chat in range(16)]) for turn in range(4)]
        assert turns[0] == turns[1] == turns[2] == turns[3]
        assert len(set(turns[0])) > 1

    with engines(3, "--speed", "50") as urls, kvlb(urls, tmp_path, more=f"[policy]\n{policy}\n") as front:
        run(check(front))
