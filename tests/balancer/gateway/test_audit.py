"""``gateway/audit.py``: each difference names its request and when it was found, so that it can be looked up elsewhere."""

import json
import time

from tests.support.gateways import gateway, get, post, split
from tests.support.upstream import Received, upstream
from tests.support.waiting import run


def test_a_difference_names_its_request_and_its_time() -> None:
    async def answer(request: Received) -> None:
        request.answer(b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}')

    async def check() -> None:
        async with (
            upstream() as one,
            gateway([{"url": one.url, "version": "0.32.0", "block_size": 4}]) as front,
        ):
            one.answer = answer
            before = time.time()
            for name in ("r1", "r2"):
                body = b'{"model":"m","prompt":[1,2,3,4,5]}'
                await front.exchange(post("/v1/completions", body, f"x-request-id: {name}"))
            told = json.loads(split(await front.exchange(get("/debug/audit")))[2])["differences"]
            assert [(each["request_id"], each["cause"]) for each in told] == [("r1", "workload"), ("r2", "workload")]
            assert all(before - 1 < each["time"] < time.time() + 1 for each in told)
            last = json.loads(split(await front.exchange(get("/debug/audit?limit=1")))[2])["differences"]
            assert [each["request_id"] for each in last] == ["r2"]

    run(check())
