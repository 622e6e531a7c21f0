"""Publishers that send what no engine would: each costs itself, and neither the gateway nor the other replicas."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec
import pytest

from balancer.commands.loop import SWITCH_SECONDS
from balancer.facts import replica_id
from indexer.wire import MAX_ODD_EVENTS
from simulations.fake_engine import running
from tests.indexer.samples import payload, stored_map
from tests.indexer.sources.publisher import FakePublisher
from tests.support.engines import CONFIG, Fleet
from tests.support.gateways import Gateway, gateway, get, split
from tests.support.upstream import upstream
from tests.support.waiting import eventually, run

LATE_SECONDS = 15.0
"""A flood that holds up the others does so for as long as it lasts, a minute; a busy machine may take a while for anything."""

IDS = list(range(300, 370))  # 70 tokens: four blocks of 16, and 6 more


def source(publisher: FakePublisher) -> dict[str, bytes]:
    """An engine's answer by which its events are found."""
    told = {"enable_kv_cache_events": True, "endpoint": publisher.events, "replay_endpoint": publisher.replay}
    return {"/kv_event_sources": json.dumps({"0": told}).encode()}


def odd(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.0, list(events), 0])


DEEP = b"\x93\xcb" + bytes(8) + b"\x91" * 100_000

HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "random": bytes(range(256)) * 8,
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
    "deep": DEEP,
    "a list longer than memory": payload()[:10] + b"\xdd\xff\xff\xff\xff",
    "countless events": payload()[:10] + b"\xdd" + (MAX_ODD_EVENTS + 1).to_bytes(4, "big") + b"\x80" * MAX_ODD_EVENTS,
    "a negative size": odd(stored_map([9], block_size=-16)),
    "a size beyond all": odd(stored_map([9], block_size=2**63)),
    "a negative hash": odd(stored_map([-9])),
    "hashes of every width": odd(stored_map([b"", b"x", bytes(31), bytes(33), bytes(4096)])),
    "an empty list of hashes": odd(stored_map([], token_ids=[])),
    "tokens in pairs": odd(stored_map([9], token_ids=[[1, 2], [3, 4]])),
    "tokens that are none": odd(stored_map([9], token_ids=[-1, 2**70 % 2**64, 0, 1])),
    "tokens in depth": odd(stored_map([9], token_ids=[[[[[1]]]]])),
    "extras of no shape": odd(stored_map([9], extra_keys={"a": [1, {"b": None}]})),
    "its own parent": odd(stored_map([9], parent=9)),
    "an unknown event": odd({"type": "BlockTouched", "block_hashes": [9]}, ["BlockTouched", 9], 9, None, "x"),
    "a group beyond all": odd(stored_map([9], group_idx=2**62)),
    "a negative group": odd(stored_map([9], group_idx=-1)),
    "media without end": odd(*(stored_map([9], medium=f"M{at}") for at in range(100))),
    "a name of a megabyte": odd(stored_map([9], medium="x" * 2**20, lora_name="y" * 2**20)),
    "time that stands still": msgspec.msgpack.encode([float("nan"), [], 0]),
    "a rank that is nobody's": msgspec.msgpack.encode([1.0, [stored_map([9])], 2**40]),
}


@pytest.mark.parametrize("form", HOSTILE)
def test_a_hostile_payload_costs_itself_alone(form: str) -> None:
    async def check() -> None:
        publisher = FakePublisher()
        try:
            async with upstream(paths=source(publisher)) as replica, gateway([replica.url]) as front:
                name = replica_id(replica.url, 0, 1)
                router = front.service.router
                await eventually(lambda: router.caches._standings[name].is_complete)
                publisher.publish(payload(stored_map([1, 2])))
                publisher.publish(HOSTILE[form])
                publisher.publish(payload(stored_map([3, 4])))
                await eventually(lambda: {1, 2, 3, 4} <= set(router.caches.index.gpu.held(name)))
                status = front.service.publishers()[name]
                assert (status.counters["connections"], status.incarnation) == (1, 0)
                router.caches.index.check()
                for path in ("/metrics", "/kvlb/status"):
                    assert split(await front.exchange(get(path)))[0] == "HTTP/1.1 200 OK"
        finally:
            publisher.stop()

    run(check())


FLOOD = """
import sys, time, zmq
sock = zmq.Context().socket(zmq.PUB)
sock.setsockopt(zmq.SNDHWM, 10_000)
port = sock.bind_to_random_port("tcp://127.0.0.1")
print(port, flush=True)
frames = eval(sys.argv[1])
until = time.monotonic() + 60
number = 0
while time.monotonic() < until:
    for _ in range(1_000):
        sock.send_multipart([f if f is not None else number.to_bytes(8, "big") for f in frames])
        number += 1
    time.sleep(0.001)
"""

FLOODS: dict[str, str] = {
    "frames": "[b'', b'x']",
    "payloads": "[b'', None, b'\\xc1' * 100]",
    "lives": "[b'', bytes(8), b'\\x93\\xcb' + bytes(8) + b'\\x90\\x00']",
    "bad events": "[b'', None, b'\\x93\\xcb' + bytes(8) + b'\\x91\\x80\\x00']",
    "empty batches": "[b'', None, b'\\x93\\xcb' + bytes(8) + b'\\x90\\x00']",
}


@contextlib.contextmanager
def flood(frames: str) -> Iterator[int]:
    """The port of a publisher that sends these frames as fast as it can, in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", FLOOD, frames], stdout=subprocess.PIPE, text=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        sys.setswitchinterval(interval)
        process.kill()
        process.communicate()


async def slowest(front: Gateway, seconds: float) -> float:
    """The longest that ``/health`` takes to answer, asked again and again for so long."""
    worst, until = 0.0, time.monotonic() + seconds
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < until:
            begun = time.monotonic()
            async with session.get(front.url + "/health") as response:
                assert response.status == 200
            worst = max(worst, time.monotonic() - begun)
            await asyncio.sleep(0.01)
    return worst


@pytest.mark.parametrize("form", FLOODS)
def test_a_flood_from_one_replica_holds_up_no_other(form: str) -> None:
    async def check(over: Fleet) -> None:
        (good,) = over.engines
        held = over.router.caches.index.gpu.held
        for at in range(5):
            await over.complete([at + 400] * 70)
            await eventually(lambda: held(replica_id(good.url, 0, 1)) == good.cached(), LATE_SECONDS)
        assert await slowest(over.front, 1.0) < LATE_SECONDS

    async def begin(port: int) -> None:
        told = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{port}", "replay_endpoint": None}
        paths = {"/kv_event_sources": json.dumps({"0": told}).encode()}
        async with (
            running(CONFIG) as good,
            upstream("bad", paths) as bad,
            gateway([good.url, bad.url]) as front,
            aiohttp.ClientSession() as client,
        ):
            standings = front.service.router.caches._standings
            await eventually(lambda: standings[replica_id(good.url, 0, 1)].is_complete)
            await check(Fleet([good], front, client))

    with flood(FLOODS[form]) as port:
        run(begin(port), 60)
