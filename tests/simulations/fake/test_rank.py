"""A rank in time: tokens as they come, aborts, pauses and resets in between."""

import asyncio
import json
from typing import Any

import pytest

from simulations.latency import LatencyModel
from tests.simulations.fake.samples import IDS, cached_tokens, complete, config, post, run, served, until


def test_tokens_are_streamed_step_by_step() -> None:
    async def test() -> None:
        async with served() as (engine, session):
            engine.hold()
            body = {"prompt": IDS, "max_tokens": 3, "stream": True, "return_token_ids": True}
            async with session.post("/v1/completions", json=body) as response:
                chunks = response.content
                for number in range(3):
                    assert engine.step()
                    event = json.loads((await chunks.readuntil(b"\n\n")).removeprefix(b"data: "))
                    choice = event["choices"][0]
                    assert len(choice["token_ids"]) == 1
                    assert choice["finish_reason"] == (None, None, "length")[number]
                assert await chunks.read() == b"data: [DONE]\n\n"
            # vLLM takes one more step to tell its workers that the last request has ended.
            assert engine.step()
            assert not engine.step()

    run(test)


def test_prompts_of_one_request_are_computed_side_by_side() -> None:
    async def test() -> None:
        async with served() as (engine, session):
            engine.hold()
            asked = asyncio.create_task(complete(session, [IDS, IDS[::-1]], n=2, max_tokens=1))
            await until(lambda: engine.rank().engine.num_waiting == 4)
            engine.step()
            answer = await asked
            assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
            texts = [choice["text"] for choice in answer["choices"]]
            assert len(set(texts)) == 4
            # The second sample of a prompt finds what the first one stored in the same step.
            assert cached_tokens(answer) == 64
            assert answer["usage"]["prompt_tokens"] == 140

    run(test)


def test_a_step_takes_as_long_as_the_latency_model_says() -> None:
    latency = LatencyModel.from_rates(prefill_tokens_per_second=1000, decode_seconds_per_token=0.01)

    async def test() -> None:
        async with served(config(latency=latency, speed=2)) as (_, session):
            started = asyncio.get_running_loop().time()
            await complete(session, list(range(100)), max_tokens=11)
            # 100 tokens at 1000/s, then 10 steps of 10 ms, at twice the speed; never earlier, and later by what the test costs.
            assert asyncio.get_running_loop().time() - started >= 0.1

    run(test)


def test_a_client_that_leaves_takes_its_request_along() -> None:
    async def test() -> None:
        async with served() as (engine, session):
            engine.hold()
            asked = asyncio.create_task(complete(session))
            await until(lambda: engine.rank().engine.num_waiting == 1)
            asked.cancel()
            await until(lambda: engine.rank().engine.is_idle)

    run(test)


def test_a_streaming_client_that_leaves_takes_its_request_along() -> None:
    async def test() -> None:
        async with served() as (engine, session):
            engine.hold()
            body = {"prompt": IDS, "max_tokens": 100, "stream": True}
            async with session.post("/v1/completions", json=body) as response:
                engine.step()
                await response.content.readuntil(b"\n\n")
            await until(lambda: engine.rank().engine.is_idle)

    run(test)


def test_aborted_requests_are_answered_with_what_they_have() -> None:
    async def test() -> None:
        async with served() as (engine, session):
            engine.hold()
            headers = {"X-Request-Id": "one"}
            asked = asyncio.create_task(post(session, "/v1/completions", {"prompt": IDS, "max_tokens": 9}, **headers))
            await until(lambda: engine.rank().engine.num_waiting == 1)
            engine.step()
            await post(session, "/inference/v1/abort_requests", {"request_ids": ["one", "cmpl-one"]})
            assert not asked.done(), "the bare id is not the engine's"
            await post(session, "/inference/v1/abort_requests", {"request_ids": ["cmpl-one-0"]})
            status, answer = await asked
            assert status == 200
            assert answer["id"] == "cmpl-one"
            assert answer["choices"][0]["finish_reason"] == "abort"
            assert answer["usage"]["completion_tokens"] == 1

    run(test)


def test_a_paused_engine_takes_requests_and_answers_them_later() -> None:
    async def test() -> None:
        async with served() as (engine, session):
            await complete(session)
            await post(session, "/pause?mode=wait")
            assert not engine.cached(), "pausing clears the cache"
            asked = asyncio.create_task(complete(session))
            await until(lambda: engine.rank().engine.num_waiting == 1)
            await post(session, "/resume")
            assert cached_tokens(await asked) == 0
            await post(session, "/pause?mode=keep")
            assert engine.cached()
            await post(session, "/resume")

    run(test)


def test_a_cache_in_use_is_reset_only_by_force() -> None:
    async def test() -> None:
        async with served() as (engine, session):
            engine.hold()
            asked = asyncio.create_task(complete(session))
            await until(lambda: engine.rank().engine.num_waiting == 1)
            engine.step()
            assert await post(session, "/reset_prefix_cache") == (200, {"success": False})
            forced = await post(session, "/reset_prefix_cache?reset_running_requests=true")
            assert forced == (200, {"success": True})
            assert not engine.cached()
            engine.release()
            assert cached_tokens(await asked) == 0

    run(test)


def test_a_sleeping_engine_has_ended_its_requests_and_lost_its_cache() -> None:
    async def test() -> None:
        async with served() as (engine, session):
            await complete(session)
            engine.hold()
            asked = asyncio.create_task(complete(session, IDS[::-1]))
            await until(lambda: engine.rank().engine.num_waiting == 1)
            assert await post(session, "/sleep?level=1") == (200, {"status": "sleeping", "level": 1})
            assert (await asked)["choices"][0]["finish_reason"] == "abort"
            assert not engine.cached()
            assert await post(session, "/wake_up") == (200, {"status": "awake", "tags": None})
            assert cached_tokens(await complete(session)) == 0
            assert (await post(session, "/sleep?level=7"))[0] == 400
            assert (await post(session, "/pause?mode=nap"))[0] == 400

    run(test)


@pytest.mark.parametrize("body", [None, {}, {"request_ids": ["cmpl-one-0"]}])
def test_the_developers_way_to_abort_ends_all_or_some(body: Any) -> None:
    async def test() -> None:
        async with served() as (engine, session):
            engine.hold()
            headers = {"X-Request-Id": "one"}
            asked = asyncio.create_task(post(session, "/v1/completions", {"prompt": IDS}, **headers))
            await until(lambda: engine.rank().engine.num_waiting == 1)
            assert await post(session, "/abort_requests", body) == (200, {"status": "aborted", "aborted": 1})
            _, answer = await asked
            assert answer["choices"][0]["finish_reason"] == "abort"

    run(test)
