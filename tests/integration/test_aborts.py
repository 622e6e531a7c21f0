"""Clients that leave at any moment and in any way: sockets, tasks, leases, places and memory come back to where they were.

``KVLB_ABORTS=10000`` makes it ten thousand, which take some minutes.
"""

import asyncio
import contextlib
import gc
import os
import random
import socket
import struct
from collections import Counter
from typing import Final

import msgspec

from tests.support.gateways import Gateway, gateway, post
from tests.support.upstream import OK, Received, Upstream, upstream
from tests.support.waiting import eventually, run

ABORTS: Final = int(os.environ.get("KVLB_ABORTS", "400"))
AT_ONCE: Final = 40
COMPLETIONS: Final = "/v1/completions"
TOKEN: Final = b'data: {"choices":[{"text":"a"}]}\n\n'
WAYS: Final = ("closed", "reset", "half closed", "never sent whole", "read a little", "read all")
BODIES: Final = (
    b'{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}',
    b'{"model":"m","prompt":"text to be tokenised"}',
    b'{"model":"m","prompt":"' + b"long " * 60_000 + b'"}',
)


class Manner(msgspec.Struct):
    """How a replica answers one request: after how long, in how many pieces, and whether it breaks off. Times in seconds."""

    after: float
    pieces: int
    apart: float
    length: int
    breaks: bool


def any_manner(dice: random.Random) -> Manner:
    return Manner(
        after=dice.choice([0, 0, 0.002, 0.01, 0.05]),
        pieces=dice.choice([0, 1, 3, 200]),
        apart=dice.choice([0, 0.001, 0.02]),
        length=dice.choice([1, 1, 1, 4_000]),
        breaks=dice.random() < 0.1,
    )


def misbehave(replica: Upstream, dice: random.Random) -> None:
    async def answer(request: Received) -> None:
        request.body = b""
        manner = any_manner(dice)
        await asyncio.sleep(manner.after)
        if manner.breaks:
            request.reset()
        elif not manner.pieces:
            request.answer(OK)
        else:
            request.begin_stream()
            for _ in range(manner.pieces):
                if request.gone.is_set():
                    return
                request.chunk(TOKEN * manner.length)
                await asyncio.sleep(manner.apart)
            request.chunk(b"")

    async def render(request: Received) -> None:
        await asyncio.sleep(dice.choice([0, 0.01]))
        request.answer(b'[{"token_ids":[1,2,3,4,5,6,7,8]}]')

    replica.answer = answer
    replica.paths[f"{COMPLETIONS}/render"] = render


async def abort(front: Gateway, dice: random.Random) -> str:
    """One request, and one way of leaving it; returns the way."""
    loop = asyncio.get_running_loop()
    way = dice.choice(WAYS)
    asked = post(COMPLETIONS, dice.choice(BODIES), close=dice.random() < 0.3)
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, front.address)
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(1 if way == "read all" else dice.choice([0.001, 0.005, 0.02, 0.1])):
                await loop.sock_sendall(client, asked[: len(asked) // 2] if way == "never sent whole" else asked)
                if way == "half closed":
                    client.shutdown(socket.SHUT_WR)
                if way == "read a little":
                    await loop.sock_recv(client, dice.choice([1, 100, 10_000]))
                elif way != "never sent whole":
                    while await loop.sock_recv(client, 65_536):
                        pass
        if way == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return way


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def settled(front: Gateway, replicas: list[Upstream]) -> None:
    """Nothing is under way any more, and kept connections have been closed."""
    await eventually(front.is_idle, 10)
    await eventually(lambda: all(request.gone.is_set() for replica in replicas for request in replica.received), 15)
    for replica in replicas:
        replica.received.clear()
        replica.questions.clear()
    gc.collect()


def test_whoever_leaves_and_however_nothing_stays() -> None:
    dice = random.Random(7)

    async def check() -> None:
        async with upstream() as one, upstream() as two:
            for replica in (one, two):
                misbehave(replica, dice)
            # Whatever the replicas do, they stay: who leaves is what this is about.
            health = {"interval_seconds": 0.5, "failures": 100}
            async with gateway([one.url, two.url], health=health, log={"decisions_kept": 100}) as front:
                ways: Counter[str] = Counter()

                async def some(count: int) -> None:
                    for _ in range(count):
                        ways[await abort(front, dice)] += 1

                await asyncio.gather(*(some(5) for _ in range(AT_ONCE)))
                await settled(front, [one, two])
                before = open_files(), len(asyncio.all_tasks()), len(gc.get_objects())
                await asyncio.gather(*(some(ABORTS // AT_ONCE) for _ in range(AT_ONCE)))
                await settled(front, [one, two])
                await eventually(lambda: open_files() <= before[0] + 2, 15)
                await eventually(lambda: len(asyncio.all_tasks()) <= before[1] + 2)
                assert len(gc.get_objects()) < before[2] * 1.1 + 5_000
                assert set(ways) == set(WAYS)
                assert front.service.limiter.at_work == 0

    run(check(), 60 + ABORTS / 20)
