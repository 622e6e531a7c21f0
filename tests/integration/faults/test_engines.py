"""What engines do that their events tell late, wrongly or not at all, before the whole gateway."""

import json
import logging
from typing import Any

import aiohttp
import msgspec
import pytest

from balancer.facts import replica_id
from balancer.fleet import Status
from balancer.knowledge import Knowledge
from balancer.silence import SILENT_AFTER
from indexer.index import ReplicaId
from simulations.demo import free_ports
from simulations.fake_engine import FakeEngine, running
from tests.indexer.sources.publisher import FakePublisher
from tests.support.engines import MODEL, Fleet, config, fleet
from tests.support.gateways import gateway, get, post, split
from tests.support.routing import stored
from tests.support.upstream import upstream
from tests.support.waiting import eventually, run

COMPLETIONS = "/v1/completions"
IDS = list(range(300, 370))  # 70 tokens: four blocks of 16, and 6 more


async def tell(engine: FakeEngine, path: str) -> None:
    """A call of the engine's operator, past the gateway."""
    async with aiohttp.ClientSession() as session, session.post(engine.url + path) as response:
        assert response.status == 200


def held(over: Fleet) -> list[int]:
    """Copies that the index has of each replica's GPU blocks."""
    return [over.router.caches.index.gpu.copies(live.replica.id) for live in over.router.fleet]


def statuses(over: Fleet) -> list[Status]:
    return [live.status for live in over.router.fleet]


async def refused(over: Fleet, model: str = MODEL) -> tuple[int, Any]:
    """(status, error code) of a request that the gateway answers itself."""
    body = json.dumps({"model": model, "prompt": IDS, "max_tokens": 1}).encode()
    status, _, answer = split(await over.front.exchange(post(COMPLETIONS, body)))
    return int(status.split(" ")[1]), json.loads(answer)["error"]["code"]


# Sleep


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_that_sleeps_attracts_nobody_and_is_known_to_be_empty(level: int) -> None:
    """Its clear comes with the first step after it has woken up, and may be long in coming."""

    async def check() -> None:
        async with fleet(config(has_dev_mode=True), config(has_dev_mode=True)) as over:
            home, _, _ = await over.complete(IDS)
            await over.settle()
            sleeper = next(engine for engine in over.engines if engine.url.endswith(home))
            await tell(sleeper, f"/sleep?level={level}")
            await eventually(lambda: sorted(statuses(over)) == [Status.ASLEEP, Status.READY])
            await eventually(lambda: held(over) == [0, 0])
            other, _, _ = await over.complete(IDS)
            assert other != home
            await over.settle()
            await tell(sleeper, "/wake_up")
            await eventually(lambda: statuses(over) == [Status.READY] * 2)
            assert (await over.complete(IDS))[0] == other
            asked = 0
            while not all(held(over)):  # until chance has chosen the one that has slept, too
                asked += 1
                await over.complete([asked + 400] * 40)
                await over.settle()
            exact, compared = over.exact_share()
            assert exact == compared == 3 + asked

    run(check())


def test_blocks_stored_right_after_waking_up_are_kept() -> None:
    async def check() -> None:
        async with fleet(config(has_dev_mode=True), health={"interval_seconds": 0.02}) as over:
            (engine,) = over.engines
            for at in range(6):
                await over.complete([at + 400] * 70)
                await over.settle()
                await tell(engine, "/sleep?level=1")
                await eventually(lambda: statuses(over) == [Status.ASLEEP])
                await tell(engine, "/wake_up")
                await eventually(lambda: statuses(over) == [Status.READY])
                for _ in range(3):  # while looks at the metrics go on
                    await over.complete([at + 500] * 70)
                    await over.settle()
            exact, compared = over.exact_share()
            assert exact == compared == 24

    run(check())


def test_a_pause_that_keeps_the_cache_costs_nothing() -> None:
    async def check() -> None:
        async with fleet(config(has_dev_mode=True)) as over:
            (engine,) = over.engines
            await over.complete(IDS)
            await over.settle()
            before = held(over)
            await tell(engine, "/sleep?level=0")
            await eventually(lambda: statuses(over) == [Status.ASLEEP])
            assert await refused(over) == (503, "no_replica")
            await tell(engine, "/wake_up")
            await eventually(lambda: statuses(over) == [Status.READY])
            assert held(over) == before
            assert (await over.complete(IDS))[1:] == (64, 64)

    run(check())


# Another engine at the same address


def test_another_model_at_the_same_address_is_another_cache() -> None:
    """The switch is faster than the probes, which come once a minute; the stream of events has it noticed."""

    async def check() -> None:
        async with fleet(config(), health={"interval_seconds": 60.0}) as over:
            (engine,) = over.engines
            await over.complete(IDS)
            await over.settle()
            await engine.kill()
            engine.config = msgspec.structs.replace(engine.config, model="other", block_size=8)
            await engine.start()
            await eventually(lambda: over.router.fleet.models() == ["other"])
            assert held(over) == [0]
            assert await refused(over) == (404, "model_not_found")
            await eventually(over.follows)
            assert (await over.complete(IDS, model="other"))[1:] == (0, 0)
            await over.settle()
            assert (await over.complete(IDS, model="other"))[1:] == (64, 64)
            (live,) = over.router.fleet
            recipe = over.router.caches.recognitions[live.replica.id].recipe
            assert recipe is not None
            assert recipe.block_size == 8, "judged anew"

    run(check())


def test_an_engine_whose_stream_breaks_off_is_looked_at_at_once() -> None:
    """Not with its next turn, which is a minute away, nor by a request that fails."""

    async def check() -> None:
        async with fleet(config(), config(), health={"interval_seconds": 60.0}) as over:
            await over.engines[0].kill()
            await eventually(lambda: sorted(statuses(over)) == [Status.LOST, Status.READY])

    run(check())


def test_a_restart_of_an_engine_without_events_is_seen_in_its_metrics() -> None:
    """Nothing else tells of it: no stream breaks, no probe fails."""

    def page(started: float) -> bytes:
        return (
            f'process_start_time_seconds {started}\nvllm:cache_config_info{{engine="0",block_size="4"}} 1.0\n'.encode()
        )

    async def check() -> None:
        async with upstream(paths={"/metrics": page(1.0)}) as replica, gateway([replica.url]) as front:
            service = front.service
            (live,) = service.router.fleet
            name = live.replica.id
            service.router.caches.apply(name, [stored(range(40))])  # what was believed of it
            assert service.router.caches.index.gpu.copies(name) == 10
            replica.paths["/metrics"] = page(2.0)
            await eventually(lambda: service.router.caches.index.gpu.copies(name) == 0)

    run(check())


# Silence


class Silent:
    """An engine that answers, and names a publisher that is not its own."""

    def __init__(self, endpoint: str, topic: str = "") -> None:
        source = {"enable_kv_cache_events": True, "endpoint": endpoint, "replay_endpoint": None, "topic": topic}
        self.paths = {"/kv_event_sources": json.dumps({"0": source}).encode()}


async def ask(url: str, count: int) -> None:
    async with aiohttp.ClientSession(headers={"User-Agent": "test"}) as session:
        for at in range(count):
            body = {"model": "m", "prompt": [at + 300] * 40, "max_tokens": 1}
            async with session.post(url + COMPLETIONS, json=body) as response:
                assert response.status == 200


@pytest.mark.parametrize("is_there", [True, False])
def test_a_replica_that_publishes_nothing_is_told_once_and_serves_on(
    is_there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        publisher = FakePublisher(has_replay=False, topic=b"kv-events")
        silent = Silent(publisher.events, topic="wrong")
        if not is_there:
            publisher.stop()
        try:
            async with upstream(paths=silent.paths) as replica, gateway([replica.url]) as front:
                name = replica.url.removeprefix("http://")
                if is_there:
                    await eventually(lambda: front.service.publishers()[name].is_connected)  # type: ignore[index]
                await ask(front.url, SILENT_AFTER + 5)
                told = [
                    record.getMessage()
                    for record in caplog.records
                    if record.levelno == logging.WARNING and "published nothing" in record.getMessage()
                ]
                cause = "its topic may not begin with 'wrong'" if is_there else f"nobody answers at {publisher.events}"
                assert len(told) == 1
                assert told[0].startswith(f"{name}: has answered {SILENT_AFTER} requests and published nothing; ")
                assert cause in told[0]
                found = await front.samples("kvlb_requests_without_events")
                assert found == [({"replica": name}, SILENT_AFTER + 5)]
                assert split(await front.exchange(get("/ready")))[0] == "HTTP/1.1 200 OK"
        finally:
            if is_there:
                publisher.stop()

    run(check())


def test_of_a_topic_that_is_not_the_engines_nothing_is_promised() -> None:
    """Replays are answered whatever the topic: without a word the cache would be called exact, and stand still."""

    async def check() -> None:
        publisher = FakePublisher()
        source = {"enable_kv_cache_events": True, "endpoint": publisher.events, "replay_endpoint": publisher.replay}
        paths = {"/kv_event_sources": json.dumps({"0": source}).encode()}
        try:
            async with (
                upstream(paths=paths) as replica,
                gateway([{"url": replica.url, "topic": "kv@"}]) as front,
            ):
                name = ReplicaId(replica.url.removeprefix("http://"))
                caches = front.service.router.caches
                await eventually(lambda: caches._standings[name].is_connected)
                view = caches.view(name, 0.0)
                assert (view.state, view.reason) == (
                    Knowledge.PARTIAL,
                    "publishes under topic '', subscribed to 'kv@'",
                )
        finally:
            publisher.stop()

    run(check())


def test_a_silent_subscription_is_made_anew() -> None:
    """Whatever has made it deaf: who is on the other side of a subscription is asked again."""

    async def check() -> None:
        publisher = FakePublisher()
        try:
            source = {"enable_kv_cache_events": True, "endpoint": publisher.events, "replay_endpoint": publisher.replay}
            paths = {"/kv_event_sources": json.dumps({"0": source}).encode()}
            async with upstream(paths=paths) as replica, gateway([replica.url]) as front:
                (live,) = front.service.router.fleet
                standings = front.service.router.caches._standings
                await eventually(lambda: standings[live.replica.id].is_complete)
                lives = front.service._pulses._lives
                before = lives[live.replica.id]
                await ask(front.url, SILENT_AFTER)
                await eventually(lambda: lives[live.replica.id] > before)
                await eventually(lambda: standings[live.replica.id].is_complete)
        finally:
            publisher.stop()

    run(check())


def test_a_replica_that_publishes_is_not_called_silent(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with fleet(config(num_gpu_blocks=4096)) as over:
            for at in range(SILENT_AFTER + 5):
                await over.complete([at + 300] * 40)
            await over.settle()
            for _ in range(SILENT_AFTER + 5):  # everything is cached: there is nothing to publish
                await over.complete([300] * 40)
            assert "published nothing" not in caplog.text

    run(check())


# An engine that connects to kvlb


def test_a_publisher_that_connects_is_followed() -> None:
    async def check() -> None:
        (port,) = free_ports(1)
        publisher = FakePublisher(dials=f"tcp://127.0.0.1:{port}")
        try:
            source = {"enable_kv_cache_events": True, "endpoint": publisher.events, "replay_endpoint": publisher.replay}
            paths = {"/kv_event_sources": json.dumps({"0": source}).encode()}
            async with upstream(paths=paths) as replica:
                endpoint = {"url": replica.url, "events_bind": f"tcp://*:{port}"}
                async with gateway([endpoint]) as front:
                    (live,) = front.service.router.fleet
                    standings = front.service.router.caches._standings
                    await eventually(lambda: standings[live.replica.id].is_complete)
                    assert standings[live.replica.id].is_connected
        finally:
            publisher.stop()

    run(check())


def test_a_replica_that_follows_another_ranks_events_is_not_believed() -> None:
    """The settings name the address of rank 1 for rank 0: what one of them has cached would be looked for at the other."""

    async def check() -> None:
        async with (
            running(config(data_parallel_size=2)) as engine,
            gateway([{"url": engine.url, "events": engine.events(1), "replay": engine.replay(1)}]) as front,
            aiohttp.ClientSession() as client,
        ):
            caches, first = front.service.router.caches, replica_id(engine.url, 0, 2)
            await eventually(lambda: caches._standings[first].is_connected)
            over = Fleet([engine], front, client)
            for at in range(4):
                await over.complete([300 + at] * 70)
            await eventually(lambda: "rank 1, and it is rank 0" in caches.view(first, 0.0).reason)
            assert caches.view(first, 0.0).state is Knowledge.PARTIAL

    run(check())
