"""``balancer/gateway/replicas.py``: an operator takes a replica out of use and puts it back, and no request suffers."""

import asyncio
import json
from urllib.parse import quote

import pytest

from tests.support.gateways import gateway, get, post, split
from tests.support.upstream import Received, upstream
from tests.support.waiting import eventually, run

PATH = "/v1/completions"
BODY = b'{"prompt":[1,2,3]}'


@pytest.mark.parametrize("is_url", [True, False])
def test_a_drained_replica_ends_what_it_has_and_gets_nothing_new(is_url: bool) -> None:
    async def check() -> None:
        async with upstream() as one, upstream() as two, gateway([one.url, two.url]) as front:
            gate = asyncio.Event()

            async def wait(request: Received) -> None:
                await gate.wait()
                request.answer(b"{}")

            one.answer = two.answer = wait
            running = [asyncio.create_task(front.exchange(post(PATH, BODY))) for _ in range(8)]
            await eventually(lambda: len(one.received) + len(two.received) == 8)
            before = len(one.received)
            name = quote(one.url if is_url else one.url.removeprefix("http://"), safe="")
            first, _, body = split(await front.exchange(post(f"/kvlb/replicas/{name}/drain", b"")))
            assert first == "HTTP/1.1 200 OK"
            (told,) = json.loads(body)["replicas"].values()
            assert told == {"status": "draining", "in_flight": before}
            gate.set()
            answers = [split(await each)[0] for each in running]
            answers += [split(await front.exchange(post(PATH, BODY)))[0] for _ in range(8)]
            assert answers == ["HTTP/1.1 200 OK"] * 16
            assert len(one.received) == before
            await front.exchange(post(f"/kvlb/replicas/{name}/undrain", b""))
            for _ in range(40):
                await front.exchange(post(PATH, BODY))
            assert len(one.received) > before

    run(check())


def test_nobody_of_this_name_is_told_who_there_is() -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            first, _, body = split(await front.exchange(post("/kvlb/replicas/nobody/drain", b"")))
            assert first == "HTTP/1.1 404 Not Found"
            assert one.url.removeprefix("http://") in json.loads(body)["error"]["message"]

    run(check())


def test_what_all_drain_is_refused_with_a_time_to_come_again() -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            await front.exchange(post(f"/kvlb/replicas/{quote(one.url, safe='')}/drain", b""))
            first, headers, _ = split(await front.exchange(post(PATH, BODY)))
            assert first.startswith("HTTP/1.1 503 ")
            assert dict(headers)["Retry-After"]
            told = (await front.exchange(get("/ready"))).decode()
            assert "127.0.0.1" in told, "and why it is not ready"
            assert ": draining" in told

    run(check())
