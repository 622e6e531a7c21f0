"""Clients that leave at any moment and in any way: sockets, tasks, leases, places and memory come back to where they were.

``KVLB_ABORTS=10000`` makes it ten thousand, which take some minutes, and in which a leak of a kilobyte each cannot hide.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import random
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from tests.bench.report import rss
from tests.support.gateways import Gateway, gateway, post
from tests.support.upstream import OK, Received, Upstream, upstream
from tests.support.waiting import eventually, run

ABORTS: Final = int(os.environ.get("KVLB_ABORTS", "400"))
AT_ONCE: Final = 40
EACH: Final = 10
"""Requests that each of them sends before it is looked whether anything stays: what replicas record is forgotten then."""

LEAK: Final = 512
"""Bytes for each request that has been left; a leak of more is found."""

NOISE: Final = 1024 * 1024
"""Bytes of the process that come and go whatever happens: the body that came last has 300,000."""

COMPLETIONS: Final = "/v1/completions"
TOKEN: Final = b'data: {"choices":[{"text":"a"}]}\n\n'
WAYS: Final = ("closed", "reset", "half closed", "never sent whole", "read a little", "read all")
BODIES: Final = (
    b'{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}',
    b'{"model":"m","prompt":"text to be tokenised"}',
    b'{"model":"m","prompt":"' + b"long " * 60_000 + b'"}',
)


class Manner(msgspec.Struct):
    """How a replica answers one request: after how long, in how many pieces, and whether it breaks off. Times in seconds.

    One that stands still does so before its answer or, where there are pieces, behind them.
    """

    after: float
    pieces: int
    apart: float
    length: int
    breaks: bool
    stands_still: bool


def any_manner(dice: random.Random) -> Manner:
    return Manner(
        after=dice.choice([0, 0, 0.002, 0.01, 0.05]),
        pieces=dice.choice([0, 1, 3, 200]),
        apart=dice.choice([0, 0.001, 0.02]),
        length=dice.choice([1, 1, 1, 4_000]),
        breaks=dice.random() < 0.1,
        stands_still=dice.random() < 0.1,
    )


def misbehave(replica: Upstream, dice: random.Random) -> None:
    async def answer(request: Received) -> None:
        request.body = b""
        manner = any_manner(dice)
        await asyncio.sleep(manner.after)
        if manner.breaks:
            request.reset()
        elif not manner.pieces and not manner.stands_still:
            request.answer(OK)
        elif manner.pieces:
            request.begin_stream()
            for _ in range(manner.pieces):
                if request.gone.is_set():
                    return
                request.chunk(TOKEN * manner.length)
                await asyncio.sleep(manner.apart)
            if not manner.stands_still:
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


@contextlib.asynccontextmanager
async def moving(front: Gateway, dice: random.Random) -> AsyncIterator[None]:
    """Meanwhile, replicas are found to stand still: what waits there is to leave, while its clients do."""

    async def move() -> None:
        while True:
            await asyncio.sleep(0.01)
            names = [live.replica.id for live in front.service.router.fleet]
            for answer in front.service.care.stalls.waiting_at({dice.choice(names)}):
                if dice.random() < 0.1:
                    answer.leave()

    task = asyncio.create_task(move())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


def memory() -> tuple[int, int]:
    """(blocks of Python's, bytes of the process), both without what nobody uses."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # where there is another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return sys.getallocatedblocks(), rss()


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

                async def all_of_them(each: int) -> None:
                    async with moving(front, dice):
                        await asyncio.gather(*(some(each) for _ in range(AT_ONCE)))
                    await settled(front, [one, two])

                await all_of_them(EACH)
                before = open_files(), len(asyncio.all_tasks()), len(gc.get_objects())
                used = memory()
                for _ in range(ABORTS // AT_ONCE // EACH):
                    await all_of_them(EACH)
                await eventually(lambda: open_files() <= before[0] + 2, 15)
                await eventually(lambda: len(asyncio.all_tasks()) <= before[1] + 2)
                assert len(gc.get_objects()) < before[2] * 1.1 + 5_000
                grown = [now - then for now, then in zip(memory(), used, strict=True)]
                print(f"{ABORTS} aborts: {grown[0]:,} blocks and {grown[1]:,} bytes more than before")
                assert grown[0] < ABORTS + 2_000
                assert grown[1] < LEAK * ABORTS + NOISE
                assert set(ways) == set(WAYS)
                assert front.service.limiter.at_work == 0
                hung = [n for labels, n in await front.samples("kvlb_retries_total") if labels["fault"] == "hung"]
                assert sum(hung) > 0

    logging.disable(logging.ERROR)  # or what pytest keeps of the log would be all that grows
    try:
        run(check(), 120 + ABORTS / 5)
    finally:
        logging.disable(logging.NOTSET)
