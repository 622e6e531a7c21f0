"""What a snapshot costs: seconds, bytes per block, memory beside the index, and how long it keeps the loop. One JSON line each.

Run from the root of the checkout: ``python -m tests.bench.bench_snapshot [--blocks N] [--keys proven|learned]``. Eight
replicas, blocks of one holder each. Saving and loading are measured in processes of their own; peaks are the kernel's figures.
"""

import argparse
import asyncio
import contextlib
import gc
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import aiohttp

from balancer.handover import Handover
from balancer.router import Router
from balancer.settings import SnapshotSettings
from balancer.warm import WarmStart
from indexer.index import ReplicaId, Tier
from indexer.learned import NamesImage
from indexer.stream import Apply
from indexer.wire import Batch
from tests.bench.report import report
from tests.support.handovers import TOKENS, member, router
from tests.support.routing import RANDOM, RECIPE, told

REPLICAS: Final = 8
SEQUENCE: Final = 512
"""Blocks that one replica stores in a row."""

NAMES: Final = [ReplicaId(f"10.0.0.{at}:8000") for at in range(REPLICAS)]
URLS: Final = [f"http://{name}" for name in NAMES]


def filled(blocks: int, keys: str) -> Router:
    """A router whose replicas hold so many blocks together."""
    made = router(*map(member, NAMES))
    recipe = RANDOM if keys == "learned" else RECIPE
    for name in NAMES:
        made.caches.observe(name, [Apply([Batch(1.0, [told(TOKENS, recipe)])])])
    bits = random.Random(5).getrandbits
    for start in range(0, blocks, SEQUENCE):
        name = NAMES[start // SEQUENCE % REPLICAS]
        some = [bits(64) for _ in range(SEQUENCE)]
        made.caches.index.gpu.store(name, 0, some)
        if keys == "learned":
            names = [bits(64) for _ in range(SEQUENCE)]
            made.caches.recognitions[name].learned.restore(NamesImage(Tier(), 0, names, some, {}))
    return made


class Lag:
    """The longest time for which the loop was kept, in CPU seconds of its thread: others on the machine do not count."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        while True:
            begun = time.thread_time()
            await asyncio.sleep(0)
            self.longest = max(self.longest, time.thread_time() - begun)


def measure_save(path: str, blocks: int, keys: str) -> None:
    made = filled(blocks, keys)
    gc.collect()
    before = _memory("VmRSS")
    _reset_peak()
    warm, lag = WarmStart(SnapshotSettings(path=path), Handover(made, URLS), contextlib.nullcontext), Lag()

    async def save() -> None:
        watching = asyncio.create_task(lag.watch())
        await warm.save()
        watching.cancel()

    begun = time.process_time()
    asyncio.run(save())
    assert warm.saves == 1
    report(
        "save",
        {"blocks": blocks, "replicas": REPLICAS, "keys": keys, "seed": 5},
        {
            "seconds": round(warm.duration, 2),
            "cpu_seconds": round(time.process_time() - begun, 2),
            "bytes_per_block": round(warm.size / blocks, 2),
            "loop_kept_ms": round(lag.longest * 1e3, 1),
            "index_MiB": round(before / 2**20),
            "peak_MiB": round(_memory("VmHWM") / 2**20),
        },
    )


def measure_load(path: str, blocks: int, keys: str) -> None:
    made = router()
    before = _memory("VmRSS")
    warm = WarmStart(SnapshotSettings(path=path), Handover(made, URLS), contextlib.nullcontext)

    async def load() -> None:
        async with aiohttp.ClientSession() as session:
            await warm.load(session)

    begun, cpu = time.perf_counter(), time.process_time()
    asyncio.run(load())
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    gc.collect()
    assert warm.restored_blocks >= blocks
    report(
        "load",
        {"blocks": blocks, "replicas": REPLICAS, "keys": keys, "seed": 5},
        {
            "seconds": round(seconds, 2),
            "cpu_seconds": round(cpu, 2),
            "before_MiB": round(before / 2**20),
            "index_MiB": round(_memory("VmRSS") / 2**20),
            "peak_MiB": round(_memory("VmHWM") / 2**20),
        },
    )


def _memory(what: str) -> int:
    """``VmRSS`` now or ``VmHWM``, the most so far; in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what + ":"))


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--keys", choices=["proven", "learned"], default="proven")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for what in ("save", "load"):
            arguments = (f"{folder}/index", options.blocks, options.keys)
            code = f"from tests.bench import bench_snapshot; bench_snapshot.measure_{what}(*{arguments!r})"
            subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    main()
