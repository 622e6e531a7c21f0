"""Three gateways before twelve engines, all of them processes: together they are as good as one, and each can be replaced.

Compared is what depends on the machine as little as can be: what engines say that they had cached, and how many requests are at
a replica at once. Clients send one request after the other, so that a slow machine is sent less, and nothing else; engines take
so long for an answer that their time is what counts, and not that of whoever routes. Three may be better than one by any
amount, and worse by 3 % of one gateway's hits. How many requests each replica had in all is mostly luck here (of one gateway
alone it differs from run to run by more than 3 %), so it is held against one gateway in moved time, with the same tolerance
(``tests/simulations/test_siblings.py``); here it is asserted that requests do not crowd, within a fifth.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.name_server import name_server
from tests.support.pods import Figures, Pods, Traffic, pods
from tests.support.several import engines
from tests.support.waiting import eventually, run

REPLICAS = 12
FLAGS = ("--prefill-tps", "4000", "--decode-ms", "40", "--blocks", "6000")
CLIENTS = 24


@pytest.fixture(scope="module")
def fleet() -> Iterator[list[str]]:
    """Each test asks it for prompts that no other one has."""
    with engines(REPLICAS, *FLAGS) as urls:
        yield urls


async def _measured(over: Pods, seed: int, gateways: int) -> Figures:
    for _ in range(gateways):
        await over.start()
    await over.know_each_other()
    traffic = Traffic(over, seed, clients=CLIENTS)
    async with traffic.running():
        await traffic.more(150)
        figures = await traffic.more(600)
    assert traffic.failed == []
    assert len(figures.by) == gateways
    return figures


def test_three_are_as_good_as_one(fleet: Sequence[str], tmp_path: Path) -> None:
    async def scenario() -> None:
        found = {}
        for gateways in (1, 3):
            async with name_server() as names, pods(fleet, tmp_path, names) as over:
                found[gateways] = await _measured(over, gateways, gateways)
        one, three = found[1], found[3]
        assert three.hit >= 0.97 * one.hit
        assert three.found >= 0.97 * one.found
        assert 1 + three.crowd <= 1.2 * (1 + one.crowd)

    run(scenario(), 240)


def test_all_are_replaced_one_after_the_other(fleet: Sequence[str], tmp_path: Path) -> None:
    """No request fails, and caches are worth as much meanwhile: new ones begin with what the old ones know."""

    async def scenario() -> None:
        async with name_server() as names, pods(fleet, tmp_path, names) as over, over.watched():
            for _ in range(3):
                await over.start()
            await over.know_each_other()
            traffic = Traffic(over, 7, clients=CLIENTS)
            async with traffic.running():
                await traffic.more(200)
                before = await traffic.more(500)
                meanwhile = traffic.begin()
                for old in list(over.all):
                    new = await over.start()
                    snapshot = (await over.get(new, "/kvlb/status"))["snapshot"]
                    assert snapshot["taken_over_blocks"] > 0, snapshot
                    code, told = await over.end(old)
                    assert code == 0, told
                await eventually(lambda: meanwhile.requests >= 500, 180)
            assert traffic.failed == []
            assert meanwhile.found >= before.found - 0.02
            assert len(meanwhile.by) == 6

    run(scenario(), 240)


def test_several_processes_of_one_gateway_are_one_sibling(fleet: Sequence[str], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with name_server() as names, pods(fleet, tmp_path, names) as over:
            several, single = await over.start(processes=2), await over.start()
            await over.know_each_other()
            traffic = Traffic(over, 11, clients=CLIENTS)
            async with traffic.running():
                await traffic.more(60)
                for pod in (several, single):
                    async with asyncio.timeout(60):
                        while True:  # each sees what the other one has under way
                            status = await over.get(pod, "/kvlb/status")
                            if any(each["others_in_flight"] for each in status["replicas"]):
                                break
                            await asyncio.sleep(0.01)
            assert traffic.failed == []
            for pod in (several, single):
                told = (await over.get(pod, "/kvlb/status"))["siblings"]["addresses"]
                (other,) = [each for each in told if each["weight"]]
                assert other["differences"] == 0
                assert other["problem"] is None

    run(scenario(), 180)


def test_siblings_that_are_down_silent_or_lie_cost_no_request_anything(fleet: Sequence[str], tmp_path: Path) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def lies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"gateway": "x", "sequence": -1, "replicas": {"' + b"z" * 9_000 + b'": {"in_flight": 1e99}}}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async def scenario() -> None:
        silent, liar = (
            await asyncio.start_server(mute, "127.0.0.1", 0),
            await asyncio.start_server(lies, "127.0.0.1", 0),
        )
        async with silent, liar, name_server() as names, pods(fleet, tmp_path, names) as over:
            ports = [server.sockets[0].getsockname()[1] for server in (silent, liar)]
            urls = [f"http://127.0.0.1:{port}" for port in (*ports, 9)]
            pod = await over.start(siblings=False, more=f"[siblings]\nurls = {urls}\ntimeout_seconds = 1.0\n")
            traffic = Traffic(over, 13, clients=CLIENTS)
            async with traffic.running():
                await traffic.more(200)
            assert traffic.failed == []
            told = (await over.get(pod, "/kvlb/status"))["siblings"]["addresses"]
            assert [each["address"] for each in told] == urls
            assert all(each["problem"] and not each["weight"] for each in told)

    run(scenario(), 120)
