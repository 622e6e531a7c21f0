"""``balancer/gateway/proxy.py``: as long as the client has had no byte, a replica that fails costs it nothing but time."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from balancer.fleet import Drain
from balancer.http.client import EndpointPool
from balancer.http.exchange import NotConnectedInTime, UpstreamConnection
from tests.support.gateways import Gateway, gateway, get, post, split
from tests.support.upstream import OK, Answer, Received, Upstream, upstream
from tests.support.waiting import eventually, run

CHAT = "/v1/chat/completions"
BODY = b'{"prompt":[1,2,3],"messages":[]}'
TOKEN = b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":null}]}\n\n'
ABORTED = b'data: {"choices":[{"delta":{"content":""},"finish_reason":"abort"}]}\n\n'
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"


async def reset(request: Received) -> None:
    request.reset()


async def busy(request: Received) -> None:
    request.answer(b'{"error":{"type":"Service Unavailable"}}', status="503 Service Unavailable")


async def aborted(request: Received) -> None:
    request.answer(b'{"choices":[{"text":"","finish_reason":"abort"}],"usage":{"completion_tokens":0}}')


async def aborted_stream(request: Received) -> None:
    request.begin_stream()
    for chunk in (ROLE, ABORTED, DONE, b""):
        request.chunk(chunk)
        await asyncio.sleep(0)


async def dies_in_its_role(request: Received) -> None:
    request.begin_stream()
    request.chunk(ROLE)
    await asyncio.sleep(0.01)
    request.reset()


DEAD = (
    b'{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","code":500}}'
)


async def dead(request: Received) -> None:
    request.answer(DEAD, status="500 Internal Server Error")


async def dies_before_its_output(request: Received) -> None:
    request.begin_stream()
    for chunk in (ROLE, b"data: " + DEAD + b"\n\n", DONE, b""):
        request.chunk(chunk)
        await asyncio.sleep(0)


async def silent(request: Received) -> None: ...


FAILING: list[Answer] = [reset, busy, aborted, aborted_stream, dies_in_its_role, dead, dies_before_its_output]


async def ask(front: Gateway, path: str = CHAT) -> tuple[int, bytes]:
    first, _, body = split(await front.exchange(post(path, BODY)))
    return int(first.split()[1]), body


def with_two(check: Callable[[Gateway, Upstream, Upstream], Any], **sections: Any) -> None:
    async def begin() -> None:
        async with upstream() as bad, upstream() as good, gateway([bad.url, good.url], **sections) as front:
            await check(front, bad, good)
            assert front.is_idle()

    run(begin())


async def until_tried(front: Gateway, bad: Upstream) -> list[tuple[int, bytes]]:
    """Ask until the bad one has been asked, too."""
    answers = []
    for _ in range(100):
        answers.append(await ask(front))
        if bad.received:
            return answers
    raise AssertionError("the bad one was never chosen")


@pytest.mark.parametrize("failing", FAILING)
def test_the_next_replica_answers(failing: Answer) -> None:
    async def check(front: Gateway, bad: Upstream, good: Upstream) -> None:
        bad.answer = failing
        assert set(await until_tried(front, bad)) == {(200, OK)}
        assert len(bad.received) == 1
        retries = {labels["verdict"]: count for labels, count in await front.samples("kvlb_retries_total")}
        assert retries == {"retry": 1}
        assert sum(count for _, count in await front.samples("kvlb_replica_failures_total")) == 1

    with_two(check)


@pytest.mark.parametrize("failing", [busy, aborted, aborted_stream])
def test_where_nobody_else_is_its_answer_is_the_clients(failing: Answer) -> None:
    async def check() -> None:
        async with upstream() as bad, gateway([bad.url]) as front:
            bad.answer = failing
            status, body = await ask(front)
            assert (status, b"abort" in body) == ((503, False) if failing is busy else (200, True))
            assert len(bad.received) == 1
            assert await front.outcomes() == {"error": 1}

    run(check())


def test_where_nobody_else_is_the_error_of_a_dead_engine_is_the_clients() -> None:
    async def check() -> None:
        async with upstream() as bad, gateway([bad.url]) as front:
            bad.answer = dead
            assert await ask(front) == (500, DEAD)
            assert await front.outcomes() == {"error": 1}

    run(check())


@pytest.mark.parametrize("statuses", [(), (500,)])
def test_another_error_500_is_tried_again_on_demand_alone(statuses: tuple[int, ...]) -> None:
    async def broken(request: Received) -> None:
        request.answer(b'{"error":{"message":"\\"message\\":\\"EngineCore encountered an issue"}}', status="500 Oh")

    async def check(front: Gateway, bad: Upstream, good: Upstream) -> None:
        bad.answer = broken
        found = {status for status, _ in await until_tried(front, bad)}
        assert found == {200} if statuses else 500 in found
        failures = {labels["fault"] for labels, _ in await front.samples("kvlb_replica_failures_total")}
        assert failures == {"status"}

    with_two(check, retries={"statuses": statuses})


def test_an_abort_after_the_first_token_is_passed_and_counted() -> None:
    async def answer(request: Received) -> None:
        request.begin_stream()
        for chunk in (TOKEN, ABORTED, DONE, b""):
            request.chunk(chunk)

    async def check(front: Gateway, one: Upstream, two: Upstream) -> None:
        one.answer = two.answer = answer
        assert await ask(front) == (200, TOKEN + ABORTED + DONE)
        assert len(one.received) + len(two.received) == 1
        assert await front.outcomes() == {"error": 1}
        assert [labels["fault"] for labels, _ in await front.samples("kvlb_replica_failures_total")] == ["abort"]

    with_two(check)


def test_a_request_is_tried_so_often_and_no_more() -> None:
    async def check() -> None:
        async with (
            upstream() as one,
            upstream() as two,
            upstream() as three,
            gateway([one.url, two.url, three.url], retries={"attempts": 2}) as front,
        ):
            for each in (one, two, three):
                each.answer = reset
            assert (await ask(front))[0] == 502
            assert sum(len(each.received) for each in (one, two, three)) == 2

    run(check())


def test_a_fleet_that_is_busy_is_not_asked_without_end() -> None:
    async def check(front: Gateway, one: Upstream, two: Upstream) -> None:
        one.answer = two.answer = busy
        for _ in range(10):
            assert (await ask(front))[0] == 503
        assert len(one.received) + len(two.received) == 13, "10 requests, and 3 retries"

    with_two(check, retries={"budget_minimum": 3, "budget_ratio": 0.0})


# Time


def test_silence_before_the_answer_has_its_own_limit_for_each_path() -> None:
    async def check(front: Gateway, one: Upstream, two: Upstream) -> None:
        one.answer = two.answer = silent
        status, body = await ask(front)
        assert (status, json.loads(body)["error"]["code"]) == (504, "replica_timeout")
        assert "sent nothing for 0.05 s" in json.loads(body)["error"]["message"]
        assert len(one.received) + len(two.received) == 1, "a prompt that takes long is not computed twice"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ask(front, "/v1/completions")
        await eventually(front.is_idle)

    with_two(check, timeouts={CHAT: {"first_byte_seconds": 0.05}})


def test_the_whole_request_has_a_limit_over_all_attempts() -> None:
    async def drip(request: Received) -> None:
        request.begin_stream()
        while True:
            request.chunk(TOKEN)
            await asyncio.sleep(0.01)

    async def check(front: Gateway, one: Upstream, two: Upstream) -> None:
        one.answer = two.answer = silent
        status, body = await ask(front)
        assert (status, "within 0.15 s" in json.loads(body)["error"]["message"]) == (504, True)
        assert await front.samples("kvlb_replica_failures_total") == [], "nobody but the client wants it so fast"
        one.answer = two.answer = drip
        async with asyncio.timeout(2):
            answer = await front.exchange(post(CHAT, BODY))
        assert b"broke off in the middle" in answer
        assert not answer.endswith(b"0\r\n\r\n")

    with_two(check, timeouts={"total_seconds": 0.15})


@pytest.mark.parametrize("end", [Received.reset, Received.close, None], ids=["reset", "closed", "silent"])
def test_a_stream_that_has_said_all_is_whole_however_its_connection_ends(
    end: Callable[[Received], None] | None,
) -> None:
    async def says_all(request: Received) -> None:
        request.begin_stream()
        request.chunk(TOKEN + DONE)
        await asyncio.sleep(0.01)
        if end is None:
            await silent(request)
        else:
            end(request)

    async def check(front: Gateway, one: Upstream, two: Upstream) -> None:
        one.answer = two.answer = says_all
        async with asyncio.timeout(2):
            answer = await front.exchange(post(CHAT, BODY))
        assert split(answer)[2] == TOKEN + DONE
        assert await front.samples("kvlb_replica_failures_total") == []
        assert [(labels["outcome"], count) for labels, count in await front.samples("kvlb_requests_total")] == [
            ("ok", 1)
        ]

    with_two(check, timeouts={CHAT: {"idle_seconds": 0.1}})


# Replicas that stand still

QUICK_PROBES = {"interval_seconds": 0.05, "timeout_seconds": 0.2, "failures": 2}


def freeze(replica: Upstream) -> None:
    """As SIGSTOP does: whoever connects is taken, and nobody is answered."""
    replica.answer = silent
    replica.paths["/health"] = silent


async def asked_at(bad: Upstream, good: Upstream, front: Gateway, *paths: str) -> "list[asyncio.Task[bytes]]":
    """Requests that have come to the bad one."""
    front.service.drain(good.url, Drain.ASKED)
    before = len(bad.received)
    tasks = [asyncio.create_task(front.exchange(post(path, BODY))) for path in paths]
    await eventually(lambda: len(bad.received) == before + len(paths))
    front.service.drain(good.url, None)
    return tasks


def moved_in_time(check: Callable[[Gateway, Upstream, Upstream], Any], **sections: Any) -> None:
    async def begin(front: Gateway, bad: Upstream, good: Upstream) -> None:
        front.service.care._probe_seconds = 0.2
        await check(front, bad, good)
        await eventually(front.is_idle)

    with_two(begin, **{"health": QUICK_PROBES, "slow_start": {"seconds": 0}, **sections})


@pytest.mark.parametrize("beginning", [None, ROLE], ids=["nothing came", "its role came"])
def test_what_waits_at_a_replica_that_stands_still_is_answered_by_another(beginning: bytes | None) -> None:
    async def stuck(request: Received) -> None:
        if beginning is not None:
            request.begin_stream()
            request.chunk(beginning)

    async def check(front: Gateway, bad: Upstream, good: Upstream) -> None:
        bad.answer = stuck
        waiting = await asked_at(bad, good, front, CHAT, CHAT, "/v1/completions")
        bad.paths["/health"] = silent
        answers = [split(await each) for each in waiting]
        assert [(first.split()[1], body) for first, _, body in answers] == [("200", OK)] * 3
        await eventually(lambda: all(request.gone.is_set() for request in bad.received))
        retries = {(labels["fault"], labels["verdict"]): n for labels, n in await front.samples("kvlb_retries_total")}
        assert retries == {("hung", "retry"): 3}

    moved_in_time(check)


def test_a_stalled_engine_that_answers_probes_gives_up_what_waits_there() -> None:
    async def hang(request: Received) -> None:
        if request.path == CHAT:
            request.begin_stream()
            request.chunk(TOKEN)

    async def check(front: Gateway, bad: Upstream, good: Upstream) -> None:
        bad.answer = hang
        front.service.care.stalls._seconds = 0.5
        begun, waiting = await asked_at(bad, good, front, CHAT, "/v1/completions")
        assert split(await waiting)[2] == OK
        assert not begun.done(), "what the client has a byte of is never begun anew"
        (at_work,) = [request for request in bad.received if request.path == CHAT]
        at_work.chunk(DONE)
        at_work.chunk(b"")
        assert split(await begun)[2] == TOKEN + DONE

    moved_in_time(check)


def test_where_nobody_else_is_it_waits_until_the_replica_wakes_up() -> None:
    async def check(front: Gateway, bad: Upstream, good: Upstream) -> None:
        bad.answer = silent
        (waiting,) = await asked_at(bad, good, front, CHAT)
        freeze(good)
        freeze(bad)
        await eventually(lambda: not front.service.is_ready, 10)
        await asyncio.sleep(1.2)  # one look at the least
        assert not waiting.done()
        bad.received[-1].answer(OK)
        assert split(await waiting)[2] == OK

    moved_in_time(check)


def test_what_the_budget_does_not_allow_waits_on() -> None:
    async def check(front: Gateway, bad: Upstream, good: Upstream) -> None:
        bad.answer = silent
        waiting = await asked_at(bad, good, front, CHAT, CHAT, CHAT)
        freeze(bad)
        await eventually(lambda: sum(each.done() for each in waiting) == 1, 10)
        await asyncio.sleep(1.2)
        assert sum(each.done() for each in waiting) == 1
        for request in bad.received:
            if not request.gone.is_set():
                request.answer(OK)
        assert [split(await each)[2] for each in waiting] == [OK] * 3

    moved_in_time(check, retries={"budget_minimum": 1, "budget_ratio": 0.0})


@pytest.mark.parametrize("leaves", ["closed", "half closed, then reset"])
def test_a_client_that_leaves_what_stands_still_leaves_nothing(leaves: str) -> None:
    async def check(front: Gateway, bad: Upstream, good: Upstream) -> None:
        for replica in (bad, good):
            freeze(replica)
        _, writer = await front.send(post(CHAT, BODY))
        await eventually(lambda: len(bad.received) + len(good.received) == 1)
        (request,) = bad.received + good.received
        if leaves == "closed":
            writer.close()
        else:
            writer.write_eof()
            await asyncio.sleep(0.1)
            assert not front.is_idle(), "it has said all it wants to, and waits"
            writer.transport.abort()
        await eventually(front.is_idle, 10)
        await eventually(request.gone.is_set)
        assert await front.outcomes() == {"cancelled": 1}

    moved_in_time(check)


def test_a_connection_that_comes_too_late_is_no_fault_of_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(pool: EndpointPool, seconds: float) -> UpstreamConnection:
        await asyncio.sleep(seconds)
        raise NotConnectedInTime(seconds)

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url], timeouts={"total_seconds": 0.2}) as front:
            monkeypatch.setattr(EndpointPool, "connect", nobody)
            status, body = await ask(front)
            monkeypatch.undo()
            assert (status, "within 0.2 s" in json.loads(body)["error"]["message"]) == (504, True)
            assert await front.samples("kvlb_replica_failures_total") == []
            assert front.service.watchers[replica.url].problem is None

    run(check())


def test_one_that_takes_connections_late_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = EndpointPool.connect
    late: list[str] = []

    async def first_is_late(pool: EndpointPool, seconds: float) -> UpstreamConnection:
        if not late:
            late.append(pool.host.decode())
            raise NotConnectedInTime(seconds)
        return await connect(pool, seconds)

    async def check() -> None:
        async with upstream() as one, upstream() as other, gateway([one.url, other.url]) as front:
            monkeypatch.setattr(EndpointPool, "connect", first_is_late)
            status, _ = await ask(front)
            assert status == 200, "the other one has answered"
            assert late
            assert [watcher.problem for watcher in front.service.watchers.values()] == [None, None]
            samples = await front.samples("kvlb_replica_failures_total")
            assert len(samples) == 1

    run(check())


# Replicas that go on failing


async def statuses(front: Gateway) -> dict[str, tuple[str, list[str]]]:
    """Of each endpoint: its status, and by which signals something is wrong."""
    page = json.loads(split(await front.exchange(get("/kvlb/status")))[2])
    return {each["endpoint"]: (each["status"], [sign["signal"] for sign in each["signs"]]) for each in page["replicas"]}


def test_a_replica_that_answers_badly_is_left_out_and_told() -> None:
    async def broken(request: Received) -> None:
        request.answer(b"{}", status="500 Internal Server Error")

    async def check(front: Gateway, bad: Upstream, good: Upstream) -> None:
        bad.answer = broken
        for _ in range(100):
            await ask(front)
        assert len(bad.received) == 5
        assert await statuses(front) == {bad.url: ("ejected", ["answers"]), good.url: ("ready", [])}
        (sample,) = await front.samples("kvlb_replica_ejections_total")
        assert (sample[0]["cause"], sample[1]) == ("consecutive", 1)
        bad.answer = good.answer
        front.service.router.ejections._records[next(iter(front.service.router.ejections))].until = 0.0
        for _ in range(100):
            await ask(front)
        assert len(bad.received) > 10, "one good answer has brought it back"
        assert await statuses(front) == {bad.url: ("ready", []), good.url: ("ready", [])}

    with_two(check, slow_start={"seconds": 0})


def test_a_stalled_engine_is_left_out_although_its_probes_are_answered() -> None:
    async def hang(request: Received) -> None:
        request.begin_stream()
        request.chunk(TOKEN)

    async def check(front: Gateway, one: Upstream, two: Upstream) -> None:
        one.answer = hang
        two.answer = hang
        front.service.care.stalls._seconds = 0.2
        _, writer = await front.send(post(CHAT, BODY))
        await eventually(lambda: len(one.received) + len(two.received) == 1)
        stuck, well = (one, two) if one.received else (two, one)
        well.answer = Upstream().answer
        await eventually(lambda: len(front.service.router.ejections) == 1, 10)
        assert (await statuses(front))[stuck.url] == ("ejected", ["stall"])
        for _ in range(20):
            assert (await ask(front))[0] == 200
        assert len(stuck.received) == 1
        stuck.received[0].chunk(TOKEN)
        await eventually(lambda: not front.service.router.ejections, 10)
        writer.close()
        await eventually(front.is_idle)

    with_two(check)


def test_where_all_ask_for_a_rest_the_client_is_told_how_long() -> None:
    async def later(request: Received) -> None:
        request.answer(b"{}", status="503 Service Unavailable", headers="Retry-After: 9\r\n")

    async def check(front: Gateway, one: Upstream, two: Upstream) -> None:
        one.answer = two.answer = later
        assert (await ask(front))[0] == 503
        first, headers, body = split(await front.exchange(post(CHAT, BODY)))
        assert (first, json.loads(body)["error"]["code"]) == ("HTTP/1.1 429 Too Many Requests", "capacity_contended")
        assert dict(headers)["Retry-After"] in {"8", "9"}
        assert len(one.received) + len(two.received) == 2

    with_two(check)


def test_an_error_of_our_own_has_the_form_of_its_path() -> None:
    async def check() -> None:
        async with upstream() as bad, gateway([bad.url]) as front:
            bad.answer = reset
            for path, kind in ((CHAT, None), ("/v1/messages", "error")):
                status, body = await ask(front, path)
                assert status in {502, 503}
                assert json.loads(body).get("type") == kind

    run(check())
