"""Prefill and decode on two real vLLM engines, with each connector that runs on a CPU: same words, nothing twice."""

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from balancer.gateway.legs import Legs
from indexer.index import ReplicaId
from tests.real.engines import MODEL_NAME, RealEngine
from tests.real.pairs import (
    COMPLETIONS,
    PROMPT_TOKENS,
    SETUPS,
    Two,
    acquaint,
    ask,
    body,
    computed,
    fetched,
    pairs,
    prompt,
    said,
    settled,
)
from tests.support.gateways import Gateway
from tests.support.waiting import eventually, run

pytestmark = pytest.mark.real


@pytest.fixture(
    scope="module",
    params=["example", *(pytest.param(each, marks=pytest.mark.long) for each in SETUPS if each != "example")],
)
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with pairs(SETUPS[request.param], tmp_path_factory.mktemp(request.param), 1) as (found,):
        yield found


def test_the_prompt_is_computed_once_and_fetched_whole(two: Two) -> None:
    async def check() -> None:
        async with two.front() as (front, client):
            for seed, tokens in ((1, PROMPT_TOKENS), (2, PROMPT_TOKENS), (3, 250)):
                ids = prompt(seed, tokens)
                before = [computed(two.prefill), computed(two.decode), fetched(two.decode)]
                headers, answer = await ask(front, client, body(ids))
                assert headers["x-kvlb-prefill"] == two.prefill.url[7:]
                assert headers["x-kvlb-replica"] == two.decode.url[7:]
                grown = [computed(two.prefill), computed(two.decode), fetched(two.decode)]
                by_prefill, by_decode, moved = (now - then for now, then in zip(grown, before, strict=True))
                assert by_prefill == tokens
                assert moved == two.setup.fetched(tokens)
                assert by_decode <= tokens - moved + 1
                assert answer["usage"]["prompt_tokens"] == tokens
                assert answer["usage"]["completion_tokens"] == 8
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "what the prefill had found"
                assert answer["kv_transfer_params"] is None
                alone = await asyncio.to_thread(two.prefill.post, COMPLETIONS, body(ids))
                words, logprobs = said(answer)
                assert words == said(alone)[0]
                assert logprobs == pytest.approx(said(alone)[1], abs=1e-4)
            misses = [value for _, value in await front.samples("kvlb_disaggregation_silent_misses_total")]
            assert sum(misses) == 0
            assert sum(value for _, value in await front.samples("kvlb_disaggregation_alone_total")) == 0
        await settled(two.prefill, two.decode)

    run(check(), 600)


def test_a_chat_is_streamed_as_one_engine_would(two: Two) -> None:
    async def check() -> None:
        words = " ".join(random.Random(3).choices(["river", "stone", "cloud", "tree"], k=125))
        asked = {
            "model": MODEL_NAME,
            "messages": [{"role": "user", "content": words}],
            "max_completion_tokens": 12,
            "min_tokens": 12,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with two.front() as (front, client):
            before = fetched(two.decode)
            async with client.post(front.url + "/v1/chat/completions", json=asked) as response:
                text = await response.text()
                assert response.status == 200, text
            assert fetched(two.decode) > before
            events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
            alone: Any = await asyncio.to_thread(
                two.prefill.post, "/v1/chat/completions", {**asked, "stream": False, "stream_options": None}
            )
            spoken = "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])
            assert spoken == alone["choices"][0]["message"]["content"]
            assert events[-1]["usage"]["completion_tokens"] == 12
            assert events[-1]["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
        await settled(two.prefill, two.decode)

    run(check(), 600)


def test_clients_that_leave_at_any_time_leave_nothing_in_either_engine(two: Two) -> None:
    async def check() -> None:
        async with two.front() as (front, client):
            for at, seconds in enumerate((0.0, 0.05, 0.15, 0.3, 0.6, 1.0)):
                asked = body(prompt(100 + at, 1500), max_tokens=400, stream=True)
                request = asyncio.ensure_future(client.post(front.url + COMPLETIONS, json=asked))
                await asyncio.sleep(seconds)
                request.cancel()
                await asyncio.gather(request, return_exceptions=True)
            await eventually(front.is_idle, 30)
            await settled(two.prefill, two.decode)
            ids = prompt(150)
            _, answer = await ask(front, client, body(ids))
            alone = await asyncio.to_thread(two.prefill.post, COMPLETIONS, body(ids))
            assert said(answer)[0] == said(alone)[0]

    run(check(), 600)


@contextlib.contextmanager
def frozen(engine: RealEngine) -> Iterator[None]:
    """It stands still, all its processes."""
    os.killpg(engine.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(engine.process.pid, signal.SIGCONT)


def test_an_engine_that_stands_still_costs_an_answer_at_most(two: Two) -> None:
    async def check() -> None:
        async with two.front(prefill_seconds=4.0) as (front, client):
            ids = prompt(250)
            with frozen(two.prefill):
                _, answer = await ask(front, client, body(ids))
            assert said(answer)[0] == said(await asyncio.to_thread(two.prefill.post, COMPLETIONS, body(ids)))[0]
        async with two.front(first_byte=6.0) as (front, client):
            with frozen(two.decode):
                async with client.post(front.url + COMPLETIONS, json=body(prompt(251))) as response:
                    told = await response.json()
                    assert response.status in {502, 504}, told
            await eventually(front.is_idle, 30)
            await settled(two.prefill, two.decode)
        async with two.front() as (front, client):
            before = fetched(two.decode)
            await ask(front, client, body(prompt(252)))
            assert fetched(two.decode) - before == two.setup.fetched(PROMPT_TOKENS), "all is as it was"
        await settled(two.prefill, two.decode)

    run(check(), 600)


def test_a_store_that_has_lost_all_costs_time_and_is_told(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the legs, where something lies there."""
    decode_leg = Legs._decode_leg

    def loses(*args: Any) -> Any:
        two.lose_store()
        monkeypatch.setattr(Legs, "_decode_leg", decode_leg)
        return decode_leg(*args)

    async def misses(front: Gateway) -> dict[str, float]:
        found = await front.samples("kvlb_disaggregation_silent_misses_total")
        return {labels["cause"]: value for labels, value in found if value}

    async def check() -> None:
        monkeypatch.setattr(Legs, "_decode_leg", loses)
        ids = prompt(260)
        async with two.front() as (front, client):
            _, answer = await ask(front, client, body(ids))
            assert said(answer)[0] == said(await asyncio.to_thread(two.prefill.post, COMPLETIONS, body(ids)))[0]
            assert await misses(front) == {"whole": 1}
            await asyncio.to_thread(two.regain_store)
            before = fetched(two.decode)
            await ask(front, client, body(prompt(261)))
            assert fetched(two.decode) - before == two.setup.fetched(PROMPT_TOKENS), "all is as it was"
        await settled(two.prefill, two.decode)

    if not two.has_store:
        pytest.skip("nothing lies between its engines")
    run(check(), 600)


def test_a_prefill_engine_that_dies_between_the_legs_costs_no_answer(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last tests of this pair: one engine less after each."""
    decode_leg = Legs._decode_leg

    def kills(*args: Any) -> Any:
        if two.prefill.process.poll() is None:
            two.prefill.kill()
        return decode_leg(*args)

    async def check() -> None:
        ids = prompt(200)
        async with two.front() as (front, client):
            expected = await asyncio.to_thread(two.prefill.post, COMPLETIONS, body(ids, max_tokens=8))
            monkeypatch.setattr(Legs, "_decode_leg", kills)
            if two.setup.name == "mooncake":  # its legs go together
                two.prefill.kill()
            headers, answer = await ask(front, client, body(ids))
            assert headers["x-kvlb-replica"] == two.decode.url[7:]
            assert said(answer)[0] == said(expected)[0]
            _, answer = await ask(front, client, body(prompt(201)))
            assert len(said(answer)[0]) == 8
            await eventually(front.is_idle, 30)
            monkeypatch.setattr(Legs, "_decode_leg", decode_leg)
            await asyncio.to_thread(two.restart_prefill)
            await eventually(lambda: front.service.router.fleet.get(ReplicaId(two.prefill.url[7:])), 30)
            await eventually(lambda: not any(w.problem for w in front.service.watchers.values()), 30)
            await acquaint(front, client, [two])
            before = fetched(two.decode)
            headers, _ = await ask(front, client, body(prompt(202)))
            assert headers["x-kvlb-prefill"] == two.prefill.url[7:]
            assert fetched(two.decode) - before == two.setup.fetched(PROMPT_TOKENS)

    run(check(), 900)


def test_without_a_decode_engine_there_is_a_clear_error(two: Two) -> None:
    async def check() -> None:
        async with two.front() as (front, client):
            two.decode.kill()
            for _ in range(2):
                async with client.post(front.url + COMPLETIONS, json=body(prompt(300))) as response:
                    told = await response.json()
                    assert response.status in {502, 503}, told
                    assert told["error"]["message"]
            await eventually(front.is_idle, 30)

    run(check(), 600)
