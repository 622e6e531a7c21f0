"""``GET /kvlb/load``: what this gateway has under way, for those who may ask."""

import json

from balancer.siblings.report import PATH, decode
from tests.support.gateways import gateway, get, split
from tests.support.waiting import run


def test_it_tells_who_it_is_and_counts_its_reports() -> None:
    async def scenario() -> None:
        async with gateway([], wait=False) as made:
            status, _, body = split(await made.exchange(get(PATH)))
            assert status == "HTTP/1.1 200 OK"
            first = decode(body)
            second = decode(split(await made.exchange(get(PATH)))[2])
            assert first.gateway == second.gateway == made.service.warm.name
            assert second.sequence == first.sequence + 1

    run(scenario())


def test_a_mark_that_is_none_is_refused() -> None:
    async def scenario() -> None:
        async with gateway([], wait=False) as made:
            for after in ("x", "-1", "9" * 40, "%D9%A3"):
                status, _, body = split(await made.exchange(get(f"{PATH}?after={after}")))
                assert status.endswith("400 Bad Request"), body
                assert json.loads(body)["error"]["param"] == "after"

    run(scenario())
