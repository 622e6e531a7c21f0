"""Watches one endpoint: learns what its engine is, and whether it answers.

Knows HTTP questions and their time limits. What the answers mean is read by ``facts``; what follows from them is for whoever
gave the two callbacks. An endpoint that is not up yet is no error: it is asked again until it answers.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from balancer import facts
from balancer.facts import Described, EngineFacts, describe
from balancer.fleet import Status
from balancer.http.reasons import reason
from balancer.kv_connectors import read_connectors
from balancer.pulse import Pulse, read_pulse
from balancer.settings import HealthSettings, ReplicaSettings
from balancer.signals import Sign, Signal
from balancer.upstream import whole

log = logging.getLogger(__name__)

UNASKED: Final = "has not answered yet"

KEY_NEEDED: Final = frozenset({401, 403})
"""Answers to who has no key, or a wrong one."""


class Watcher:
    """Runs until cancelled. ``is_known`` says whether the engine has ever told what it is.

    ``learned`` is called when it has told something new, and whenever it was lost and is back; ``felt`` with every look at
    its metrics, after ``learned``.
    """

    def __init__(
        self,
        replica: ReplicaSettings,
        settings: HealthSettings,
        session: aiohttp.ClientSession,
        headers: Mapping[str, str],
        learned: Callable[[str, list[Described]], None],
        status: Callable[[str, Status], None],
        felt: Callable[[str, Pulse], None] | None = None,
    ) -> None:
        self.replica = replica
        self.facts = EngineFacts()
        self.is_known = False
        self.clock_skew: float | None = None
        """The endpoint's clock minus ours, in seconds; None while it has not told the time. HTTP tells it to a second."""
        self.problem: str | None = UNASKED
        """Why the endpoint cannot be used, or None."""
        self.refusal: int | None = None
        """The status with which it has refused to tell what it is, or None: it has told, or has not answered."""
        self.is_judged = False
        """Whether it has been found out if it can be used: a probe without an answer is none."""
        self.is_heard = False
        """Whether it has ever answered, if only with an error."""
        self.signal = Signal.PROBE
        """How that was noticed."""
        self._settings = settings
        self._session = session
        self._headers = headers
        self._learned = learned
        self._status = status
        self._felt = felt
        self._pulse = Pulse()
        self._failures = 0
        self._is_up = False
        self._hurry = asyncio.Event()
        self._learn_at = 0.0  # on the loop's clock: when to ask a running engine again what it is
        self._was_reported = False

    @property
    def sign(self) -> Sign | None:
        """The problem, and how it was noticed."""
        return None if self.problem is None else Sign(self.signal, self.problem)

    def suspect(self) -> None:
        """A request found nobody there: out of use now, and probed at once."""
        self._down("refused a request's connection", Signal.CONNECTION)
        self._hurry.set()

    def refresh(self) -> None:
        """Something has happened there that may mean another engine: ask at once what it is."""
        self._learn_at = 0.0
        self._hurry.set()

    async def run(self) -> None:
        while True:
            await self._look()
            pause = self._settings.interval_seconds * (0.9 + 0.2 * random.random())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
                await asyncio.sleep(0.05)  # an endpoint that refuses in a loop is not asked in a loop
            self._hurry.clear()

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                if self._is_up and asyncio.get_running_loop().time() < self._learn_at:
                    await self._get("/health", required=True)
                else:
                    await self._learn()
        except Exception as error:  # whatever the endpoint does to us, it is watched on
            if not isinstance(error, FORESEEN):
                log.exception("%s: a probe failed in a way that was not foreseen", self.replica.url)
            self._failed(error)
        else:
            await self._feel()
            self._up()

    async def _feel(self) -> None:
        """Take the pulse. A page of metrics that does not come says nothing of the engine's health."""
        self._pulse = Pulse()
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                self._pulse = read_pulse(await self._get("/metrics", required=True))
            if self._felt is not None:
                self._felt(self.replica.url, self._pulse)
        except Exception as error:
            if not isinstance(error, FORESEEN):
                log.exception("%s: a look at its metrics failed in a way that was not foreseen", self.replica.url)

    async def _learn(self) -> None:
        await self._get("/health", required=True)
        models = await self._get("/v1/models", required=True)
        version, metrics, sources = await asyncio.gather(
            self._get("/version"), self._get("/metrics"), self._get("/kv_event_sources")
        )
        known = self.facts
        self.facts = EngineFacts(
            models=facts.read_models(models),
            listing=facts.read_listing(models),
            version=facts.read_version(version),
            cache=facts.read_cache_config(metrics),
            sources=facts.read_event_sources(sources, urlsplit(self.replica.url).hostname or ""),
            connectors=read_connectors(metrics),
        )
        self._learn_at = asyncio.get_running_loop().time() + self._settings.relearn_seconds
        if self.is_known and self._is_up and self.facts.tells_the_same_as(known):
            return
        self.is_known = self.is_heard = True
        self._learned(self.replica.url, describe(self.replica, self.facts))

    async def _get(self, path: str, *, required: bool = False) -> bytes:
        async with self._session.get(self.replica.url + path, headers=self._headers) as response:
            told = skew(response.headers.get("Date"), time.time())
            self.clock_skew = self.clock_skew if told is None else told
            if response.status == 200:
                return await whole(response)
            if required:
                raise _Refused(path, response.status, has_key="Authorization" in self._headers)
            return b""

    def _up(self) -> None:
        self._failures = 0
        self.is_judged = True
        self.refusal = None
        self.problem = "is asleep; wake it up (POST /wake_up)" if self._pulse.asleep else None
        self.signal = Signal.PROBE
        self._was_reported = False
        if not self._is_up:
            self._is_up = True
            log.info("%s: serves %s", self.replica.url, ", ".join(card.id for card in self.facts.models))
        self._status(self.replica.url, Status.ASLEEP if self._pulse.asleep else Status.READY)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self.refusal = error.status if isinstance(error, _Refused) else None
        self.is_heard |= isinstance(error, _Refused | msgspec.MsgspecError | aiohttp.ClientResponseError)
        refused = isinstance(error, aiohttp.ClientConnectorError)
        self.is_judged |= refused or isinstance(error, _Refused) or self._failures >= self._settings.failures
        if refused or not self._is_up or self._failures >= self._settings.failures:
            self._down(reason(error))

    def _down(self, problem: str, signal: Signal = Signal.PROBE) -> None:
        self.problem, self.signal = problem, signal
        if not self._was_reported:
            self._was_reported = True
            log.warning("%s: cannot be used: %s", self.replica.url, problem)
        self._is_up = False
        self._status(self.replica.url, Status.LOST)


def skew(date: str | None, now: float) -> float | None:
    """How far the clock that wrote this HTTP date is ahead of ``now`` (seconds since 1970); None where it is no date."""
    try:
        told = None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
    return None if told is None else told + 0.5 - now  # it is cut to whole seconds: half a second is the middle


class _Refused(Exception):
    """The endpoint answers, but not as an engine that can be used."""

    def __init__(self, path: str, status: int, *, has_key: bool) -> None:
        self.status = status
        if status in KEY_NEEDED:
            told = "refuses the key" if has_key else "asks for a key"
            super().__init__(f"{told} (answers {path} with {status}); set upstream.api_key to the engine's")
        else:
            super().__init__(f"answers {path} with {status}")


FORESEEN: Final = (TimeoutError, aiohttp.ClientError, OSError, msgspec.MsgspecError, _Refused)
"""What endpoints do to those who ask them."""
