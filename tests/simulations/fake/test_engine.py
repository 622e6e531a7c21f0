"""Life and death of an engine, and events that tell the truth about its cache through all of it."""

import asyncio
import json
import queue
from collections import Counter
from typing import Self

import aiohttp
import pytest

from indexer.index import CacheIndex, ReplicaId
from indexer.sources.vllm import EventReader, Publisher
from indexer.stream import Apply, Forget, Step
from simulations.fake.config import FakeConfig
from simulations.fake.samples import Sample
from simulations.fake_engine import FakeEngine, running
from tests.simulations.fake.samples import IDS, cached_tokens, complete, config, post, run, served, until


class Follower:
    """kvlb's own reader and index behind an engine; mutable."""

    replica = ReplicaId("it")

    def __init__(self) -> None:
        self.index = CacheIndex()
        self.index.add(self.replica)
        self.lives = 0
        self._steps: queue.SimpleQueue[list[Step]] = queue.SimpleQueue()
        self._reader = EventReader(lambda _, steps: self._steps.put(steps))

    def follow(self, engine: FakeEngine) -> None:
        self._reader.add(Publisher(self.replica, engine.events(), engine.replay()))

    def held(self) -> Counter[int]:
        """What the index holds after all that has arrived."""
        while not self._steps.empty():
            for step in self._steps.get():
                match step:
                    case Apply():
                        for batch in step.batches:
                            self.index.apply(self.replica, batch.events)
                    case Forget():
                        self.lives += 1
                        self.index.forget(self.replica)
        return self.index.gpu.held(self.replica)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()


@pytest.mark.parametrize(
    "settings",
    [
        config(num_gpu_blocks=50, max_model_len=768),
        config(num_gpu_blocks=50, max_model_len=768, vllm_version="0.22.0", hash_seed="0", has_int_hashes=False),
    ],
    ids=["newest", "arrays and bytes"],
)
def test_an_index_that_follows_the_events_holds_what_the_engine_holds(settings: FakeConfig) -> None:
    async def test() -> None:
        with Follower() as follower:
            await follow_through(follower)

    async def follow_through(follower: Follower) -> None:
        async with served(settings) as (engine, session):
            for start in range(3):
                await complete(session, [start * 100 + token for token in range(90)], max_tokens=20)
            follower.follow(engine)  # late: the first batches come by replay
            await until(lambda: follower.held() == engine.cached())
            await asyncio.gather(
                *(
                    complete(session, [start % 5 * 1000 + token for token in range(150)], max_tokens=30)
                    for start in range(20)
                )
            )
            await until(lambda: follower.held() == engine.cached())
            engine.drop_next_batches(2)  # lost on their way, and asked for again
            for start in range(7, 11):
                await complete(session, [start * 1000 + token for token in range(150)])
            await until(lambda: follower.held() == engine.cached())
            assert engine.reset()
            await complete(session)
            await until(lambda: follower.held() == engine.cached())

    run(test)


def test_an_engine_that_comes_back_has_forgotten_everything() -> None:
    async def test() -> None:
        with Follower() as follower:
            await follow_through(follower)

    async def follow_through(follower: Follower) -> None:
        async with served() as (engine, session):
            follower.follow(engine)
            await complete(session)
            await until(lambda: follower.held() == engine.cached())
            url, events, lives = engine.url, engine.events(), follower.lives
            engine.hold()
            asked = asyncio.create_task(complete(session))
            await until(lambda: engine.rank().engine.num_waiting == 1)

            await engine.kill()
            with pytest.raises(aiohttp.ClientError):
                await asked
            with pytest.raises(aiohttp.ClientConnectorError):
                await complete(session)

            await engine.start()
            assert (engine.url, engine.events()) == (url, events)
            assert not engine.cached()
            assert cached_tokens(await complete(session, IDS[::-1])) == 0
            await until(lambda: follower.held() == engine.cached() and follower.lives > lives)

    run(test)


def test_an_engine_without_events_has_no_source_for_them() -> None:
    async def test() -> None:
        async with served(config(event_port=None, replay_port=None)) as (engine, session):
            await complete(session)
            async with session.get("/kv_event_sources") as response:
                assert await response.json() == {}
            await engine.kill()
            await engine.start()
            assert engine.replay() is None

    run(test)


def test_the_answers_can_be_given_by_the_test() -> None:
    def sample(sample: Sample) -> int:
        return 65 + len(sample.tokens)

    async def test() -> None:
        async with running(config(), sample) as engine, aiohttp.ClientSession(engine.url) as session:
            answer = await complete(session, max_tokens=3)
            assert answer["choices"][0]["text"] == "ABC"

    run(test)


def test_what_runs_when_it_is_stopped_is_answered_as_aborted() -> None:
    async def test() -> None:
        async with served() as (engine, session):
            engine.hold()
            asked = asyncio.create_task(complete(session))
            await until(lambda: engine.rank().engine.num_waiting == 1)
            await engine.stop()
            assert (await asked)["choices"][0]["finish_reason"] == "abort"
            assert not engine.is_running

    run(test)


def test_a_draining_engine_finishes_what_runs_and_aborts_what_comes() -> None:
    async def test() -> None:
        async with served(config(shutdown_timeout=10)) as (engine, session):
            engine.hold()
            first = asyncio.create_task(complete(session))
            await until(lambda: engine.rank().engine.num_waiting == 1)
            process = engine.process
            stopping = asyncio.create_task(engine.stop())
            await until(lambda: process.is_draining)
            late = await complete(session)
            assert late["choices"][0]["finish_reason"] == "abort"
            assert late["usage"]["completion_tokens"] == 0
            async with session.get("/health") as response:
                assert response.status == 200
            engine.release()
            assert (await first)["choices"][0]["finish_reason"] == "length"
            await stopping

    run(test)


def test_an_engine_that_fails_is_no_longer_healthy(caplog: pytest.LogCaptureFixture) -> None:
    def sample(sample: Sample) -> int:
        if len(sample.tokens) == 2:
            raise RuntimeError("on purpose")
        return 65

    async def test() -> None:
        async with running(config(), sample) as engine, aiohttp.ClientSession(engine.url) as session:
            body = {"prompt": IDS, "max_tokens": 9}
            streamed = session.post("/v1/completions", json={**body, "stream": True})
            (status, error), streaming = await asyncio.gather(post(session, "/v1/completions", body), streamed)
            async with streaming:
                *_, last, done, _ = (await streaming.content.read()).split(b"\n\n")
            assert (status, error["error"]["type"]) == (500, "InternalServerError")
            assert json.loads(last.removeprefix(b"data: ")) == error
            assert done == b"data: [DONE]"
            async with session.get("/health") as response:
                assert response.status == 503
            assert await post(session, "/v1/completions", body) == (500, error)

    run(test)
    assert "on purpose" in caplog.text


def test_all_ranks_come_back_at_their_ports() -> None:
    async def test() -> None:
        async with served(config(data_parallel_size=3)) as (engine, session):
            first = [(engine.events(rank), engine.replay(rank)) for rank in range(3)]
            ports = [int(events.rpartition(":")[2]) for events, _ in first]
            assert ports == [ports[0], ports[0] + 1, ports[0] + 2]
            await engine.kill()
            await engine.start()
            assert [(engine.events(rank), engine.replay(rank)) for rank in range(3)] == first
            await complete(session)

    run(test)
