"""Gateways that know each other, over HTTP: what status, metrics and the doctor say of it, keys, and the index at the start."""

from pathlib import Path
from typing import Any

import aiohttp

from balancer.checks.finding import Verdict
from balancer.checks.siblings import siblings as check
from balancer.survey import survey
from simulations.demo import free_ports
from simulations.fake_engine import running
from tests.support.engines import MODEL, config
from tests.support.gateways import Gateway, gateway
from tests.support.waiting import eventually, run

KEYS = """
[[keys]]
name = "siblings"
tenant = "operators"
key = "sk-siblings-0000000000"
admin = true
"""


def counts(made: Gateway) -> int:
    return sum(each.weight > 0 for each in made.service.siblings.told())


async def status(made: Gateway) -> dict[str, Any]:
    async with aiohttp.ClientSession() as client, client.get(f"{made.url}/kvlb/status") as response:
        found = await response.json()
        assert isinstance(found, dict)
        return found


def test_each_sees_what_the_other_has_under_way_and_tells_of_it() -> None:
    async def scenario() -> None:
        one, two = free_ports(2)
        urls = [f"http://127.0.0.1:{port}" for port in (one, two)]
        async with running(config()) as engine:
            replicas = [{"url": engine.url}]
            async with (
                gateway(replicas, server={"port": one}, siblings={"urls": urls}) as first,
                gateway(replicas, server={"port": two}, siblings={"urls": urls}) as second,
                aiohttp.ClientSession() as client,
            ):
                await eventually(lambda: counts(first) == counts(second) == 1)
                assert [each.is_self for each in first.service.siblings.told()] == [True, False]
                endless = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 1_000, "stream": True}
                before = sum(each.results["counted"] for each in second.service.siblings.told() if not each.is_self)
                async with client.post(f"{first.url}/v1/completions", json=endless) as response:
                    await response.content.readany()
                    await eventually(
                        lambda: (
                            sum(each.results["counted"] for each in second.service.siblings.told() if not each.is_self)
                            > before + 2
                        )
                    )
                told = await status(second)
                assert told["siblings"]["problem"] is None
                assert [each["is_self"] for each in told["siblings"]["addresses"]] == [False, True]
                states = {labels["state"]: value for labels, value in await second.samples("kvlb_siblings")}
                assert states == {"counting": 1, "silent": 0, "self": 1}
                ages = await second.samples("kvlb_sibling_report_age_seconds")
                assert [labels["sibling"] for labels, _ in ages] == [urls[0]]
                results = await second.samples("kvlb_sibling_reports_total")
                assert sum(value for labels, value in results if labels["result"] == "counted") > 2
                assert len(await second.samples("kvlb_sibling_in_flight_requests")) == 1
                assert {each.verdict for each in check(survey(second.service))} == {Verdict.OK}

    run(scenario(), 60)


def test_the_doctor_says_who_is_down_and_who_has_another_fleet() -> None:
    async def scenario() -> None:
        async with running(config()) as engine, running(config()) as another, gateway([engine.url]) as other:
            urls = ["http://127.0.0.1:9", other.url]
            async with gateway([another.url], siblings={"urls": urls}) as made:
                await eventually(lambda: all(each.problem or each.differences for each in made.service.siblings.told()))
                found = {each.subject: each for each in check(survey(made.service))}
                assert found[urls[0]].verdict is Verdict.DEGRADED
                assert found[urls[1]].verdict is Verdict.BROKEN
                assert "another fleet" in found[urls[1]].told

    run(scenario(), 60)


def test_siblings_ask_with_their_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)

    async def scenario() -> None:
        async with running(config()) as engine, gateway([engine.url], auth={"keys_file": str(keys)}) as careful:
            with_key = {"urls": [careful.url], "api_key": "sk-siblings-0000000000"}
            async with (
                gateway([engine.url], siblings=with_key) as trusted,
                gateway([engine.url], siblings={"urls": [careful.url]}) as stranger,
            ):
                await eventually(lambda: counts(trusted) == 1)
                await eventually(lambda: stranger.service.siblings.told()[0].problem)
                assert "siblings.api_key" in (stranger.service.siblings.told()[0].problem or "")
                assert counts(stranger) == 0

    run(scenario(), 60)


def test_a_new_gateway_begins_with_the_index_of_a_sibling_unless_it_shall_not() -> None:
    async def scenario() -> None:
        async with running(config()) as engine, gateway([engine.url]) as old, aiohttp.ClientSession() as client:
            body = {"model": MODEL, "prompt": list(range(300, 400)), "max_tokens": 1}
            index = old.service.router.caches.index.gpu
            await eventually(lambda: all(each.is_connected for each in old.service.publishers().values()))
            async with client.post(f"{old.url}/v1/completions", json=body) as response:
                assert response.status == 200
            (replica,) = [live.replica.id for live in old.service.router.fleet]
            await eventually(lambda: index.blocks(replica) >= 6)
            urls = {"urls": ["http://127.0.0.1:9", old.url]}
            async with gateway([engine.url], siblings=urls) as new:
                assert new.service.warm.taken_over_from == old.url
                assert new.service.warm.restored_blocks == index.blocks(replica)
            async with gateway([engine.url], siblings={**urls, "prewarm": False}) as cold:
                assert cold.service.warm.taken_over_from is None

    run(scenario(), 60)
