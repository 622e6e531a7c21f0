"""Requests that wait, and requests that are too many: what clients see of ``[admission]`` and ``[limits]``."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.admission import Urgency
from tests.support.gateways import Gateway, close, gateway, post, split
from tests.support.upstream import OK, Received, upstream
from tests.support.waiting import eventually, run

PATH = "/v1/completions"
BODY = b'{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}'
KEYS = """
[[keys]]
key = "sk-flood-flood-flood"
tenant = "flood"

[[keys]]
key = "sk-guest-guest-guest"
tenant = "guest"
name = "guest-7"
priority = -5
concurrent_requests = 3
"""
ONE = {"max_in_flight": 1}


def key(of: str) -> str:
    """The header of a tenant's key."""
    return f"Authorization: Bearer sk-{of}-{of}-{of}"


def prompt(first: int, **fields: int) -> bytes:
    """A body whose prompt has this token first."""
    return json.dumps({"model": "m", "prompt": [first, *range(8)], **fields}).encode()


class Held:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.most = 0

    async def __call__(self, request: Received) -> None:
        self.requests.append(request)
        self.most = max(self.most, len(self.requests))

    def answer(self, body: bytes = OK) -> None:
        self.requests.pop(0).answer(body)


def refusal(answer: bytes) -> tuple[int, str | None, str, int | None]:
    """(status, code, message, Retry-After) of an error of ours."""
    status, headers, body = split(answer)
    retry_after = dict(headers).get("Retry-After")
    error = json.loads(body)["error"]
    return (
        int(status.split()[1]),
        error["code"],
        error["message"],
        retry_after if retry_after is None else int(retry_after),
    )


def ask(front: Gateway, body: bytes = BODY, *headers: str) -> "asyncio.Task[bytes]":
    return asyncio.create_task(front.exchange(post(PATH, body, *headers)))


async def waits(front: Gateway, count: int) -> None:
    await eventually(lambda: len(front.service.waiting.queue) == count)


def test_a_replica_gets_no_more_than_it_may_and_everybody_is_served() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url], admission={"max_in_flight": 3}) as front:
            replica.answer = held = Held()
            asked = [ask(front) for _ in range(20)]
            await waits(front, 17)
            assert {value for _, value in await front.samples("kvlb_admission_waiting")} == {17, 0}
            for _ in asked:
                await eventually(lambda: held.requests)
                held.answer()
            assert [split(await each)[2] for each in asked] == [OK] * 20
            assert held.most == 3
            assert front.is_idle()
            served = {"class": "normal", "outcome": "served"}
            assert (served, 17) in await front.samples("kvlb_admission_wait_seconds_count")
            assert ({"class": "normal"}, 17) in await front.samples("kvlb_admission_position_count")

    run(check())


def test_nobody_waits_in_vain_without_being_told() -> None:
    async def check() -> None:
        admission = {**ONE, "max_wait_seconds": 0.1, "max_waiting": 1}
        async with upstream() as replica, gateway([replica.url], admission=admission) as front:
            replica.answer = held = Held()
            first = ask(front)
            await eventually(lambda: held.requests)
            waiting = ask(front)
            await waits(front, 1)
            status, code, message, retry_after = refusal(await ask(front))
            assert (status, code, retry_after) == (429, "saturated", 1)
            assert "1 requests wait for one already (admission.max_waiting)" in message
            status, code, message, retry_after = refusal(await waiting)
            assert (status, code, retry_after) == (429, "saturated", 1)
            assert "admission.max_wait_seconds" in message
            assert ({"class": "normal"}, 1) in await front.samples("kvlb_admission_full_total")
            held.answer()
            assert split(await first)[2] == OK

    run(check())


def test_a_client_may_be_less_patient() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url], admission=ONE) as front:
            replica.answer = held = Held()
            first = ask(front)
            await eventually(lambda: held.requests)
            assert refusal(await ask(front, BODY, "x-kvlb-max-wait: 0.05"))[:2] == (429, "saturated")
            for wrong in ("soon", "-1", "nan", "inf", "1e400"):
                status, _, message, _ = refusal(await ask(front, BODY, f"x-kvlb-max-wait: {wrong}"))
                assert status == 400
                assert message == f"x-kvlb-max-wait: '{wrong}' is no number of seconds; give one like 2.5"
            held.answer()
            await first
            (request,) = replica.received
            assert request.values("x-kvlb-max-wait") == []

    run(check())


def test_a_client_that_goes_gives_its_place_up() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url], admission={**ONE, "max_waiting": 1}) as front:
            replica.answer = held = Held()
            first = ask(front)
            await eventually(lambda: held.requests)
            _, writer = await front.send(post(PATH, BODY))
            await waits(front, 1)
            await close(writer)
            await waits(front, 0)
            other = ask(front)
            await waits(front, 1)
            for each in (first, other):
                await eventually(lambda: held.requests)
                held.answer()
                assert split(await each)[2] == OK
            assert len(replica.received) == 2
            assert front.is_idle()

    run(check())


def test_one_whose_replica_is_gone_is_the_next_at_another() -> None:
    async def check() -> None:
        async with upstream() as good, upstream() as bad, gateway([good.url, bad.url], admission=ONE) as front:
            good.answer = held = Held()

            async def reset(request: Received) -> None:
                await eventually(lambda: held.requests)
                request.reset()

            bad.answer = reset
            first, second = ask(front), ask(front)
            await waits(front, 1)
            held.answer()
            await eventually(lambda: held.requests)
            held.answer()
            assert [split(await each)[2] for each in (first, second)] == [OK, OK]
            assert front.is_idle()

    run(check())


@pytest.mark.parametrize(
    ("limits", "message", "retry_after"),
    [
        ({"requests_per_minute": 2}, "clients without a key may have 2 requests a minute (limits.key.", 30),
        ({"tokens_per_minute": 19}, "clients without a key may have 19 tokens a minute (limits.key.", 32),
    ],
)
def test_what_is_too_much_for_a_minute_is_told(limits: dict[str, int], message: str, retry_after: int) -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url], limits={"key": limits}) as front:
            for _ in range(2):  # 9 tokens each, and one in the answer
                assert split(await ask(front))[2] == OK
            status, code, told, seconds = refusal(await ask(front))
            assert (status, code) == (429, "rate_limit_exceeded")
            assert retry_after - 3 < (seconds or 0) <= retry_after
            assert told.startswith(message)
            assert len(replica.received) == 2
            (name,) = limits
            assert await front.samples("kvlb_limited_requests_total") == [({"limit": f"key.{name}"}, 1)]

    run(check())


def test_requests_at_a_time_are_counted_until_they_have_ended_however_that_is() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url], limits={"key": {"concurrent_requests": 1}}) as front:
            replica.answer = held = Held()

            def break_off(request: Received, client: asyncio.StreamWriter) -> None:
                request.begin_stream()
                request.close()

            endings: list[Callable[[Received, asyncio.StreamWriter], object]] = [
                lambda request, client: request.answer(OK),
                lambda request, client: request.answer(b"{}", status="400 Bad Request"),
                break_off,
                lambda request, client: client.close(),
            ]
            for end in endings:
                _, writer = await front.send(post(PATH, BODY))
                await eventually(lambda: held.requests)
                status, code, message, retry_after = refusal(await ask(front))
                assert (status, code, retry_after) == (429, "rate_limit_exceeded", 1)
                assert "1 requests at a time (limits.key.concurrent_requests)" in message
                end(held.requests.pop(), writer)
                await eventually(lambda: front.service.limiter.at_work == 0)
                await close(writer)
            assert refusal(await ask(front, b"{}x"))[0] == 400
            assert front.service.limiter.at_work == 0

    run(check())


def test_tenants_take_turns_and_priority_is_a_share(tmp_path: Path) -> None:
    async def check() -> None:
        file = tmp_path / "keys.toml"
        file.write_text(KEYS)
        auth = {"keys_file": str(file)}
        async with upstream() as replica, gateway([replica.url], auth=auth, admission=ONE) as front:
            replica.answer = held = Held()
            asked = [ask(front, prompt(100), key("flood"))]
            await eventually(lambda: held.requests)
            for at, body in enumerate([prompt(101), prompt(102), prompt(103), prompt(104, priority=1)]):
                asked.append(ask(front, body, key("flood")))
                await waits(front, at + 1)
            for at, body in enumerate([prompt(201), prompt(202, priority=-5)]):
                asked.append(ask(front, body, key("guest")))
                await waits(front, at + 5)
            assert [front.service.waiting.queue.waiting(urgency) for urgency in Urgency] == [1, 4, 1]
            for _ in asked:
                await eventually(lambda: held.requests)
                held.answer()
            assert [split(await each)[2] for each in asked] == [OK] * 7
            order = [json.loads(request.body)["prompt"][0] for request in replica.received]
            assert order[:2] == [100, 202], "the class with the largest share is first"
            assert order.index(201) < order.index(102), "a guest waits for one of a flood, and not for all"
            assert order.index(104) > order.index(101)

    run(check())


def test_a_key_has_limits_of_its_own(tmp_path: Path) -> None:
    async def check() -> None:
        file = tmp_path / "keys.toml"
        file.write_text(KEYS)
        async with upstream() as replica, gateway([replica.url], auth={"keys_file": str(file)}) as front:
            replica.answer = held = Held()
            asked = [
                ask(front, BODY, key(tenant))
                for tenant in ("guest", "guest", "guest", "flood", "flood", "flood", "flood")
            ]
            await eventually(lambda: len(held.requests) == 7)
            refused = refusal(await ask(front, BODY, key("guest")))
            assert refused[:2] == (429, "rate_limit_exceeded")
            assert refused[2].startswith("key 'guest-7' may have 3 requests at a time")
            for _ in asked:
                held.answer()
            assert [split(await each)[2] for each in asked] == [OK] * 7

    run(check())


def test_bodies_that_ask_for_too_much_reach_no_replica() -> None:
    async def check() -> None:
        limits = {"max_prompt_tokens": 10, "max_nesting": 3}
        async with upstream() as replica, gateway([replica.url], limits=limits) as front:
            long = refusal(await ask(front, b'{"model":"m","prompt":[[1,2,3,4,5,6],[1,2,3,4,5]]}'))
            assert long[:2] == (400, "context_length_exceeded")
            assert long[2].startswith("the prompt has 11 tokens, and the limit here is 10 (limits.max_prompt_tokens)")
            deep = refusal(await ask(front, b'{"model":"m","prompt":"x","tools":[{"a":["[[[["]}]}'))
            assert deep[0] == 400
            assert "more than 3 deep within each other (limits.max_nesting)" in deep[2]
            assert replica.received == []
            for body in (
                b'{"model":"m","prompt":[[1,2,3,4,5],[1,2,3,4,5]]}',
                b'{"model":"m","prompt":"x","tools":[{}]}',
            ):
                assert split(await ask(front, body))[2] == OK
            form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b\r\n\r\n[[[[[[\r\n--b--\r\n'
            audio = post("/v1/audio/transcriptions", form, "Content-Type: multipart/form-data; boundary=b")
            assert split(await front.exchange(audio))[2] == OK

    run(check())
