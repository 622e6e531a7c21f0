"""The configuration of Envoy in docs/epp.md is run as it stands there, but for where things listen."""

import asyncio
import contextlib
import copy
import functools
import json
import re
import textwrap
import tomllib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from balancer.cli import main
from balancer.core import Outcome
from balancer.settings import load
from simulations.demo import free_ports
from tests.support.engines import MODEL
from tests.support.envoy import DESTINATION, Envoy, configured
from tests.support.pickers import Picked, picker
from tests.support.upstream import upstream
from tests.support.waiting import eventually, run

DOC = Path(__file__).parents[2] / "docs" / "epp.md"
PROMPT = list(range(300, 500))


def examples(kind: str) -> list[str]:
    """Blocks of this kind, from their own left margin."""
    return [textwrap.dedent(each) for each in re.findall(rf"^ *```{kind}\n(.*?)^ *```", DOC.read_text(), re.S | re.M)]


def with_a_second_try(made: Picked, port: int, admin: int) -> str:
    """The file with the route and the cluster that the document has for that, and with these engines."""
    tree = yaml.safe_load(documented(made, port, admin))
    _, route, cluster = map(yaml.safe_load, examples("yaml"))
    resources = tree["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    (only,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    only["route"] = route["route"]
    (listed,) = cluster["load_assignment"]["endpoints"]
    model = listed["lb_endpoints"][0]
    listed["lb_endpoints"] = []
    for each in made.endpoints:
        host, _, number = each.rpartition(":")
        named = copy.deepcopy(model)
        named["endpoint"]["address"]["socket_address"] = {"address": host, "port_value": int(number)}
        listed["lb_endpoints"].append(named)
    resources["clusters"] = [each for each in resources["clusters"] if each["name"] != cluster["name"]] + [cluster]
    return json.dumps(tree)


def documented(made: Picked, port: int, admin: int) -> str:
    """The file for this picker and these ports."""
    text = examples("yaml")[0]
    for old, new in (
        ("address: 0.0.0.0, port_value: 10000", f"address: 127.0.0.1, port_value: {port}"),
        ("address: kvlb-epp, port_value: 9002", f"address: 127.0.0.1, port_value: {made.epp_port}"),
    ):
        assert old in text
        text = text.replace(old, new)
    return f"admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}\n{text}"


def test_the_documented_configuration_serves(tmp_path: Path) -> None:
    async def check() -> None:
        async with picker() as made, upstream() as inner:
            manager = configured(lambda port, admin: documented(made, port, admin), tmp_path, "yaml")
            made.proxy = await asyncio.to_thread(manager.__enter__)
            try:
                await serves(made, made.proxy)
                own: dict[str, str] = {DESTINATION: inner.url.partition("://")[2]}
                assert (await made.ask({"prompt": PROMPT, "max_tokens": 1}, **own)).status == 200
                assert not inner.received
            finally:
                await asyncio.to_thread(manager.__exit__, None, None, None)

    async def serves(made: Picked, proxy: Envoy) -> None:
        assert proxy.process.poll() is None
        first = await made.complete(PROMPT)
        again = await made.complete(PROMPT)
        assert (first.cached_tokens, again.cached_tokens) == (0, 192)
        assert "x-gateway-destination-endpoint-served" not in again.headers
        streamed = await made.ask({"prompt": PROMPT, "max_tokens": 5, "stream": True})
        assert streamed.body.endswith(b"data: [DONE]\n\n")
        await eventually(made.is_idle)
        assert await made.outcomes() == {"ok": 3}

    run(check())


Made = Callable[[Picked, int, int], str]


@contextlib.asynccontextmanager
async def before(made: Picked, text: Made, folder: Path) -> AsyncIterator[None]:
    """An Envoy with this file, before the picker."""
    manager = configured(lambda port, admin: text(made, port, admin), folder, "yaml")
    made.proxy = await asyncio.to_thread(manager.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


@pytest.mark.parametrize(("text", "status"), [(documented, 503), (with_a_second_try, 200)])
def test_a_second_try_as_it_is_documented_survives_an_engine_that_has_died(
    text: Made, status: int, tmp_path: Path
) -> None:
    """Before anybody has noticed: health is asked next in an hour. Without the second try, the document says 503."""

    async def check() -> None:
        (own,) = (each["epp"] for each in map(tomllib.loads, examples("toml")) if "fallbacks" in each.get("epp", {}))
        async with contextlib.AsyncExitStack() as dying, upstream() as living:
            dead = await dying.enter_async_context(upstream())
            sections: dict[str, Any] = {"epp": own if status == 200 else {}, "health": {"interval_seconds": 3600}}
            async with picker(urls=[dead.url, living.url], **sections) as made, before(made, text, tmp_path):
                assert (await made.ask({"prompt": PROMPT})).status == 200
                await dying.aclose()
                statuses = set()
                for number in range(32):  # which of the two is chosen is chance: until it was the dead one
                    statuses.add((await made.ask({"prompt": [number, *PROMPT]})).status)
                    await made.settled()
                    if (await made.outcomes()).keys() != {"ok"}:
                        break
                assert status in statuses
                assert statuses <= {200, status}
                assert (await made.outcomes()).get("unreachable", 0) == (1 if status == 200 else 0)
                told = [each for each in made.service.decisions.last(99) if each.outcome is Outcome.UNREACHABLE]
                assert [each.decision.replica.endpoint for each in told] == [dead.url] * (status == 200)

    run(check())


def test_settings_of_the_document_can_be_used() -> None:
    found = [load(each) for each in examples("toml")]
    assert [each.epp.fallbacks for each in found if each.epp.fallbacks] == [2]
    (several,) = [each for each in found if each.siblings.urls]
    assert {url.rpartition(":")[2] for url in several.siblings.urls} == {str(several.server.port)}
    assert several.epp.port != several.server.port


def test_what_the_document_says_of_seeing_that_it_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        async with picker() as made, before(made, documented, tmp_path):
            first, again = await made.complete(PROMPT), await made.complete(PROMPT)
            assert first.headers["x-kvlb-replica"] == again.headers["x-kvlb-replica"]
            assert int(first.headers["x-kvlb-cached-tokens"]) < int(again.headers["x-kvlb-cached-tokens"])
            assert int(again.headers["x-kvlb-cached-tokens"]) == again.cached_tokens
            asked = again.headers["x-request-id"]
            async with made.session.get(f"{made.url}/debug/decisions", params={"request_id": asked}) as response:
                assert response.status == 200
                assert asked in await response.text()
            for words in (["--request-id", asked], ["--tokens", json.dumps(PROMPT), "--model", MODEL]):
                assert await asyncio.to_thread(main, ["explain", "--gateway", made.url, *words]) == 0
                assert again.headers["x-kvlb-replica"] in capsys.readouterr().out

    run(check())


def test_several_pickers_know_of_each_other_by_their_control_planes(tmp_path: Path) -> None:
    async def check() -> None:
        ports = free_ports(2)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        sections: list[dict[str, Any]] = [{"server": {"port": port}, "siblings": {"urls": urls}} for port in ports]
        one, two = sections
        async with picker(**one) as first, picker(urls=[each.url for each in first.engines], **two) as second:
            for made in (first, second):
                await eventually(functools.partial(counts_one, made))
                async with before(made, documented, tmp_path):
                    assert (await made.complete(PROMPT)).status == 200
                await made.settled()

    def counts_one(made: Picked) -> bool:
        told = made.service.siblings.told()
        return sorted((each.is_self, each.weight > 0, each.common) for each in told if each.is_self or each.weight) == [
            (False, True, 2),
            (True, False, 0),
        ]

    run(check())
