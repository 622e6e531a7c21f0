"""``kvlb serve --processes 2`` as users run it: processes that die, are replaced and are stopped, while requests go on."""

import asyncio
import json
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.integration.test_processes import living
from tests.support.processes import SECONDS, ask, finished, started
from tests.support.several import MODEL, PATH, STAYING, Kvlb, Load, engines, kvlb, until
from tests.support.waiting import run


@pytest.fixture(scope="module")
def fleet() -> Iterator[list[str]]:
    """Two engines that take next to no time."""
    with engines(2, "--speed", "50") as urls:
        yield urls


@pytest.fixture(scope="module")
def slow() -> Iterator[list[str]]:
    """One engine whose answers last."""
    with engines(1, "--decode-ms", "40") as urls:
        yield urls


@pytest.fixture(scope="module")
def front(fleet: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kvlb]:
    """For tests that leave it as it was."""
    with kvlb(fleet, tmp_path_factory.mktemp("front"), more=STAYING) as made:
        yield made


@pytest.fixture(scope="module")
def slow_front(slow: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kvlb]:
    with kvlb(slow, tmp_path_factory.mktemp("slow")) as made:
        yield made


async def begin_stream(front: Kvlb, client: aiohttp.ClientSession, tokens: int) -> aiohttp.ClientResponse:
    """A stream on a connection of its own whose first chunk has come."""
    body = {"model": MODEL, "prompt": [300] * 20, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    response = await client.post(front.url + PATH, json=body, headers={"Connection": "close"})
    assert (await response.content.readline()).startswith(b"data: {")
    return response


async def in_thread(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(until, condition)


async def check_exact(front: Kvlb, prompts: int = 12) -> None:
    """Everybody who asks anew, and again, is told what the engine will find."""
    load = Load(front.url)
    async with aiohttp.ClientSession() as client:
        for _ in range(prompts):
            prompt = [random.randrange(300, 100_000), random.randrange(300, 100_000), *range(400, 498)]
            for turn in range(2):
                _, promise, predicted, actual = await load.one(client, prompt)
                assert (promise, predicted) == ("exact", actual)
                assert actual == (96 if turn else 0)


def test_a_prompt_finds_its_replica_whoever_takes_it(front: Kvlb) -> None:
    async def check() -> None:
        load = Load(front.url)
        homes: dict[int, str] = {}
        for turn in range(3):
            for at in range(16):
                # A connection for each request: the system gives it to one gateway or the other.
                async with aiohttp.ClientSession() as client:
                    prompt = [6_000 + at, *range(500, 600)]
                    replica, promise, predicted, actual = await load.one(client, prompt)
                    assert (promise, predicted) == ("exact", actual)
                    assert actual == (96 if turn else 0)
                    assert homes.setdefault(at, replica) == replica
        assert len(set(homes.values())) == 2

    run(check(), SECONDS)
    for name in ("kvlb_requests_total", "kvlb_time_to_first_byte_seconds_count"):
        until(lambda name=name: front.samples(name) == 48)  # type: ignore[misc]
    assert front.samples("kvlb_requests_total", outcome="ok") == 48
    assert front.samples("kvlb_stage_seconds_count", stage="stream") == 48
    assert front.samples("kvlb_stage_seconds_count", stage="ask") == 48
    assert front.samples("kvlb_routed_prompt_tokens_total") == 48 * 101
    assert front.samples("kvlb_predictions_total", result="exact") == 48
    assert front.samples("kvlb_fallback_decisions_total") == 0
    assert front.samples("kvlb_processes", role="gateway") == 2
    assert front.samples("kvlb_processes", role="brain") == 1

    victim = front.gateways()[1]
    os.kill(victim, signal.SIGKILL)
    until(lambda: front.samples("kvlb_process_restarts_total", role="gateway") == 1)
    until(lambda: len(front.gateways()) == 2 and front.gateways()[1] != victim)
    assert front.samples("kvlb_requests_total") == 48, "nothing is counted twice, and nothing is lost"


def test_a_port_in_use_is_one_line_even_if_it_is_our_own(front: Kvlb, fleet: list[str]) -> None:
    port = front.url.rpartition(":")[2]
    code, lines = finished("serve", "--processes", "2", "--port", port, "--replica", fleet[0])
    assert code == 2
    assert len(lines) == 1, lines
    assert "in use" in lines[0]


def test_settings_that_cannot_be_used_replace_nothing(front: Kvlb) -> None:
    before = front.pids()
    good = front.config.read_text()
    front.config.write_text(good + "[nonsense]\n")
    front.process.send_signal(signal.SIGHUP)
    assert front.process.stderr is not None
    assert any("nonsense: unknown setting" in line for line in iter(front.process.stderr.readline, ""))
    front.config.write_text(good)
    ask(front.url + PATH, {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 1})
    assert front.pids() == before


def test_no_request_fails_because_the_brain_is_away(fleet: list[str], tmp_path: Path) -> None:
    async def check(front: Kvlb) -> None:
        before = await asyncio.to_thread(front.pids)
        brain = await asyncio.to_thread(front.brain)
        load = Load(front.url)
        async with load.running():
            await load.more()
            os.kill(brain, signal.SIGKILL)
            health, _ = await asyncio.to_thread(ask, f"{front.url}/health")
            assert health == {"status": "ok"}
            await asyncio.to_thread(ask, f"{front.url}/ready")
            await load.more()
            await in_thread(lambda: front.brain() != brain)
            await in_thread(lambda: front.samples("kvlb_fallback_decisions_total") > 0)
            await in_thread(lambda: front.samples("kvlb_stage_seconds_count", stage="ask") > 0)
            await load.more()
        assert load.failed == []
        assert len(await asyncio.to_thread(front.pids) - before) == 1
        await in_thread(lambda: front.status()["open_leases"] == 0)
        assert front.samples("kvlb_process_restarts_total", role="brain") == 1
        await load.exact()  # the brain may be back, and one of those who ask it not yet know
        await check_exact(front)

    with kvlb(fleet, tmp_path, more=STAYING) as front:
        run(check(front), 2 * SECONDS)


def test_a_brain_that_stands_still_is_done_without(fleet: list[str], tmp_path: Path) -> None:
    async def check(front: Kvlb) -> None:
        brain = await asyncio.to_thread(front.brain)
        load = Load(front.url)
        async with load.running(2):
            await load.more()
            os.kill(brain, signal.SIGSTOP)
            try:
                await load.more(60)
            finally:
                os.kill(brain, signal.SIGCONT)
            await in_thread(lambda: front.samples("kvlb_fallback_decisions_total") > 0)
            await load.more()
        assert load.failed == []
        assert await asyncio.to_thread(front.brain) == brain
        await in_thread(lambda: front.status()["open_leases"] == 0)

    with kvlb(fleet, tmp_path) as front:
        run(check(front), 2 * SECONDS)


def test_clients_that_leave_release_their_leases(slow_front: Kvlb) -> None:
    async def check(front: Kvlb) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            streams = [await begin_stream(front, client, 2_000) for _ in range(6)]
            assert front.status()["open_leases"] == 6
            for stream in streams:
                stream.close()
            await in_thread(lambda: front.status()["open_leases"] == 0)
            await in_thread(lambda: front.samples("kvlb_requests_total", outcome="cancelled") == 6)

    run(check(slow_front), 2 * SECONDS)


def test_a_gateway_that_is_killed_takes_nothing_along_but_its_own(slow_front: Kvlb) -> None:
    async def check(front: Kvlb) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            streams = [await begin_stream(front, client, 100) for _ in range(12)]
            await in_thread(lambda: sum(each["requests"] for each in front.status()["processes"]["gateways"]) == 12)
            told = front.status()["processes"]["gateways"]
            assert front.status()["open_leases"] == 12
            victim, other = sorted(told, key=lambda each: int(each["requests"]))
            assert victim["requests"] > 0, "the system gives connections to both"
            os.kill(victim["pid"], signal.SIGKILL)
            ends = await asyncio.gather(*[stream.read() for stream in streams], return_exceptions=True)
            whole = [end for end in ends if isinstance(end, bytes) and end.endswith(b"data: [DONE]\n\n")]
            assert len(whole) == other["requests"]
            await in_thread(lambda: front.status()["open_leases"] == 0)
            await in_thread(lambda: front.gateways().get(victim["number"], victim["pid"]) != victim["pid"])
            assert front.gateways()[other["number"]] == other["pid"]
        for _ in range(8):
            await asyncio.to_thread(ask, front.url + PATH, {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 1})

    run(check(slow_front), 2 * SECONDS)


def test_all_are_replaced_on_sighup_and_no_request_fails(fleet: list[str], tmp_path: Path) -> None:
    async def check(front: Kvlb) -> None:
        before = await asyncio.to_thread(front.pids)
        load = Load(front.url)
        async with load.running():
            await load.more()
            front.process.send_signal(signal.SIGHUP)
            await in_thread(lambda: len(front.pids() - before) == 3)
            await load.more()
        assert load.failed == []
        await in_thread(lambda: len(front.pids()) == 3)
        assert not await asyncio.to_thread(front.pids) & before
        await in_thread(lambda: front.status()["open_leases"] == 0)
        restored = front.samples("kvlb_snapshot_restored_blocks")
        assert restored > 0, "the new brain begins with what the old one knew"
        await check_exact(front)
        total = load.done + 24
        await in_thread(lambda: front.samples("kvlb_requests_total", outcome="ok") <= total)

    with kvlb(fleet, tmp_path, more=STAYING) as front:
        run(check(front), 3 * SECONDS)
        code, told = front.stop()
    assert (code, "Traceback" in told) == (0, False), told


def test_streams_under_way_are_finished_before_all_end(slow: list[str], tmp_path: Path) -> None:
    async def check(front: Kvlb) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            streams = [await begin_stream(front, client, 60) for _ in range(6)]
            front.process.send_signal(signal.SIGTERM)
            for stream in streams:
                assert (await stream.read()).endswith(b"data: [DONE]\n\n")

    with kvlb(slow, tmp_path) as front:
        pids = front.pids()
        run(check(front), SECONDS)
        _, told = front.process.communicate(timeout=SECONDS)
        assert (front.process.returncode, "Traceback" in told) == (0, False), told
        assert "the brain is away" not in told
        assert [pid for pid in pids if living(pid)] == []


def test_nobody_is_left_behind_by_a_supervisor_that_is_killed(fleet: list[str], tmp_path: Path) -> None:
    with kvlb(fleet, tmp_path) as front:
        pids = front.pids()
        front.process.kill()
        until(lambda: not [pid for pid in pids if living(pid)])


def test_what_keeps_it_from_starting_is_one_line() -> None:
    several = ("serve", "--processes", "2", "--port", "0", "--replica", "http://127.0.0.1:9")
    for words, code, message in (
        (("--policy", "best"), 2, "kvlb: policy.name: there is no policy 'best'"),
        (("--host", "192.0.2.1"), 2, "kvlb: server.host: cannot listen on 192.0.2.1:0: "),
        (("--processes", "0"), 2, "kvlb: server.processes: 0 cannot be used; give 1 to 256"),
        (("--startup-timeout", "0.3", "--log-level", "error"), 1, "kvlb: no replica can be used after 0.3 s"),
    ):
        told, lines = finished(*several, *words)
        assert (told, len(lines)) == (code, 1), lines
        assert lines[0].startswith(message)


def test_whoever_asks_it_to_stop_while_it_starts_is_obeyed() -> None:
    with started("serve", "--processes", "2", "--port", "0", "--replica", "http://127.0.0.1:9") as process:
        assert process.stderr is not None
        assert "brain" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=SECONDS)
        assert (process.returncode, "Traceback" in told) == (0, False), told


def test_keys_and_the_control_plane_are_those_of_one_process(fleet: list[str], tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[keys]]\nname = "a"\nkey = "secret-of-a"\nadmin = true\nconcurrent_requests = 1\n')
    with kvlb(fleet, tmp_path, more="[limits.tenant]\nrequests_per_minute = 3\n") as front:
        body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 1}
        for _ in range(3):
            ask(front.url + PATH, body)
        with socket.create_connection(("127.0.0.1", int(front.url.rpartition(":")[2]))) as raw:
            data = json.dumps(body).encode()
            raw.sendall(
                b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (PATH.encode(), len(data), data)
            )
            assert raw.recv(100).startswith(b"HTTP/1.1 429 ")
        assert ask(f"{front.url}/v1/models")[0]["data"][0]["id"] == MODEL
        (decision, *_) = ask(f"{front.url}/debug/decisions")[0]["decisions"]
        assert decision["outcome"] == "ok"
        assert len(decision["candidates"]) == 2
        until(lambda: front.samples("kvlb_limited_requests_total", limit="tenant.requests_per_minute") == 1)
