"""Tenants before a real vLLM 0.32.0 engine: what one has sent is never found by another, and always by itself.

Run by ``scripts/test-real tests/real/test_tenants_real.py``; about two minutes, of which the engine takes one to start. "Never"
alone would also hold for an engine that caches nothing, so each case is a pair.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from balancer.isolation import Salts
from balancer.openai import read_answer
from indexer.events import BlockStored
from indexer.wire import decode
from tests.real.engines import BLOCK_SIZE, MODEL_NAME, RealEngine, free_ports, running_engine
from tests.real.gateway import Publications
from tests.support.gateways import Gateway, gateway, post, split
from tests.support.waiting import eventually, run

pytestmark = pytest.mark.real

KEYS = {tenant: f"sk-of-tenant-{tenant}-0000" for tenant in ("a", "b", "friend")}
SECRET = "0123456789abcdef"
LENGTH = 5 * BLOCK_SIZE


def text(word: str) -> str:
    return f"{word} " * LENGTH


def ids(first: int) -> list[int]:
    return [first + at % 50 for at in range(LENGTH)]


DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ids": ("/v1/completions", {"prompt": ids(100), "max_tokens": 1}),
    "text": ("/v1/completions", {"prompt": text("red"), "max_tokens": 1}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": text("green")}], "max_tokens": 1}),
    "responses": ("/v1/responses", {"input": text("blue"), "max_output_tokens": 1, "store": False}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": text("white")}], "max_tokens": 1}),
    "generate": ("/inference/v1/generate", {"token_ids": ids(200), "sampling_params": {"max_tokens": 1}}),
    "batch": (
        "/v1/chat/completions/batch",
        {"messages": [[{"role": "user", "content": text("black")}]], "max_tokens": 1},
    ),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[RealEngine]:
    with running_engine(*free_ports()) as engine:
        yield engine


def settings(folder: Path) -> dict[str, Any]:
    keys, secret = folder / "keys.toml", folder / "secret"
    keys.write_text("".join(f'[[keys]]\nkey = "{key}"\ntenant = "{tenant}"\n' for tenant, key in KEYS.items()))
    secret.write_text(SECRET)
    return {
        "auth": {"keys_file": str(keys)},
        "tenants": {"isolation": True, "secret_file": str(secret), "groups": {"friends": ["a", "friend"]}},
    }


class Fleet:
    """The gateway before one engine, and what that has published."""

    def __init__(self, front: Gateway, engine: RealEngine) -> None:
        self._front = front
        self._published = Publications(engine.replay)

    async def cached(self, tenant: str, path: str, fields: dict[str, Any]) -> int:
        """Cached tokens as the engine counts them; where kvlb has promised a number, it is that one."""
        await asyncio.to_thread(self._published.catch_up)
        await eventually(self._is_settled, 20)
        body = json.dumps({"model": MODEL_NAME, **fields}).encode()
        headers = [f"Authorization: Bearer {KEYS[tenant]}", "Content-Type: application/json"]
        status, told, answer = split(await self._front.exchange(post(path, body, *headers)))
        assert status.startswith("HTTP/1.1 200"), answer
        found = read_answer(answer).cached_tokens or 0
        promised = {name.lower(): value for name, value in told}
        if promised["x-kvlb-predicted"] == "exact":
            assert int(promised["x-kvlb-cached-tokens"]) == found
        return found

    def _is_settled(self) -> bool:
        (status,) = self._front.service.publishers().values()
        (live,) = self._front.service.router.fleet
        copies = self._front.service.router.caches.index.gpu.copies(live.replica.id)
        return status.next_sequence == self._published.next_sequence and copies == self._published.held.total()


@asynccontextmanager
async def fleet(engine: RealEngine, folder: Path) -> AsyncIterator[Fleet]:
    async with gateway([engine.url], **settings(folder)) as front:
        await eventually(lambda: any(each.is_connected for each in front.service.publishers().values()), 20)
        yield Fleet(front, engine)


def test_two_tenants_never_share_a_block_and_each_hits_its_own(engine: RealEngine, tmp_path: Path) -> None:
    found: dict[tuple[str, str], list[int]] = {}

    async def check() -> None:
        async with fleet(engine, tmp_path) as one:
            for name, (path, fields) in DIALECTS.items():
                for tenant in ("a", "a", "b", "b", "friend"):
                    found.setdefault((name, tenant), []).append(await one.cached(tenant, path, fields))

    run(check(), 300)
    for name in DIALECTS:
        first, again = found[name, "a"]
        others, others_again = found[name, "b"]
        (friends,) = found[name, "friend"]
        assert (first, others) == (0, 0), name
        assert again == others_again == friends, name
        assert again >= 4 * BLOCK_SIZE or name == "batch", name


def test_a_stolen_salt_opens_nothing_and_a_clients_own_divides_its_cache(engine: RealEngine, tmp_path: Path) -> None:
    path, prompt = "/v1/completions", {"prompt": ids(300), "max_tokens": 1}

    async def check() -> None:
        async with fleet(engine, tmp_path) as one:
            assert await one.cached("a", path, prompt) == 0
            stolen = Salts(SECRET.encode(), {"friends": ("a",)}).salt("a")
            assert await one.cached("b", path, {**prompt, "cache_salt": stolen}) == 0
            assert await one.cached("a", path, {**prompt, "cache_salt": "mine"}) == 0
            assert await one.cached("a", path, {**prompt, "cache_salt": "mine"}) > 0
            assert await one.cached("a", path, prompt) > 0

    run(check(), 120)


def test_every_block_that_begins_a_prompt_has_a_salt_and_no_two_tenants_the_same(
    engine: RealEngine, tmp_path: Path
) -> None:
    path, prompt = "/v1/completions", {"prompt": ids(400), "max_tokens": 1}
    payloads: list[bytes] = []

    class Recorded(Publications):
        def _apply(self, payload: bytes) -> None:
            payloads.append(payload)

    published = Recorded(engine.replay)
    published.catch_up()
    payloads.clear()

    async def check() -> None:
        async with fleet(engine, tmp_path) as one:
            for tenant in KEYS:
                await one.cached(tenant, path, prompt)

    run(check(), 120)
    published.catch_up()
    stored = [event for payload in payloads for event in decode(payload).events if isinstance(event, BlockStored)]
    first = [msgspec.msgpack.decode(event.extra_keys) for event in stored if event.parent_block_hash is None]
    made = Salts(SECRET.encode(), {"friends": ("a", "friend")})
    assert [keys[0] for keys in first] == [[made.salt("a")], [made.salt("b")]]
    hashes = [key for event in stored for key in event.block_hashes]
    assert len(set(hashes)) == 2 * (LENGTH // BLOCK_SIZE)
