"""What goes wrong, and when: a schedule that a seed decides, with one replica at the least that nothing is wrong with.

Knows the kinds of faults and how long they last, in seconds. Never knows what requests come of it.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

from tests.chaos.engines import Engine
from tests.chaos.front import Front

SETTLE: Final = 5.0
"""Seconds after which a replica that kvlb has found again is counted on."""


class Faults:
    """Hurts engines and kvlb's own processes until it is cancelled. ``told`` is what has been done, for people."""

    def __init__(self, engines: list[Engine], front: Front, dice: random.Random, *, haste: float = 1.0) -> None:
        """Everything lasts ``1 / haste`` times as long."""
        self._engines = engines
        self._front = front
        self._dice = dice
        self._haste = haste
        self._begun = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._front_is_hurt = False
        self.counts: Counter[str] = Counter()
        self.told: list[str] = []

    async def run(self) -> None:
        kinds: dict[str, Callable[[Engine], Awaitable[None]]] = {
            "killed": self._killed,
            "frozen": self._frozen,
            "frozen and killed": self._frozen_and_killed,
            "terminated": self._terminated,
        }
        sabotage: dict[str, Callable[[Engine], Awaitable[None]]] = {
            "reset": self._reset,
            "cut": self._cut,
            "stalled": self._stalled,
            "refused": self._refused,
        }
        while True:
            await self._pause(1.0, 4.0)
            if self._dice.random() < 0.2 and not self._front_is_hurt:
                self._begin(self._hurt_front())
                continue
            well = [each for each in self._engines if not each.hurt]
            settled = [each for each in well if time.monotonic() - each.bad_at > SETTLE / self._haste]
            victim = self._dice.choice(well) if well else None
            if victim is None or not [each for each in settled if each is not victim]:
                continue
            all_kinds = kinds | (sabotage if victim.saboteur is not None else {})
            kind = self._dice.choice(sorted(all_kinds))
            self._note(f"{victim.name} {kind}", kind)
            victim.hurt = kind
            self._begin(self._hurt(victim, all_kinds[kind]))

    async def stop(self) -> list[str]:
        """What has begun ends: everybody is well then. Returns what could not be ended, for people."""
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        return [f"{type(each).__name__}: {each}" for each in ended if isinstance(each, BaseException)]

    def _begin(self, doing: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(doing)
        self._tasks.add(task)

    def _note(self, what: str, kind: str) -> None:
        self.counts[kind] += 1
        self.told.append(f"{time.monotonic() - self._begun:.1f} s: {what}")

    async def _pause(self, least: float, most: float) -> None:
        await asyncio.sleep(self._dice.uniform(least, most) / self._haste)

    async def _hurt(self, victim: Engine, do: Callable[[Engine], Awaitable[None]]) -> None:
        await do(victim)
        await victim.answers()
        await self._front.wait_found(victim.url)
        victim.hurt, victim.bad_at = "", time.monotonic()

    # Replicas

    async def _killed(self, victim: Engine) -> None:
        victim.kill()
        await self._pause(0.0, 6.0)
        victim.start()

    async def _frozen(self, victim: Engine) -> None:
        victim.signal(signal.SIGSTOP)
        await self._pause(0.5, 25.0)
        victim.signal(signal.SIGCONT)

    async def _frozen_and_killed(self, victim: Engine) -> None:
        victim.signal(signal.SIGSTOP)
        await self._pause(0.5, 15.0)
        await self._killed(victim)

    async def _terminated(self, victim: Engine) -> None:
        await victim.terminate()
        await self._pause(0.0, 6.0)
        victim.start()

    async def _reset(self, victim: Engine) -> None:
        assert victim.saboteur is not None
        victim.saboteur.break_all(clean=False)

    async def _cut(self, victim: Engine) -> None:
        assert victim.saboteur is not None
        victim.saboteur.break_all(clean=True)

    async def _stalled(self, victim: Engine) -> None:
        assert victim.saboteur is not None
        victim.saboteur.stall(flows=False)
        await self._pause(0.5, 20.0)
        victim.saboteur.stall(flows=True)

    async def _refused(self, victim: Engine) -> None:
        assert victim.saboteur is not None
        victim.saboteur.refuses = True
        victim.saboteur.break_all(clean=False)
        await self._pause(0.5, 6.0)
        victim.saboteur.refuses = False

    # kvlb's own processes

    async def _hurt_front(self) -> None:
        kinds = ["hangup"] if self._front.processes == 1 else ["brain killed", "brain frozen", "hangup"]
        kind = self._dice.choice(kinds)
        self._front_is_hurt = True
        self._note(kind, kind)
        try:
            if kind == "hangup":
                await self._front.hang_up()
            else:
                brain = await self._front.brain()
                os.kill(brain, signal.SIGKILL if kind == "brain killed" else signal.SIGSTOP)
                if kind == "brain frozen":
                    await self._pause(1.0, 10.0)
                    os.kill(brain, signal.SIGCONT)
            await self._front.wait_whole()
        finally:
            self._front_is_hurt = False
