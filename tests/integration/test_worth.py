"""What is split where links and weights are known: the gateway before fake engines, with a quick link and with slow ones."""

from typing import Any

import aiohttp
import msgspec
import pytest

from indexer.index import ReplicaId
from simulations.fake.transfers import ConnectorName
from tests.support.disaggregated import text
from tests.support.engines import MODEL, config, fleet
from tests.support.waiting import eventually, run

COMPLETIONS = "/v1/completions"
SHARED = list(range(100, 2100))  # 125 blocks of 16
PROMPT = [*SHARED, 7, 8, 9]


def settings(connector: ConnectorName, threshold: int, link: dict[str, Any], weight: float | None) -> dict[str, Any]:
    made = {"name": connector, "threshold_tokens": threshold, **link}
    weighed = {"models": [{"name": MODEL, "bytes_per_token": weight}]} if weight is not None else {}
    return {"disaggregation": made, **weighed}


QUICK = {"gigabits_per_second": 400.0, "latency_ms": 0.0}
SLOW = {"gigabits_per_second": 400.0, "latency_ms": 60_000.0}


@pytest.mark.parametrize("connector", ["nixl", "shared"])
@pytest.mark.parametrize(
    ("link", "weight", "threshold", "is_split"),
    [
        (QUICK, 1000.0, 1_000_000, True),
        (SLOW, 1000.0, 0, False),
        (QUICK, 1e12, 0, False),
        (QUICK, None, 0, True),
        (QUICK, None, 1_000_000, False),
        ({}, 1000.0, 0, True),
        ({}, 1000.0, 1_000_000, False),
    ],
)
def test_what_is_quicker_is_done_and_the_answer_is_the_same(
    connector: ConnectorName, link: dict[str, Any], weight: float | None, threshold: int, is_split: bool
) -> None:
    async def check() -> None:
        engine = msgspec.structs.replace(
            config(), connector=connector, store=f"{connector} {link} {weight} {threshold}"
        )
        roles: list[dict[str, Any]] = [{"role": "prefill"}, {"role": "decode"}]
        async with (
            fleet(engine, engine, replicas=roles, **settings(connector, threshold, link, weight)) as apart,
            fleet(config()) as one,
        ):
            prefill, decode = apart.engines
            warm = {"model": MODEL, "prompt": [*SHARED, 1], "max_tokens": 1}
            async with aiohttp.ClientSession() as session, session.post(prefill.url + COMPLETIONS, json=warm) as answer:
                assert answer.status == 200
            gpu, name = apart.router.caches.index.gpu, ReplicaId(prefill.url[7:])
            await eventually(lambda: gpu.blocks(name) == len(SHARED) // 16)
            body = {"prompt": PROMPT, "max_tokens": 5}
            headers, told = await apart.post(COMPLETIONS, body)
            assert headers["x-kvlb-replica"] == decode.url[7:]
            assert ("x-kvlb-prefill" in headers) is is_split
            assert text(told) == text((await one.post(COMPLETIONS, body))[1])
            await apart.settle()
            assert apart.front.is_idle()

    run(check())
