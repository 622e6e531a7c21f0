"""Engines behind a running gateway are told what to load of each prompt, by links and weights, and do that."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from balancer.core import Outcome
from hashing.chain import Chain
from hashing.recipes import Recipe
from indexer.index import ReplicaId
from simulations.fake.transfers import _STORES
from simulations.fake_engine import FakeEngine
from tests.support.engines import Fleet, config, fleet
from tests.support.gateways import SPLIT, get, split
from tests.support.waiting import eventually, run

IDS = list(range(300, 366))  # four blocks of 16, and two tokens more
FAST, SLOW = 1000.0, 1e-6
MODELS = [{"name": "m", "bytes_per_token": 100_000.0}]


@contextlib.asynccontextmanager
async def stored(
    gigabits: float, kept: Sequence[int] = IDS, extra: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[Fleet]:
    """Engines before a store in which ``kept`` lies; the store's own publisher has told of it. ``roles`` has one for each."""
    version, roles = more.pop("version", "0.32.0"), more.pop("roles", ["both"])
    name = uuid.uuid4().hex
    _STORES[name] = {tuple(kept[:end]) for end in range(16, len(kept) + 1, 16)}
    with zmq.asyncio.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.linger = 0
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        store = {
            "name": "pool",
            "events": f"tcp://127.0.0.1:{port}",
            "gigabits_per_second": gigabits,
            "latency_ms": 0.0,
        }
        seed = None if version >= "0.30" else "0"
        engine = config(connector="offloading", store=name, vllm_version=version, hash_seed=seed)
        endpoint = {"events": FakeEngine.events, "replay": FakeEngine.replay, "hash_seed": seed, **(extra or {})}
        endpoints = [{**endpoint, "role": role} for role in roles]
        async with fleet(*[engine] * len(roles), replicas=endpoints, stores=[store], models=MODELS, **more) as stage:
            assert await asyncio.wait_for(publisher.recv(), 10) == b"\x01"
            recipe = Recipe.for_version(version, algorithm="sha256", block_size=16, seed=seed)
            keys = list(Chain(recipe, kept).keys(len(kept) // 16))
            event = {
                "type": "BlockStored",
                "block_hashes": keys,
                "parent_block_hash": None,
                "token_ids": list(kept[: len(keys) * 16]),
                "block_size": 16,
                "lora_id": None,
                "medium": "STORAGE",
                "lora_name": None,
            }
            payload = msgspec.msgpack.encode([0.0, [event], 0])
            await publisher.send_multipart([b"", (0).to_bytes(8, "big"), payload])
            await eventually(lambda: stage.router.caches.index.stores.blocks("pool") == len(keys))
            yield stage


async def decision(stage: Fleet) -> dict[str, Any]:
    _, _, body = split(await stage.front.exchange(get("/debug/decisions?limit=1")))
    (found,) = json.loads(body)["decisions"]
    return dict(found)


async def counted(stage: Fleet) -> dict[str, float]:
    """Tokens of the store by result, and hints by field."""
    tokens = {labels["result"]: value for labels, value in await stage.front.samples("kvlb_loadable_tokens_total")}
    return tokens | {labels["field"]: value for labels, value in await stage.front.samples("kvlb_load_hints_total")}


@pytest.mark.parametrize("is_split", [False, True])
def test_over_a_fast_link_the_engine_loads_by_itself_and_is_told_nothing(
    is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_split:
        monkeypatch.setenv(SPLIT, "1")

    async def check() -> None:
        async with stored(FAST) as stage:
            assert await stage.complete(IDS) == (stage.engines[0].url.removeprefix("http://"), 0, 64)
            found = await decision(stage)
            assert found["candidates"][0]["load_tokens"] == 64
            plan = found["plan"]
            assert (plan["hit_tokens"], plan["loads"], plan["computed_tokens"]) == (0, {"store:pool": 64}, 2)
            assert plan["load_seconds"] == pytest.approx(64 * 100_000 / 125e9)
            assert plan["compute_seconds"] > 0
            assert plan["hint"] == {}
            assert await counted(stage) == {"loaded": 64, "missed": 0}

    run(check())


@pytest.mark.parametrize("is_split", [False, True])
def test_over_a_slow_link_it_is_told_to_compute(is_split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_split:
        monkeypatch.setenv(SPLIT, "1")

    async def check() -> None:
        async with stored(SLOW) as stage:
            for at in range(3):  # what is left there three times is still there
                assert (await stage.complete(IDS))[1:] == ((0, 0) if not at else (64, 64))
                if not at:
                    found = await decision(stage)
                await stage.settle()
            assert "load_tokens" not in found["candidates"][0]
            plan = found["plan"]
            assert (plan["loads"], plan["computed_tokens"], plan["hint"]) == ({}, 66, {"kv_load_tiers": []})
            assert await counted(stage) == {"left": 64, "taken": 0, "kv_load_tiers": 3}, "what it holds might be gone"
            assert stage.router.caches.load_audit.dropped == {}

    run(check())


def test_an_older_engine_is_told_which_tiers_to_read() -> None:
    async def check() -> None:
        async with stored(SLOW, version="0.30.0") as stage:
            assert (await stage.complete(IDS))[1:] == (0, 0)
            assert (await decision(stage))["plan"]["hint"] == {"kv_load_tiers": []}

    run(check())


@pytest.mark.parametrize(
    "extra", [{"version": "0.27.0"}, {"kv_connectors": []}, {"kv_connectors": ["OffloadingConnector", "X"]}]
)
def test_an_engine_that_cannot_be_told_loads_over_the_slow_link_and_is_known_to(extra: dict[str, Any]) -> None:
    async def check() -> None:
        async with stored(SLOW, extra=extra, version=extra.get("version", "0.32.0")) as stage:
            assert (await stage.complete(IDS))[1:] == (0, 64)
            plan = (await decision(stage))["plan"]
            assert (plan["loads"], plan["hint"]) == ({"store:pool": 64}, {})
            assert plan["load_seconds"] > 1
            assert await counted(stage) == {"loaded": 64, "missed": 0}

    run(check())


@pytest.mark.parametrize("is_split", [False, True])
def test_a_client_that_may_say_what_to_load_is_not_overruled(is_split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_split:
        monkeypatch.setenv(SPLIT, "1")
    own = {"kv_transfer_params": {"max_load_tokens": 32}}

    async def check() -> None:
        async with stored(SLOW, clients={"transfer_params": "pass"}) as stage:
            assert (await stage.complete(IDS, **own))[1:] == (0, 32)
            assert (await decision(stage))["plan"]["hint"] == {}
            assert await counted(stage) == {}, "nobody knows what it was told"
        async with stored(SLOW, clients={"transfer_params": "pass"}) as stage:
            assert (await stage.complete(IDS, vllm_xargs={"kv_transfer_params": {}}))[1:] == (0, 64)
        async with stored(SLOW) as stage:
            assert (await stage.complete(IDS, **own))[1:] == (0, 0), "what was taken out does not count"

    run(check())


@pytest.mark.parametrize(
    ("gigabits", "loads", "cached"), [(FAST, {"store:pool": 64}, 64), (SLOW, {}, 0)], ids=["fast", "slow"]
)
def test_while_who_holds_it_is_busy_another_one_loads_or_computes_it(
    gigabits: float, loads: dict[str, int], cached: int
) -> None:
    async def check() -> None:
        async with stored(gigabits, roles=["both", "both"]) as stage:
            holder, _, _ = await stage.complete(IDS)
            await stage.settle()
            assert await stage.complete(IDS) == (holder, 64, 64)
            lease = stage.router.adopt(ReplicaId(holder), 1_000_000, time.monotonic())
            assert lease is not None
            other, _, actual = await stage.complete(IDS)
            assert other != holder
            assert actual == cached
            plan = (await decision(stage))["plan"]
            assert (plan["loads"], plan["computed_tokens"]) == (loads, 66 - cached)
            assert plan["hint"] == ({} if cached else {"kv_load_tiers": []})
            stage.router.release(lease, Outcome.CANCELLED, time.monotonic())

    run(check())


def test_an_engine_that_does_not_do_as_it_is_told_is_noticed() -> None:
    async def check() -> None:
        async with stored(SLOW, extra={"version": "0.29.0"}, version="0.27.0") as stage:
            assert (await stage.complete(IDS))[1:] == (0, 64)
            assert await counted(stage) == {"left": 0, "taken": 64, "kv_load_tiers": 1}

    run(check())


@pytest.mark.parametrize("pass_tokens", [False, True])
def test_who_computes_for_others_is_told_beside_what_its_connector_says(
    pass_tokens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a slow link the prompt is computed anew; who answers fetches it from the store all the same."""
    parts = {"name": "multi", "settings": {"of": ["nixl", "shared"]}, "threshold_tokens": 0, "pass_tokens": pass_tokens}
    sent: list[Any] = []

    async def check() -> None:
        async with stored(SLOW, roles=["prefill", "decode"], disaggregation=parts) as stage:
            for each in stage.engines:
                transfers = each.process.transfers
                monkeypatch.setattr(transfers, "begin", _noting(transfers.begin, sent))
            _, body = await stage.post("/v1/completions", {"prompt": IDS, "max_tokens": 2})
            first, second = sent
            assert first["kv_load_tiers"] == []
            assert first["do_remote_decode"] is True
            assert "kv_load_tiers" not in (second or {})
            assert json.loads(body)["usage"]["completion_tokens"] == 2
            assert (await counted(stage))["kv_load_tiers"] == 1

    run(check())


def _noting(begin: Any, sent: list[Any]) -> Any:
    def noting(ask: Any, name: str) -> Any:
        sent.append(ask.transfer)
        return begin(ask, name)

    return noting
