"""What a client of the server finds: ranks, releases and what they lack, keys, limits, figures."""

import asyncio
from collections import Counter

import pytest

from balancer.facts import read_cache_config, read_event_sources
from simulations.fake.config import FakeConfig
from tests.simulations.fake.samples import IDS, complete, config, post, run, served, until


def test_ranks_have_caches_and_publishers_of_their_own() -> None:
    async def test() -> None:
        async with served(config(data_parallel_size=2)) as (engine, session):
            async with session.get("/kv_event_sources") as response:
                sources = read_event_sources(await response.read(), "127.0.0.1")
            assert [(source.events, source.replay) for source in sources] == [
                (engine.events(rank), engine.replay(rank)) for rank in (0, 1)
            ]
            await post(session, "/v1/completions", {"prompt": IDS}, **{"X-data-parallel-rank": "1"})
            assert not engine.cached(0)
            assert engine.cached(1)
            async with session.get("/metrics") as response:
                assert [each.rank for each in read_cache_config(await response.read())] == [0, 1]
            status, error = await post(session, "/v1/completions", {"prompt": IDS}, **{"X-data-parallel-rank": "2"})
            assert (status, error["error"]["message"]) == (400, "data_parallel_rank 2 is out of range [0, 2).")
            # Without the header an idle rank is found for each.
            engine.hold()
            asked = [asyncio.create_task(complete(session)) for _ in range(4)]
            await until(lambda: [engine.rank(number).engine.num_waiting for number in (0, 1)] == [2, 2])
            engine.release()
            await asyncio.gather(*asked)

    run(test)


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (config(vllm_version="0.30.0"), {"/kv_event_sources": 404}),
        (config(vllm_version="0.11.0"), {"/v1/completions/render": 404, "/inference/v1/generate": 404}),
        (config(has_scale_out=False), {"/v1/completions/render": 403, "/inference/v1/generate": 403}),
        (config(has_dev_mode=False), {"/reset_prefix_cache": 404, "/pause": 404}),
    ],
    ids=["0.30", "0.11", "no scale-out", "no dev mode"],
)
def test_what_the_imitated_server_lacks_is_missing(settings: FakeConfig, missing: dict[str, int]) -> None:
    async def test() -> None:
        async with served(settings) as (_, session):
            async with session.get("/version") as response:
                assert await response.json() == {"version": settings.vllm_version}
            for path, expected in missing.items():
                method = "GET" if path == "/kv_event_sources" else "POST"
                async with session.request(method, path, json={"prompt": "a"}) as response:
                    assert response.status == expected, path

    run(test)


def test_cached_tokens_are_told_only_where_vllm_would() -> None:
    async def test() -> None:
        async with served(config(has_usage_details=False)) as (_, session):
            assert (await complete(session))["usage"]["prompt_tokens_details"] is None
            body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
            _, answer = await post(session, "/v1/messages", body)
            assert set(answer["usage"]) == {"input_tokens", "output_tokens"}

    run(test)


def test_the_anthropic_usage_counts_cached_tokens_apart() -> None:
    async def test() -> None:
        async with served() as (_, session):
            body = {"messages": [{"role": "user", "content": "hello " * 40}], "max_tokens": 2}
            _, first = await post(session, "/v1/messages", body)
            _, second = await post(session, "/v1/messages", body)
            total = first["usage"]["input_tokens"]
            assert second["usage"]["cache_read_input_tokens"] == (total - 1) // 16 * 16
            assert second["usage"]["input_tokens"] + second["usage"]["cache_read_input_tokens"] == total

    run(test)


def test_embeddings_are_the_same_for_the_same_input() -> None:
    async def test() -> None:
        async with served() as (_, session):
            _, answer = await post(session, "/v1/embeddings", {"input": ["one", "two", "one"]})
            first, second, third = (entry["embedding"] for entry in answer["data"])
            assert first == third != second

    run(test)


@pytest.mark.parametrize(("key", "expected"), [(None, 401), ("wrong", 401), ("right", 200)])
def test_a_key_guards_the_paths_that_vllm_guards(key: str | None, expected: int) -> None:
    async def test() -> None:
        async with served(config(api_key="right")) as (_, session):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            status, _ = await post(session, "/v1/completions", {"prompt": IDS}, **headers)
            assert status == expected
            async with session.get("/health") as response:
                assert response.status == 200

    run(test)


def test_more_requests_than_it_may_queue_are_refused() -> None:
    async def test() -> None:
        async with served(config(max_num_queued_reqs=2)) as (engine, session):
            engine.hold()
            asked = asyncio.create_task(complete(session, n=2))
            await until(lambda: engine.rank().engine.num_waiting == 2)
            status, error = await post(session, "/v1/completions", {"prompt": IDS})
            assert (status, error["error"]["type"]) == (503, "Service Unavailable")
            engine.release()
            await asked
            await complete(session)

    run(test)


@pytest.mark.parametrize(("form", "start"), [("JSON", 'JSON {"named_metrics": {"num_req'), ("TEXT", "TEXT named_m")])
def test_the_load_is_reported_with_an_answer_when_asked_for(form: str, start: str) -> None:
    async def test() -> None:
        async with served() as (_, session):
            body = {"prompt": IDS, "max_tokens": 1}
            headers = {"endpoint-load-metrics-format": form}
            async with session.post("/v1/completions", json=body, headers=headers) as response:
                assert response.headers["endpoint-load-metrics"].startswith(start)
            async with session.post("/v1/completions", json=body) as response:
                assert "endpoint-load-metrics" not in response.headers

    run(test)


def test_requests_of_one_name_on_several_ranks_are_kept_apart() -> None:
    async def test() -> None:
        async with served(config(data_parallel_size=2)) as (engine, session):
            engine.hold()
            body = {"prompt": IDS, "max_tokens": 2}
            asked = [
                asyncio.create_task(post(session, "/v1/completions", body, **{"X-Request-Id": "same"}))
                for _ in range(2)
            ]
            await until(lambda: [engine.rank(number).num_samples for number in (0, 1)] == [1, 1])
            asked[0].cancel()
            await until(lambda: engine.rank(0).num_samples + engine.rank(1).num_samples == 1)
            engine.release()
            _, answer = await asked[1]
            assert answer["choices"][0]["finish_reason"] == "length"

    run(test)


def test_samples_of_one_request_are_spread_over_the_ranks() -> None:
    async def test() -> None:
        async with served(config(data_parallel_size=2)) as (engine, session):
            await complete(session, n=2)
            assert engine.cached(0) == engine.cached(1) != Counter()

    run(test)


def test_no_sample_at_all_is_refused() -> None:
    async def test() -> None:
        async with served() as (_, session):
            status, error = await post(session, "/v1/completions", {"prompt": IDS, "n": 0})
            assert (status, error["error"]["param"]) == (400, "n")

    run(test)
