"""Shared stores behind a running gateway: a directory, a publisher of the store's own, and a master that is asked."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from aiohttp import web

from hashing.chain import Chain
from hashing.example import ExampleChain, ExampleKeys
from hashing.recipes import Recipe
from tests.balancer.connectors.test_servers import HEALTH, serving, told
from tests.support.engines import Fleet, config, fleet
from tests.support.gateways import SPLIT, get, split
from tests.support.waiting import eventually, run

IDS = list(range(300, 366))  # four blocks of 16, and two tokens more
CHAIN = Chain(Recipe(block_size=16), IDS)
KEYS = list(CHAIN.keys(4))


async def loadable(stage: Fleet, ids: list[int] = IDS) -> list[dict[str, int]]:
    """Send the prompt; what each candidate could have loaded when it was routed."""
    await stage.complete(ids)
    _, _, body = split(await stage.front.exchange(get("/debug/decisions?limit=1")))
    (decision,) = json.loads(body)["decisions"]
    return [each.get("loadable", {}) for each in decision["candidates"]]


async def status(stage: Fleet) -> dict[str, Any]:
    _, _, body = split(await stage.front.exchange(get("/kvlb/status")))
    (found,) = json.loads(body)["stores"]
    return dict(found)


@pytest.mark.parametrize("is_split", [False, True])
def test_what_lies_in_a_directory_is_known_of_every_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_split: bool
) -> None:
    if is_split:
        monkeypatch.setenv(SPLIT, "1")
    folder = tmp_path / f"{ExampleChain(ExampleKeys(16), IDS).keys(4)[3]:016x}{0:016x}"
    folder.mkdir()
    shared = {"name": "dir", "connector": "example", "path": str(tmp_path), "block_size": 16, "interval_seconds": 0.05}

    async def check() -> None:
        async with fleet(config(), config(), stores=[shared]) as stage:
            stores = stage.router.caches.index.stores
            await eventually(lambda: stores.blocks("dir") == 1)
            assert await loadable(stage) == [{"store:dir": 64}] * 2
            assert await loadable(stage, [*IDS[:-2], *range(20)]) == [{}, {}]
            folder.rmdir()
            await eventually(lambda: stores.blocks("dir") == 0)
            assert await loadable(stage, [*IDS, 7]) == [{}, {}]

    run(check())


def test_a_store_with_a_publisher_of_its_own_is_no_replica() -> None:
    async def check() -> None:
        with zmq.asyncio.Context() as context, context.socket(zmq.XPUB) as publisher:
            publisher.linger = 0
            port = publisher.bind_to_random_port("tcp://127.0.0.1")
            shared = {"name": "pool", "events": f"tcp://127.0.0.1:{port}"}
            async with fleet(config(), config(), stores=[shared]) as stage:
                assert await asyncio.wait_for(publisher.recv(), 10) == b"\x01"
                event = {
                    "type": "BlockStored",
                    "block_hashes": KEYS[:3],
                    "parent_block_hash": None,
                    "token_ids": IDS[:48],
                    "block_size": 16,
                    "lora_id": None,
                    "medium": "cpu",
                    "lora_name": None,
                }
                payload = msgspec.msgpack.encode([0.0, [event], 0])
                await publisher.send_multipart([b"", (0).to_bytes(8, "big"), payload])
                await eventually(lambda: stage.router.caches.index.stores.blocks("pool") == 3)
                assert await loadable(stage) == [{"store:pool": 48}] * 2
                assert len(stage.router.fleet) == 2
                assert stage.front.service.publishers()["store:pool"].counters["batches"] == 1  # type: ignore[index]
                told_of = await status(stage)
                assert (told_of["up"], told_of["blocks"], len(told_of["attached"])) == (True, 3, 2)

    run(check())


def test_a_master_is_asked_before_a_request_is_routed() -> None:
    asked: list[str] = []

    async def query(request: web.Request) -> web.Response:
        asked.extend(request.query["keys"].split(","))
        held = {digest.hex() for digest in CHAIN.digests(2)}
        data = {key: {"ok": key.rpartition("@")[2] in held} for key in request.query["keys"].split(",")}
        return web.json_response({"success": True, "data": data})

    async def check() -> None:
        async with serving(health=told(HEALTH), batch_query_keys=query) as url:
            shared = {"name": "moon", "connector": "mooncake", "url": url, "timeout_ms": 5_000, "model_name": "m"}
            async with fleet(config(), config(), stores=[shared]) as stage:
                assert await loadable(stage) == [{"store:moon": 32}] * 2
                assert len(asked) == 4
                assert asked[0] == f"m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{CHAIN.digest(0).hex()}"
                await loadable(stage)
                assert len(asked) == 4, "the answer is remembered"

    run(check())


def test_a_master_that_hangs_costs_a_few_requests_a_little() -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(1)
        return web.Response()

    async def check() -> None:
        async with serving(health=told(HEALTH), batch_query_keys=hang) as url:
            shared = {"name": "moon", "connector": "mooncake", "url": url, "timeout_ms": 20, "pause_seconds": 60}
            async with fleet(config(), config(), stores=[{**shared, "interval_seconds": 60}]) as stage:
                for at in range(3):
                    assert await loadable(stage, [at, *IDS]) == [{}, {}]
                told_of = await status(stage)
                assert told_of["problem"] == "it has not answered within 20 ms"
                assert told_of["counts"]["lookup_late"] == 3
                await loadable(stage, [9, *IDS])
                assert (await status(stage))["counts"]["lookup_late"] == 3, "it is left alone"

    run(check())
