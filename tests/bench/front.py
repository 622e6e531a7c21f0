"""What stands in front of the replicas, as a process: what it uses, and what a request or a chunk costs it.

Knows processes (Linux: ``schedstat`` and ``statm``) and clients, not what is measured: kvlb or somebody else.
"""

import asyncio
import contextlib
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.bench.raw_clients import Client, Refused, chat, clients

PACED: Final = 100_000
"""Streams of so many tokens come chunk by chunk. It is said by a field that nobody drops on the way."""

PAUSE_SECONDS: Final = 0.05
"""Between two chunks of theirs."""

SEEN_SECONDS: Final = 30.0
"""For so long one waits at most until every prompt has been sent once."""


class Front:
    """A process with all that it has started, and where it listens."""

    def __init__(self, pid: int, address: tuple[str, int]) -> None:
        self.pid = pid
        self.address = address

    def cpu_seconds(self) -> float:
        """What its threads have been on a CPU. A thread that has ended is not counted any more."""
        return sum(_run_ns(task) for pid in processes(self.pid) for task in _tasks(pid)) / 1e9

    def rss_mib(self) -> float:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in processes(self.pid))
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _run_ns(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[0])
    except OSError:  # it has ended meanwhile
        return 0


def processes(pid: int) -> list[int]:
    """The process and all that it has started."""
    children: list[str] = []
    for task in _tasks(pid):
        with contextlib.suppress(OSError):
            children += (task / "children").read_text().split()
    return [pid, *(deeper for child in children for deeper in processes(int(child)))]


async def measured(front: Front, inside: list[Client], seconds: float) -> dict[str, float]:
    """What was done in so many seconds, and used for it.

    Raises:
        Refused: nothing was done.
    """
    for each in inside:
        each.seconds.clear()
    before = front.cpu_seconds(), sum(each.answers for each in inside), sum(each.chunks for each in inside)
    await asyncio.sleep(seconds)
    answers, chunks = sum(each.answers for each in inside) - before[1], sum(each.chunks for each in inside) - before[2]
    if not answers and not chunks:
        raise Refused(next((each.refused for each in inside if each.refused), f"no answer within {seconds:g} s"))
    return {"cpu": front.cpu_seconds() - before[0], "answers": answers, "chunks": chunks}


async def per_request(
    front: Front, requests: Callable[[], bytes], count: int, seconds: float, warmup: float, *, first: int = 0
) -> dict[str, float]:
    """The cost of a request by so many connections, once ``first`` of them have been answered, and the warm-up is over."""
    async with clients(front.address, count, requests) as inside:
        await asyncio.sleep(warmup)
        for _ in range(int(SEEN_SECONDS / 0.05)):
            if sum(each.answers for each in inside) >= first or any(each.refused for each in inside):
                break
            await asyncio.sleep(0.05)
        done = await measured(front, inside, seconds)
    return {"cpu_ms_a_request": done["cpu"] / done["answers"] * 1e3, "requests": done["answers"]}


async def added(front: Front, direct: tuple[str, int], seconds: float) -> dict[str, float]:
    """How much later a whole answer is there than without it, one request at a time."""
    middle = {}
    for name, address in (("direct", direct), ("through", front.address)):
        async with clients(address, 1, chat(2048)) as (one,):
            await asyncio.sleep(seconds)
            if one.refused or not one.seconds:
                raise Refused(one.refused or f"no answer within {seconds:g} s")
            middle[name] = statistics.median(one.seconds) * 1e3
    return {"added_p50_ms": middle["through"] - middle["direct"]}


async def burst(front: Front, seconds: float, *, seed: int = 1) -> dict[str, float]:
    """Streams of 128 chunks against streams of one: the difference is what the chunks cost."""
    costs = {}
    for chunks in (1, 128):
        async with clients(front.address, 16, chat(2048, seed=seed, max_tokens=chunks, stream=True)) as inside:
            await asyncio.sleep(seconds / 4)
            done = await measured(front, inside, seconds)
            if done["chunks"] < chunks * done["answers"] / 2:  # the first one or the last one may fall outside
                raise Refused(f"{done['chunks']:g} chunks in {done['answers']:g} streams of {chunks}")
            costs[chunks] = done["cpu"] / done["answers"] * 1e6
    return {"cpu_us_a_chunk": (costs[128] - costs[1]) / 127, "cpu_us_a_stream_of_one": costs[1]}


async def paced(front: Front, count: int, seconds: float, *, warmup: float = 2, seed: int = 1) -> dict[str, float]:
    """Streams whose chunks come each by itself, twenty a second. Where the pace is not kept, chunks have come together."""
    idle = front.rss_mib()
    streams = chat(2048, seed=seed, max_tokens=PACED, stream=True)
    async with clients(front.address, count, streams) as inside:
        await asyncio.sleep(warmup)
        done = await measured(front, inside, seconds)
        rss = front.rss_mib()
    if not done["chunks"]:
        raise Refused("its streams have no chunks")
    return {
        "cpu_us_a_chunk": done["cpu"] / done["chunks"] * 1e6,
        "pace_kept": done["chunks"] * PAUSE_SECONDS / (count * seconds),
        "rss_idle_mib": idle,
        "rss_mib": rss,
    }
