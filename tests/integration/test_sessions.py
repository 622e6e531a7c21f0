"""Conversations and policies over real processes: two gateways, a brain and three engines."""

import asyncio
import json
import re
import urllib.request
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from tests.support.processes import SECONDS, finished
from tests.support.several import MODEL, PATH, Kvlb, engines, kvlb, until
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


TWO = """
[policy]
name = "round_robin"
[policy.ab]
name = "session_sticky"
share = 0.5
[policy.shadow]
name = "cache_aware"
"""


def decisions(front: Kvlb) -> list[dict[str, object]]:
    with urllib.request.urlopen(f"{front.url}/debug/decisions", timeout=SECONDS) as response:
        return json.loads(response.read())["decisions"]  # type: ignore[no-any-return]


def has_counted(front: Kvlb, policy: str, count: int) -> bool:
    return front.samples("kvlb_policy_requests_total", policy=policy) == count


def test_two_policies_and_one_on_paper_are_told_apart_by_both_gateways(tmp_path: Path) -> None:
    chats, turns = 24, 3

    async def check(front: Kvlb) -> None:
        for turn in range(turns):
            await asyncio.gather(*[home(front, chat, turn) for chat in range(chats)])

    with engines(3, "--speed", "50") as urls, kvlb(urls, tmp_path, more=TWO) as front:
        run(check(front))
        made = decisions(front)
        of = {name: sum(each["policy"] == name for each in made) for name in ("round_robin", "session_sticky")}
        assert sum(of.values()) == len(made) == chats * turns
        assert all(count and not count % turns for count in of.values()), "whole conversations"
        for name, count in of.items():
            until(partial(has_counted, front, name, count))
            assert front.samples("kvlb_policy_time_to_first_token_seconds_count", policy=name) == count
            assert front.samples("kvlb_policy_reported_prompt_tokens_total", policy=name) == 42 * count
            assert front.samples("kvlb_shadow_decisions_total", policy=name, shadow="cache_aware") == count
        (last, *_) = made
        code, lines = finished("explain", "--gateway", front.url, "--request-id", str(last["request_id"]))
        assert (code, lines) == (0, [])


@pytest.mark.parametrize("processes", [1, 2])
def test_settings_of_a_second_policy_that_cannot_be_used_end_the_start(processes: int, tmp_path: Path) -> None:
    config = tmp_path / "kvlb.toml"
    config.write_text(
        f"[server]\nport = 0\nprocesses = {processes}\n[[replicas]]\nurl = 'http://127.0.0.1:9'\n"
        '[policy.ab]\nname = "predicted_ttft"\nprise = 3\n'
    )
    code, lines = finished("serve", "--config", str(config))
    assert code == 2
    assert re.search(r"policy.ab.prise: predicted_ttft has no such setting; did you mean price\?", lines[-1])
