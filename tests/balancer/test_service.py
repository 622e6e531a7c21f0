"""``balancer/service.py``: what engines tell reaches the router, in order, and what has changed with a restart is noticed."""

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from balancer import news
from balancer.core import Outcome
from balancer.facts import Described, EventSource
from balancer.knowledge import Knowledge
from balancer.service import RouterService
from balancer.settings import Settings, convert
from indexer.events import KVEvent
from indexer.index import ReplicaId
from indexer.stream import Apply, Standing, Step
from indexer.wire import Batch
from tests.support.gateways import gateway, post, split
from tests.support.routing import MODEL, RANDOM, replica, request, stored, told
from tests.support.upstream import Received, upstream
from tests.support.waiting import eventually, run

A = ReplicaId("a")
PROMPT = list(range(41))
SOURCE = EventSource(0, "tcp://127.0.0.1:9", None, "")


def with_service(check: Any) -> None:
    async def begin() -> None:
        service = RouterService(Settings())
        await service.start()
        try:
            await check(service)
        finally:
            await service.stop()

    run(begin())


def events(*each: KVEvent) -> list[Step]:
    return [Apply([Batch(0.0, list(each))])]


def described(name: str, source: EventSource | None = SOURCE, **changes: object) -> Described:
    return Described(replica(name, endpoint="http://h:1", **changes), source, ())


async def cached(service: RouterService, prompt: Sequence[int] = PROMPT) -> int:
    decision = await service.route(request(prompt))
    await service.release(decision.lease, Outcome.CANCELLED)
    return max(each.cached_tokens for each in decision.candidates)


def test_events_are_applied_in_turns_of_the_loop() -> None:
    async def check(service: RouterService) -> None:
        service._learned("http://h:1", [described("a", None)])
        service.feed.deliver(A, events(stored(PROMPT)))
        assert await cached(service) == 0, "nothing is applied before the loop has its turn"
        await eventually(lambda: service.feed.is_idle)
        assert await cached(service) == 40

    with_service(check)


def test_ranks_that_are_gone_after_a_restart_are_forgotten() -> None:
    async def check(service: RouterService) -> None:
        service._learned("http://h:1", [described("a"), described("b")])
        service._learned("http://h:1", [described("a")])
        assert [live.replica.id for live in service.router.fleet] == ["a"]
        await eventually(lambda: set(service.publishers()) == {"a"})

    with_service(check)


def test_a_publisher_that_has_moved_is_followed_and_its_old_cache_forgotten() -> None:
    async def check(service: RouterService) -> None:
        service._learned("http://h:1", [described("a")])
        service.router.caches.observe(A, events(stored(PROMPT)))
        service._learned("http://h:1", [described("a")])
        assert await cached(service) == 40, "nothing has changed"
        moved = msgspec.structs.replace(SOURCE, events="tcp://127.0.0.1:10")
        service._learned("http://h:1", [described("a", moved)])
        await eventually(lambda: not service.router.caches.index.gpu.blocks(A))
        assert await cached(service) == 0
        assert service._publishers[A].events == "tcp://127.0.0.1:10"
        service._learned("http://h:1", [described("a", None)])
        await eventually(lambda: not service.publishers())

    with_service(check)


def test_an_engine_that_is_back_is_asked_anew_whether_it_can_render() -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            bodies = [json.dumps({"model": "m", "prompt": text}).encode() for text in ("one", "two")]
            answers = [split(await front.exchange(post("/v1/completions", bodies[0])))]
            one.paths["/v1/completions/render"] = b'[{"token_ids":[1,2,3]}]'
            front.service.unreachable(one.url)
            await eventually(lambda: front.service.is_ready)
            answers.append(split(await front.exchange(post("/v1/completions", bodies[1]))))
            guess = str(len(bodies[0]) // 4)
            assert [dict(headers)["x-kvlb-prompt-tokens"] for _, headers, _ in answers] == [guess, "3"]

    run(check())


def test_leases_outlive_what_is_learned_anew() -> None:
    async def check(service: RouterService) -> None:
        service._learned("http://h:1", [described("a")])
        decision = await service.route(request(PROMPT))
        service._learned("http://h:1", [described("a", max_model_len=9)])
        (live,) = service.router.fleet
        assert (live.in_flight, live.replica.max_model_len) == (1, 9)
        await service.release(decision.lease, Outcome.OK)
        assert live.in_flight == 0

    with_service(check)


def test_the_least_busy_endpoint_tokenises() -> None:
    async def check(service: RouterService) -> None:
        assert service.tokenizing_endpoint(MODEL) is None
        for name in ("a", "b"):
            service.router.put(replica(name))
        decision = await service.route(request(PROMPT))
        assert service.tokenizing_endpoint(MODEL) != decision.replica.endpoint
        assert service.tokenizing_endpoint("nope") is None

    with_service(check)


def test_the_default_model_is_never_an_adapter() -> None:
    from hashing.extras import Lora

    async def check(service: RouterService) -> None:
        service.router.put(replica("a", models=(MODEL, "sql"), adapters=(Lora("sql", "/sql"),)))
        assert service.default_model() == MODEL

    with_service(check)


def test_the_engines_key_is_used_for_kvlbs_own_questions() -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url], upstream={"api_key": "secret"}) as front:
            body = json.dumps({"model": "m", "prompt": "text"}).encode()
            await front.exchange(post("/v1/completions", body, "Authorization: Bearer mine"))
            keys = {question.path: question.values("Authorization") for question in one.questions}
            assert keys["/health"] == keys["/v1/models"] == keys["/metrics"] == ["Bearer secret"]
            assert keys["/v1/completions/render"] == ["Bearer mine"]
            assert one.received[0].values("Authorization") == ["Bearer mine"]

    run(check())


def test_a_replica_found_dead_by_a_request_is_back_as_soon_as_it_answers() -> None:
    async def check() -> None:
        async with (
            upstream() as one,
            gateway([one.url], health={"interval_seconds": 3600}) as front,
        ):
            front.service.unreachable(one.url)
            assert not front.service.is_ready
            await eventually(lambda: front.service.is_ready)
            assert split(await front.exchange(post("/v1/completions", b'{"prompt":[1]}')))[0] == "HTTP/1.1 200 OK"

    run(check())


# What is told of each cache


def watched(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "its cache is known as" in record.getMessage()]


def turns(service: RouterService, count: int = 3) -> None:
    """So many looks at what is known."""
    for _ in range(count):
        service._tell_knowledge()


def test_a_cache_that_becomes_known_otherwise_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "TOLD_AFTER", 0.0)
    caplog.set_level(logging.INFO)

    async def check(service: RouterService) -> None:
        service._learned("http://h:1", [described("a", None)])
        service.router.caches.observe(A, [Standing(is_connected=True, is_complete=True)])
        turns(service)
        assert [line.split(":")[0] for line in watched(caplog)] == ["a"]
        assert "known as exact" in watched(caplog)[0]
        service.router.caches.observe(A, events(told(PROMPT, RANDOM)))
        turns(service)
        assert len(watched(caplog)) == 2
        assert "known as learned: its hashes agree with no recipe" in watched(caplog)[1]
        service.router.caches.observe(A, events(told(PROMPT, RANDOM)))
        turns(service)
        assert len(watched(caplog)) == 2, "nothing has changed"
        for is_linked in (False, True):
            service.router.caches.observe(A, [Standing(is_linked, is_linked)])
            turns(service)
        assert [line.split(": ")[1] for line in watched(caplog)[2:]] == [
            "its cache is known as blind",
            "its cache is known as learned",
        ]

    with_service(check)


def test_what_lasts_but_a_moment_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def check(service: RouterService) -> None:
        service._learned("http://h:1", [described("a")])
        turns(service)
        assert service.router.caches.view(A, time.monotonic()).state is Knowledge.BLIND
        assert watched(caplog) == []

    with_service(check)


def test_a_publisher_that_cannot_be_reached_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "TOLD_AFTER", 0.0)

    async def check(service: RouterService) -> None:
        service._learned("http://h:1", [described("a")])
        await eventually(lambda: watched(caplog))
        assert watched(caplog) == ["a: its cache is known as blind: its event publisher cannot be reached"]
        assert not (await service.route(request(PROMPT))).is_predicted

    with_service(check)


def test_a_service_is_not_refilled_by_a_first_probe_that_nobody_answers() -> None:
    async def check() -> None:
        async with upstream() as slow:
            answers = asyncio.Event()

            async def late(request: Received) -> None:
                await answers.wait()
                request.answer(b"")

            slow.paths["/health"] = late
            health = {"interval_seconds": 0.05, "timeout_seconds": 0.1, "failures": 1_000}
            service = RouterService(
                convert({"replicas": [{"url": slow.url}, {"url": "http://127.0.0.1:9"}], "health": health})
            )
            await service.start()
            await eventually(lambda: len([each for each in slow.questions if each.path == "/health"]) > 3)
            assert service.watchers["http://127.0.0.1:9"].is_judged, "a connection that is refused is an answer"
            assert not service.watchers[slow.url].is_judged
            assert not service.is_refilled
            answers.set()
            await eventually(lambda: service.is_refilled)
            assert service.is_ready
            await service.stop()

    run(check())


def test_a_service_is_refilled_once_it_has_asked_all_who_were_found() -> None:
    async def check() -> None:
        async with upstream() as replica:
            service = RouterService(convert({"replicas": [{"url": replica.url}], "health": {"interval_seconds": 60}}))
            assert not service.is_refilled
            service.warm.is_loaded = True
            service.follower.has_told.set()
            assert not service.is_refilled, "there is nobody to be asked"
            await service.start()
            assert not service.is_refilled, "nobody has been asked"
            await eventually(lambda: service.is_refilled)
            assert service.is_ready
            service.follower.has_told.clear()
            assert not service.is_refilled, "more may be found"
            await service.stop()

    run(check())


def test_what_fails_at_a_tick_ends_nothing_else_and_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        service = RouterService(Settings())
        looks = 0

        def fail() -> None:
            raise ZeroDivisionError

        def look() -> None:
            nonlocal looks
            looks += 1

        service.waiting.look = fail  # type: ignore[method-assign]
        service.stores.look = look  # type: ignore[method-assign]
        monkeypatch.setattr("balancer.service.TICK_SECONDS", 0.001)
        await service.start()
        try:
            await eventually(lambda: looks > 3)
        finally:
            await service.stop()

    run(check())
    assert [record.exc_info is not None for record in caplog.records if "it goes on" in record.message] == [True]
