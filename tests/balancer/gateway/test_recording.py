"""``gateway/recording.py``: who asks gets the requests from then on, and the gateway ends although somebody reads."""

import asyncio
import json

import pytest

from balancer.gateway import recording
from tests.support.gateways import Gateway, close, gateway, get, post, split
from tests.support.upstream import Received, upstream
from tests.support.waiting import eventually, run

ANSWER = b'{"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}'
BODY = b'{"model":"m","prompt":[1,2,3]}'


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "WRITE_SECONDS", 0.01)


async def answer(request: Received) -> None:
    request.answer(ANSWER)


async def begin(front: Gateway, query: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await front.send(get(f"/debug/recording{query}"))
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0]
    return reader, writer


async def next_line(reader: asyncio.StreamReader) -> dict[str, object]:
    while True:
        line = await asyncio.wait_for(reader.readline(), 10)
        if line.startswith(b"{"):
            found: dict[str, object] = json.loads(line)
            return found


def test_requests_are_told_from_then_on() -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            one.answer = answer
            await front.exchange(post("/v1/completions", BODY))
            reader, writer = await begin(front)
            await eventually(lambda: len(front.service.recorders) == 1)
            await front.exchange(post("/v1/completions", BODY))
            line = await next_line(reader)
            assert (line["input_length"], line["output_length"], line["cached_tokens"]) == (3, 2, 1)
            assert line["replica"] == one.url.removeprefix("http://")
            assert line["hash_ids"] == []
            await close(writer)
            await eventually(lambda: not front.service.recorders)
            await front.exchange(post("/v1/completions", BODY))

    run(check())


def test_only_so_many_may_record() -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            held = [await begin(front) for _ in range(recording.AT_MOST)]
            await eventually(lambda: len(front.service.recorders) == recording.AT_MOST)
            status, _, body = split(await front.exchange(get("/debug/recording")))
            assert " 409 " in status
            assert b"end one of them" in body
            for _, writer in held:
                await close(writer)
            await eventually(lambda: not front.service.recorders)

    run(check())


@pytest.mark.parametrize("size", ["0", "x", "", "65537", "-1", "%C2%B2", "9" * 5000])
def test_a_block_size_that_is_none_is_refused(size: str) -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            status, _, body = split(await front.exchange(get(f"/debug/recording?block_size={size}")))
            assert " 400 " in status
            assert json.loads(body)["error"]["param"] == "block_size"

    run(check())


def test_the_gateway_ends_and_so_does_the_recording() -> None:
    async def check() -> None:
        async with upstream() as one:
            async with gateway([one.url]) as front:
                reader, writer = await begin(front)
                await eventually(lambda: len(front.service.recorders) == 1)
                began = asyncio.get_running_loop().time()
            await asyncio.wait_for(reader.read(), 10)
            assert asyncio.get_running_loop().time() - began < 8  # and not only after the time for requests under way
            await close(writer)

    run(check())
