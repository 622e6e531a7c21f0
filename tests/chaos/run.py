"""Everything that can go wrong with replicas, under load, and an account of every request.

Run from the root of the checkout: ``python -m tests.chaos.run --minutes 10 --processes 2 --seed 1``. Four fake engines, two of
them behind a saboteur, are killed, frozen, terminated, reset, cut, stalled and restarted at their old ports, kvlb gets hangups,
and its brain is killed and frozen; one replica is always well. Requests come at random times, whether earlier ones are answered
or not. What is promised: no request fails that has had no byte while one replica is well all the time that it takes, every one
that breaks off is told so, nothing hangs, and nothing stays. Prints one JSON object; the exit code is 1 where a promise was
broken.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.chaos.asks import Asker
from tests.chaos.client import Client
from tests.chaos.engines import Engine
from tests.chaos.faults import Faults
from tests.chaos.front import QUICK_PROBES, Front, Use
from tests.chaos.ledger import Ledger

GROWN_KIB: Final = 16 * 1024
"""Of one process, from the end of the warm-up on; a new process is held against the one whose place it has."""

GROWN_BLOCKS: Final = 40_000
"""Of Python's, likewise; the index may hold some ten thousand more or fewer at the end."""


class Plan(msgspec.Struct, frozen=True):
    """What is done. Times in seconds, ``rate`` in requests a second; ``haste`` is that of faults (``Faults``)."""

    seconds: float
    processes: int
    seed: int
    rate: float = 25.0
    warm_up: float = 20.0
    idle: float = 15.0
    patience: float = 40.0
    haste: float = 1.0
    has_quick_probes: bool = False


class Load:
    """Clients."""

    def __init__(
        self, client: Client, asker: Asker, ledger: Ledger, engines: list[Engine], dice: random.Random
    ) -> None:
        self._engines = engines
        self._client = client
        self._asker = asker
        self._ledger = ledger
        self._dice = dice
        self._begun = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self.most = 0
        """Requests that were under way at once."""

    async def run(self, rate: float, seconds: float) -> None:
        """Ask at random times, and return when the last one has been asked."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            task = asyncio.create_task(self._one())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self.most = max(self.most, len(self._tasks))
            await asyncio.sleep(self._dice.expovariate(rate))

    async def _one(self) -> None:
        began = time.monotonic()
        at = began - self._begun
        try:
            ask = self._asker.next()
            answer = await self._client.ask(ask)
            was_anybody_well = any(engine.bad_at < began and not engine.hurt for engine in self._engines)
            self._ledger.add(ask, answer, at, was_anybody_well=was_anybody_well)
        except Exception as error:
            self._ledger.violations.append(f"{at:.1f} s: the client itself has failed: {error!r}")

    async def finish(self) -> None:
        """Return once all have ended."""
        await asyncio.gather(*self._tasks)


async def chaos(plan: Plan, folder: Path) -> dict[str, Any]:
    """Do it; the report has ``violations``, which should be none."""
    dice = random.Random(plan.seed)
    flags = ("--decode-ms", "15", "--prefill-tps", "50000", "--blocks", "4000")
    engines = [Engine(str(at), folder, *flags, has_saboteur=at % 2 == 1) for at in range(4)]
    front: Front | None = None
    watching: list[asyncio.Task[None]] = []
    try:
        for engine in engines:
            if engine.saboteur is not None:
                await engine.saboteur.start()
            engine.start()
        for engine in engines:
            await engine.answers()
        more = QUICK_PROBES if plan.has_quick_probes else ""
        front = Front([engine.url for engine in engines], folder, plan.processes, plan.idle, more)
        await front.wait_ready(len(engines))
        watching = [asyncio.create_task(engine.watch()) for engine in engines]
        return await _suffer(plan, engines, front, dice)
    finally:
        for task in watching:
            task.cancel()
        if front is not None and front.process.poll() is None:
            front.stop()
        for engine in engines:
            if hasattr(engine, "process"):
                engine.kill()
            if engine.saboteur is not None:
                await engine.saboteur.stop()


async def _suffer(plan: Plan, engines: list[Engine], front: Front, dice: random.Random) -> dict[str, Any]:
    ledger = Ledger()
    client = Client(("127.0.0.1", front.port), random.Random(dice.random()), plan.patience, plan.idle + 15.0)
    load = Load(client, Asker(random.Random(dice.random())), ledger, engines, random.Random(dice.random()))
    await load.run(plan.rate, plan.warm_up)
    await load.finish()
    await front.until(front.is_idle)
    before = await front.uses()

    faults = Faults(engines, front, random.Random(dice.random()), haste=plan.haste)
    hurting = asyncio.create_task(faults.run())
    await load.run(plan.rate, plan.seconds)
    hurting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await hurting
    violations = await faults.stop()
    await load.finish()
    await client.close()

    await front.wait_ready(len(engines))
    await front.until(front.is_idle)
    violations += ledger.violations
    after = await _settled(front, before)
    violations += _grown(before, after)
    retries = await front.counts("kvlb_retries_total", "fault")
    failures = await front.counts("kvlb_replica_failures_total", "fault")
    code, log = await asyncio.to_thread(front.stop)
    violations += [f"kvlb has ended with {code}"] if code else []
    violations += [line for line in log.splitlines() if "Traceback" in line or "Task exception" in line]
    waited = sorted(ledger.waited)
    return {
        **msgspec.structs.asdict(plan),
        "requests": sum(ledger.endings.values()),
        "endings": dict(sorted(ledger.endings.items())),
        "excused": ledger.excused,
        "most_at_once": load.most,
        "stale_connections": client.stale,
        "first_byte_seconds": {
            "p50": round(waited[len(waited) // 2], 3),
            "p99": round(waited[len(waited) * 99 // 100], 3),
            "max": round(ledger.longest_first, 3),
        },
        "faults": dict(sorted(faults.counts.items())),
        "retries": retries,
        "replica_failures": failures,
        "before": msgspec.to_builtins(before),
        "after": msgspec.to_builtins(after),
        "violations": violations,
        "what_was_done": faults.told if violations else [],
    }


async def _settled(front: Front, before: dict[str, Use]) -> dict[str, Use]:
    """What is used once kept connections have had time to be closed."""
    with contextlib.suppress(AssertionError):
        await front.until(front.uses, lambda now: not _leaks(before, now), 45.0)
    return await front.uses()


def _leaks(before: dict[str, Use], after: dict[str, Use]) -> list[str]:
    """Sockets and tasks that were not there before; a few come and go with probes."""
    found = []
    for role, use in after.items():
        was = before[role]
        if use.files > was.files + 6:
            found.append(f"{role}: {use.files} open files after {was.files}")
        if use.tasks is None or was.tasks is None or use.tasks > was.tasks + 4:
            found.append(f"{role}: {use.tasks} tasks after {was.tasks}")
    return found


def _grown(before: dict[str, Use], after: dict[str, Use]) -> list[str]:
    found = _leaks(before, after)
    for role, use in after.items():
        was = before[role]
        if use.rss > was.rss + GROWN_KIB:
            found.append(f"{role}: {use.rss} KiB after {was.rss}")
        if use.blocks is None or was.blocks is None or use.blocks > was.blocks + GROWN_BLOCKS:
            found.append(f"{role}: {use.blocks} of Python's blocks after {was.blocks}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=25.0, help="requests a second (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="where logs are kept (default: nowhere)")
    args = parser.parse_args()
    plan = Plan(args.minutes * 60, args.processes, args.seed, args.rate)
    with tempfile.TemporaryDirectory(prefix="kvlb-chaos-") as folder:
        if args.folder is not None:
            args.folder.mkdir(parents=True, exist_ok=True)
        told = asyncio.run(chaos(plan, args.folder or Path(folder)))
    print(json.dumps(told, indent=2))
    return 1 if told["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
