"""The suite of ``tests/conformance/connectors.py`` over those of kvlb itself that look or ask what a store holds."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from aiohttp import web

from hashing.chain import Chain
from hashing.example import ExampleChain, ExampleKeys
from tests.balancer.connectors.test_servers import HEALTH, serving, told
from tests.conformance import connectors as suite
from tests.conformance.connectors import Case, Stage
from tests.support.routing import RECIPE

test_loaded = suite.test_what_is_put_there_can_be_loaded_and_what_is_taken_cannot
test_down = suite.test_a_store_that_is_gone_is_down_and_counts_for_nothing
test_value = suite.test_a_connector_is_a_frozen_value_that_says_what_requests_carry


def digests(tokens: Sequence[int]) -> list[str]:
    return [digest.hex() for digest in Chain(RECIPE, tokens).digests(len(tokens) // 4)]


@contextlib.asynccontextmanager
async def files() -> AsyncIterator[Stage]:
    root = Path(tempfile.mkdtemp())
    (root / "tiny_1").mkdir()
    (root / "tiny_1" / "config.json").write_text(json.dumps({"model_name": "/models/tiny", "blocks_per_file": 1}))

    def put(tokens: Sequence[int]) -> None:
        for name in digests(tokens):
            file = root / "tiny_1_r0" / name[:3] / f"{name[3:5]}_g0" / f"{name}.bin"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"kv")

    def take() -> None:
        shutil.rmtree(root / "tiny_1_r0")

    try:
        yield Stage({"path": str(root), "interval_seconds": 0.01}, put, take, lambda: shutil.rmtree(root))
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.asynccontextmanager
async def folders() -> AsyncIterator[Stage]:
    root = Path(tempfile.mkdtemp())

    def put(tokens: Sequence[int]) -> None:
        blocks = (len(tokens) - 1) // 4
        (root / f"{ExampleChain(ExampleKeys(4), tokens).keys(blocks)[blocks - 1]:016x}{0:016x}").mkdir()

    def take() -> None:
        for folder in root.iterdir():
            folder.rmdir()

    try:
        yield Stage(
            {"path": str(root), "block_size": 4, "interval_seconds": 0.01}, put, take, lambda: shutil.rmtree(root)
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.asynccontextmanager
async def mooncake() -> AsyncIterator[Stage]:
    held: set[str] = set()
    is_there = [True]

    async def query(request: web.Request) -> web.Response:
        if not is_there[0]:
            raise web.HTTPServiceUnavailable
        data = {key: {"ok": key in held} for key in request.query["keys"].split(",")}
        return web.json_response({"success": True, "data": data})

    def put(tokens: Sequence[int]) -> None:
        held.update(f"tiny@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{name}" for name in digests(tokens))

    async with serving(health=told(HEALTH), batch_query_keys=query) as url:
        yield Stage({"url": url, "interval_seconds": 60}, put, held.clear, lambda: is_there.__setitem__(0, False))


@contextlib.asynccontextmanager
async def controller() -> AsyncIterator[Stage]:
    held: list[list[int]] = []
    is_there = [True]

    async def lookup(request: web.Request) -> web.Response:
        if not is_there[0]:
            raise web.HTTPInternalServerError
        tokens = (await request.json())["tokens"]
        count = max((len(each) // 16 * 16 for each in held if each == tokens), default=0)
        layout = {"one": ["LocalCPUBackend", count]} if count else {}
        return web.json_response({"event_id": "Lookup1", "layout_info": layout})

    async with serving(lookup=lookup) as url:
        yield Stage(
            {"controller": url, "chunk_size": 16},
            lambda tokens: held.append(list(tokens)),
            held.clear,
            lambda: is_there.__setitem__(0, False),
        )


@pytest.fixture(
    params=[
        Case("files", files, 136),
        Case("example", folders, 136),
        Case("mooncake", mooncake, 136),
        Case("lmcache", controller, 128),
    ],
    ids=lambda case: str(case.name),
)
def case(request: pytest.FixtureRequest) -> Case:
    made: Case = request.param
    return made
