"""``remote.py`` and ``brain_server.py``: a gateway and its brain over their socket, in one loop.

That a gateway answers as with a brain in its own process is for ``tests/integration/test_split.py``; here is what goes wrong
between the two.
"""

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from balancer import settings as settings_module
from balancer.admission import ANYONE
from balancer.core import Outcome, RouteRequest
from balancer.decisions import NOBODY
from balancer.fleet import Status
from balancer.limits import Limiter
from balancer.processes import remote as remote_module
from balancer.processes.brain_server import BrainServer
from balancer.processes.frames import framed
from balancer.processes.remote import FALLBACK, RemoteBrain
from indexer.index import ReplicaId
from tests.support.gateways import close, get, post, split
from tests.support.split import Split, settle, split_gateway
from tests.support.upstream import OK, Received, Upstream, upstream
from tests.support.waiting import eventually, run

PATH = "/v1/completions"
BODY = b'{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}'
TOKEN = b'data: {"choices":[{"text":"Hi","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"text":"","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


class Pair(Split):
    """Both ends, and a client."""

    def __init__(self, made: Split, url: str) -> None:
        super().__init__(made.service, made.server, made.remote, made.path)
        host, _, port = url.partition("://")[2].rpartition(":")
        self.address = host, int(port)

    async def exchange(self, data: bytes) -> tuple[str, dict[str, str], bytes]:
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(data)
        try:
            status, headers, body = split(await reader.read())
            return status, dict(headers), body
        finally:
            await close(writer)

    async def settle(self) -> None:
        await settle(self.server, self.remote)

    async def lose_the_brain(self) -> None:
        """It goes away, and its leases with it; the fleet stays as it is."""
        await self.server.stop()
        await eventually(lambda: not self.remote.is_asked)

    async def begin_another(self) -> None:
        self.server = BrainServer(self.service, self.server._counts, self.server._observer)
        await self.server.start(self.path)
        await eventually(lambda: self.remote.is_asked)


@contextlib.asynccontextmanager
async def pair(*replicas: Upstream, **sections: Any) -> AsyncIterator[Pair]:
    tree = {
        "replicas": [{"url": each.url} for each in replicas],
        "health": {"interval_seconds": 0.1},
        "server": {"port": 0, "expose_decisions": True},
        **sections,
    }
    async with split_gateway(settings_module.convert(tree)) as (made, url):
        both = Pair(made, url)
        await eventually(lambda: all(not watcher.problem for watcher in both.service.watchers.values()))
        both.server.look()
        await eventually(lambda: both.remote.is_ready)
        try:
            yield both
        finally:
            made.server = both.server  # which of them is stopped at the end


async def begin_stream(request: Received) -> None:
    request.begin_stream()
    request.chunk(TOKEN)


def end_stream(request: Received) -> None:
    request.chunk(LAST)
    request.chunk(b"")


def test_what_a_gateway_had_ends_with_its_connection() -> None:
    async def check() -> None:
        async with upstream() as replica, pair(replica) as both:
            replica.answer = begin_stream
            streams = [asyncio.create_task(both.exchange(post(PATH, BODY))) for _ in range(3)]
            await eventually(lambda: len(replica.received) == 3)
            assert both.service.open_leases == both.remote.open_leases == 3
            assert both.remote._link is not None
            both.remote._link.abort()
            await eventually(lambda: both.service.decisions.last(1)[0].outcome == "cancelled")
            await eventually(lambda: both.remote.is_asked)
            await eventually(lambda: both.service.open_leases == 3)
            (live,) = both.service.router.fleet
            assert (live.in_flight, live.queued_tokens) == (3, 0), "taken over again, with what is left of them"
            for request in replica.received:
                end_stream(request)
            for status, _, body in await asyncio.gather(*streams):
                assert (status, body) == ("HTTP/1.1 200 OK", TOKEN + LAST)
            await eventually(lambda: both.service.open_leases == 0)
            assert (live.in_flight, live.queued_tokens, both.remote.open_leases) == (0, 0, 0)

    run(check())


def test_a_brain_that_comes_back_is_told_what_was_done_without_it() -> None:
    async def check() -> None:
        async with upstream() as one, upstream() as other, pair(one, other) as both:
            await both.lose_the_brain()
            for replica in (one, other):
                replica.answer = begin_stream
            streams = [asyncio.create_task(both.exchange(post(PATH, BODY))) for _ in range(4)]
            await eventually(lambda: len(one.received + other.received) == 4)
            assert not (one.received and other.received), "the same prompt goes to the same replica"
            assert both.service.open_leases == 0
            await both.begin_another()
            await eventually(lambda: both.service.open_leases == 4)
            for request in one.received + other.received:
                end_stream(request)
            for status, headers, _ in await asyncio.gather(*streams):
                assert (status, headers["x-kvlb-predicted"]) == ("HTTP/1.1 200 OK", "unknown")
            await both.settle()
            assert both.service.open_leases == 0
            counts = both.server._counts
            assert (counts.fallbacks, dict(counts.attempts)) == (4, {("m", PATH, "ok"): 4})

    run(check())


def test_whoever_waits_for_a_place_does_not_wait_for_a_brain() -> None:
    async def check() -> None:
        async with upstream() as replica, pair(replica, admission={"max_in_flight": 1}) as both:
            replica.answer = begin_stream
            requests = [asyncio.create_task(both.exchange(post(PATH, BODY))) for _ in range(3)]
            await eventually(lambda: len(both.service.waiting._waiters) == 2)
            await both.lose_the_brain()
            assert not both.service.waiting._waiters
            await eventually(lambda: len(replica.received) == 3)
            for request in replica.received:
                end_stream(request)
            assert {answer[0] for answer in await asyncio.gather(*requests)} == {"HTTP/1.1 200 OK"}

    run(check())


def test_whoever_leaves_while_he_waits_for_a_place_waits_no_more() -> None:
    async def check() -> None:
        async with upstream() as replica, pair(replica, admission={"max_in_flight": 1}) as both:
            replica.answer = begin_stream
            first = asyncio.create_task(both.exchange(post(PATH, BODY)))
            await eventually(lambda: len(replica.received) == 1)
            _, writer = await asyncio.open_connection(*both.address)
            writer.write(post(PATH, BODY))
            await eventually(lambda: both.service.waiting._waiters)
            await close(writer)
            await eventually(lambda: not both.service.waiting._waiters)
            end_stream(replica.received[0])
            assert (await first)[0] == "HTTP/1.1 200 OK"
            await eventually(lambda: both.service.open_leases == 0)
            assert len(replica.received) == 1

    run(check())


def test_a_replica_that_fails_while_the_brain_is_away_is_passed_over() -> None:
    async def check() -> None:
        async with upstream() as good:
            async with upstream() as bad:
                stack = contextlib.AsyncExitStack()
                both = await stack.enter_async_context(pair(good, bad, health={"interval_seconds": 60}))
            async with stack:
                await both.lose_the_brain()
                for at in range(8):
                    status, headers, body = await both.exchange(post(PATH, b'{"model":"m","prompt":[%d,2,3]}' % at))
                    assert (status, body) == ("HTTP/1.1 200 OK", OK)
                    assert headers["x-kvlb-replica"] == good.url.removeprefix("http://")
                status, _, body = await both.exchange(post(PATH, b'{"model":"nobodys","prompt":[1]}'))
                assert status == "HTTP/1.1 404 Not Found"
                assert b"the model 'nobodys' is not served here; served: m" in body
                await both.begin_another()

    run(check())


def test_a_brain_that_says_nothing_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "SILENT_SECONDS", 0.05)
    monkeypatch.setattr(remote_module, "REPORT_SECONDS", 0.01)

    async def check() -> None:
        async with upstream() as replica, pair(replica) as both:
            both.server._task.cancel()
            heard = both.remote._link
            await eventually(lambda: both.remote._link is not heard)
            assert (await both.exchange(post(PATH, BODY)))[0] == "HTTP/1.1 200 OK"

    run(check())


def test_a_brain_that_has_only_begun_does_not_make_anything_forgotten() -> None:
    async def check() -> None:
        async with upstream() as replica, pair(replica) as both:
            await both.lose_the_brain()
            both.service.warm.is_loaded = False  # as at the start, while a snapshot is read
            both.service.router.fleet.remove(next(iter(both.service.router.fleet)).replica.id)
            both.server = BrainServer(both.service, both.server._counts, both.server._observer)
            await both.server.start(both.path)
            await eventually(lambda: both.remote._link is not None)
            await eventually(lambda: both.server.gateways)
            assert not both.remote.is_asked
            assert both.remote.is_ready
            status, headers, _ = await both.exchange(post(PATH, BODY))
            assert status == "HTTP/1.1 200 OK"
            assert headers["x-kvlb-predicted"] == "unknown"
            assert both.remote._counts.fallbacks == 1

    run(check())


def test_garbage_ends_its_connection_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with upstream() as replica, pair(replica) as both:
            for data in (b"GET / HTTP/1.1\r\n\r\n", framed(b"\xc1"), framed(b"\x91\x63"), b"\xff\xff\xff\xff"):
                reader, writer = await asyncio.open_unix_connection(both.path)
                writer.write(data)
                assert await reader.read() == b""
                await close(writer)
            assert (await both.exchange(post(PATH, BODY)))[0] == "HTTP/1.1 200 OK"

    run(check())
    assert caplog.text.count("cannot be read") >= 3


def test_a_model_with_half_a_character_is_not_served_here() -> None:
    async def check() -> None:
        async with upstream() as replica, pair(replica) as both:
            status, _, _ = await both.exchange(post(PATH, b'{"model":"\\ud800","prompt":[1]}'))
            assert status in {"HTTP/1.1 404 Not Found", "HTTP/1.1 400 Bad Request"}
            assert (await both.exchange(post(PATH, BODY)))[0] == "HTTP/1.1 200 OK"

    run(check())


def test_limits_hold_over_all_and_end_with_those_who_had_them() -> None:
    async def check() -> None:
        limits = {"tenant": {"concurrent_requests": 1, "tokens_per_minute": 20}}
        async with upstream() as replica, pair(replica, limits=limits) as both:
            replica.answer = begin_stream
            first = asyncio.create_task(both.exchange(post(PATH, BODY)))
            await eventually(lambda: len(replica.received) == 1)
            assert (await both.exchange(post(PATH, BODY)))[0].startswith("HTTP/1.1 429 ")
            end_stream(replica.received[0])
            assert (await first)[0] == "HTTP/1.1 200 OK"
            await both.settle()
            assert both.service.limiter.at_work == 0
            replica.answer = Upstream().answer
            status, _, body = await both.exchange(post(PATH, b'{"prompt":[%s1]}' % (b"1," * 18)))
            assert status.startswith("HTTP/1.1 429 ")
            assert b"tokens_per_minute" in body

    run(check())


LIMITS = {"tenant": {"concurrent_requests": 4, "tokens_per_minute": 400, "requests_per_minute": 40}}


def test_a_share_of_the_limits_holds_while_the_brain_is_away() -> None:
    async def check() -> None:
        server = {"port": 0, "processes": 2}
        async with upstream() as replica, pair(replica, limits=LIMITS, server=server) as both:
            replica.answer = begin_stream
            first = asyncio.create_task(both.exchange(post(PATH, BODY)))
            await eventually(lambda: len(replica.received) == 1)
            await both.lose_the_brain()
            second = asyncio.create_task(both.exchange(post(PATH, BODY)))
            await eventually(lambda: len(replica.received) == 2)
            status, _, body = await both.exchange(post(PATH, BODY))
            assert status.startswith("HTTP/1.1 429 "), "what the brain had let in counts, too"
            assert b"may have 2 requests at a time at each of 2 gateways while the brain is away" in body
            for request in replica.received:
                end_stream(request)
            assert {(await each)[0] for each in (first, second)} == {"HTTP/1.1 200 OK"}
            replica.answer = Upstream().answer
            status, _, body = await both.exchange(post(PATH, b'{"prompt":[%s1]}' % (b"1," * 190)))
            assert status.startswith("HTTP/1.1 429 ")
            assert b"200 tokens a minute" in body
            answers = [(await both.exchange(post(PATH, b'{"prompt":[1]}')))[0] for _ in range(40)]
            assert 10 < answers.count("HTTP/1.1 200 OK") < 20, "half of forty, and three were there"
            await both.begin_another()

    run(check())


def test_a_brain_that_has_not_said_a_word_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "SILENT_SECONDS", 1000.0)

    async def check() -> None:
        async with upstream() as replica, pair(replica, limits=LIMITS) as both:
            await both.lose_the_brain()
            mute = await asyncio.get_running_loop().create_unix_server(asyncio.Protocol, both.path)
            await eventually(lambda: both.remote._link is not None)
            assert (await both.exchange(post(PATH, BODY)))[0] == "HTTP/1.1 200 OK", (
                "a process that stands still takes links"
            )
            mute.close()
            assert both.remote._link is not None
            both.remote._link.abort()
            await both.begin_another()

    run(check())


def test_a_new_brain_is_told_who_is_at_work() -> None:
    async def check() -> None:
        limits = {"tenant": {"concurrent_requests": 2, "tokens_per_minute": 60}}
        async with upstream() as replica, pair(replica, limits=limits) as both:
            replica.answer = begin_stream
            before = asyncio.create_task(both.exchange(post(PATH, BODY)))
            await eventually(lambda: len(replica.received) == 1)
            await both.lose_the_brain()
            meanwhile = asyncio.create_task(both.exchange(post(PATH, BODY)))
            await eventually(lambda: len(replica.received) == 2)
            both.service.limiter = Limiter(both.service.settings.limits)
            await both.begin_another()
            assert both.service.limiter.at_work == 2
            assert (await both.exchange(post(PATH, BODY)))[0].startswith("HTTP/1.1 429 ")
            for request in replica.received:
                end_stream(request)
            assert {(await each)[0] for each in (before, meanwhile)} == {"HTTP/1.1 200 OK"}
            await both.settle()
            assert both.service.limiter.at_work == 0
            assert not both.remote._permits.open
            replica.answer = Upstream().answer
            assert (await both.exchange(post(PATH, BODY)))[0] == "HTTP/1.1 200 OK"

    run(check())


def test_the_brain_sees_how_answers_go_on() -> None:
    async def check() -> None:
        async with upstream() as replica, pair(replica) as both:
            replica.answer = begin_stream
            stream = asyncio.create_task(both.exchange(post(PATH, BODY)))
            await eventually(lambda: len(replica.received) == 1)
            (held,) = both.service.care.stalls._open.values()

            def has_grown(beyond: int) -> bool:
                both.remote._report()
                return held.answer.arrived > beyond

            for _ in range(3):
                before = held.answer.arrived
                replica.received[0].chunk(TOKEN)
                await eventually(functools.partial(has_grown, before))
            end_stream(replica.received[0])
            await stream

    run(check())


def test_who_takes_over_knows_nothing_before_the_brain_knows_all() -> None:
    async def check() -> None:
        async with upstream() as replica, pair(replica) as both:
            made = both.remote
            later = RemoteBrain(made.settings, both.path, 2, made._counts, made._observer, waits_for_all=True)
            both.server.teller._is_refilled = False
            both.service.warm.is_loaded = False
            both.server.teller._until = math.inf
            both.server.look()
            await later.start()
            await eventually(lambda: later._link is not None)
            await both.settle()
            assert (later.is_known.is_set(), later.is_ready) == (False, False)
            both.service.warm.is_loaded = True
            both.server.look()
            await eventually(later.is_known.is_set)
            assert (later.is_ready, later.is_asked) == (True, True)
            await later.stop()

    run(check())


class Waiting:
    """An answer of which nothing has come."""

    arrived = 0

    def __init__(self) -> None:
        self.told = 0

    def leave(self) -> None:
        self.told += 1


def test_what_waits_at_a_replica_that_stands_still_is_told_by_every_brain() -> None:
    async def check() -> None:
        async with upstream() as replica, pair(replica) as both:
            waiting, stalls = Waiting(), both.service.care.stalls
            decision = await both.remote.route(RouteRequest("m"), NOBODY, ANYONE)
            both.remote.follow(decision, waiting)
            (at_first,) = stalls.waiting_at({decision.replica.id})
            at_first.leave()
            await eventually(lambda: waiting.told == 1)
            waiting.arrived = 7
            both.remote._report()
            await eventually(lambda: at_first.arrived == 7)

            await both.lose_the_brain()
            assert stalls.waiting_at({decision.replica.id}) == []
            await both.begin_another()
            await eventually(lambda: stalls.waiting_at({decision.replica.id}))
            (again,) = stalls.waiting_at({decision.replica.id})
            both.remote._report()
            await eventually(lambda: again.arrived == 7)
            again.leave()
            await eventually(lambda: waiting.told == 2)
            both.remote.release_at_once(decision.lease, Outcome.CANCELLED)
            again.leave()
            await both.settle()
            assert (waiting.told, both.service.open_leases) == (2, 0)

    run(check())


def test_a_decision_without_the_brain_says_so() -> None:
    async def check() -> None:
        async with upstream() as replica, pair(replica) as both:
            await both.lose_the_brain()
            request = RouteRequest("m")
            decision = await both.remote.route(request, NOBODY, ANYONE)
            assert (decision.policy, decision.cached_tokens, decision.is_predicted) == (FALLBACK, 0, False)
            both.remote.release_at_once(decision.lease, Outcome.OK)
            assert both.remote.open_leases == 0
            await both.begin_another()

    run(check())


def test_a_gateway_says_itself_whether_it_lives_and_is_ready() -> None:
    async def check() -> None:
        async with upstream() as replica, pair(replica, health={"interval_seconds": 60}) as both:

            async def told(path: str) -> str:
                return (await both.exchange(get(path)))[0].partition(" ")[2]

            assert [await told(path) for path in ("/health", "/ping", "/ready")] == ["200 OK"] * 3
            await both.lose_the_brain()
            assert [await told(path) for path in ("/health", "/ping", "/ready")] == ["200 OK"] * 3
            for live in both.remote.mirror.fleet:
                live.health = Status.LOST
            assert await told("/health") == "200 OK"
            assert await told("/ready") == "503 Service Unavailable"
            await both.begin_another()
            assert await told("/ready") == "200 OK"
            both.remote.is_draining = True
            assert await told("/ready") == "503 Service Unavailable"

    run(check())


def test_a_request_that_went_elsewhere_than_it_was_sent_is_the_load_of_who_has_it() -> None:
    class Passing:
        arrived = 0

        def leave(self) -> None:
            pass

    async def check() -> None:
        async with upstream() as replica, pair(replica) as both:
            (live,) = both.service.router.fleet
            assert [each.id for each in both.remote.replicas()] == [live.replica.id]
            lease = both.remote.adopt(live.replica.id, 7, Passing())
            assert lease is not None
            await eventually(lambda: (live.in_flight, live.queued_tokens) == (1, 7))
            await both.lose_the_brain()
            other = both.remote.adopt(live.replica.id, 0, Passing())
            assert other is not None
            both.remote.release_at_once(lease, Outcome.OK)
            both.remote.release_at_once(other, Outcome.OK)
            assert both.remote.open_leases == 0
            assert both.remote.adopt(ReplicaId("nobody:1"), 0, Passing()) is None

    run(check())
