"""One discovery at work: its news checked, told once, and joined with what the settings name.

Knows lists and time. Never knows what becomes of an endpoint. Whatever a discovery does, the last list that could be used
stays.
"""

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast

from balancer.addresses import place
from balancer.discovery.base import Discovery, Failed, Found
from balancer.errors import ConfigError
from balancer.settings import ReplicaSettings, check_replicas
from balancer.words import counted

log = logging.getLogger(__name__)

BEGIN_ANEW_SECONDS: Final = 1.0
"""After a discovery has failed in a way of its own; doubled each time, up to a minute."""

MAX_TOLD: Final = 10
"""Endpoints that are named in one line of the log."""


class Follower:
    """Follows one discovery until cancelled. ``changed`` is called with every list that is another than the last, or has others
    behind the same URLs.

    ``given`` are the endpoints of the settings, and the first list: they are always there, and what they say of one overrules
    what is found.
    """

    def __init__(
        self,
        discovery: Discovery,
        given: tuple[ReplicaSettings, ...],
        changed: Callable[[tuple[ReplicaSettings, ...]], None],
    ) -> None:
        self.problem: str | None = None
        """Why the list may be out of date, or None."""
        self.has_told = asyncio.Event()
        """Set when anything has been heard."""
        self.lives: dict[str, str] = {}
        """Who is behind a URL of the last list, where the discovery names that (``Found.lives``)."""
        self.reason: str | None = None
        """What the last list was made of, in the discovery's words."""
        self.unused: tuple[str, ...] = ()
        """Some that were seen and are not used now, with why (``Found.unused``)."""
        self.counts: Counter[str] = Counter()
        """``changed``, ``failed``."""
        self._discovery = discovery
        self._given = given
        self._changed = changed
        self._last = given

    def __repr__(self) -> str:
        return f"<Follower of {self._discovery!r}, {len(self._last)} endpoints>"

    @property
    def found(self) -> int:
        """How many endpoints there are beside those of the settings."""
        return len(self._last) - len(self._given)

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                async with contextlib.aclosing(cast(Any, self._discovery.watch())) as news:
                    async for each in news:
                        self._heard(each)
                        failures = 0
                return
            except Exception as error:
                log.exception("discovery: it has failed in a way that was not foreseen, and is begun anew")
                self._failed(f"{type(error).__name__}: {error}")
            failures += 1
            await asyncio.sleep(min(60.0, BEGIN_ANEW_SECONDS * 2 ** min(failures - 1, 6)) * (0.5 + random.random() / 2))

    def _heard(self, news: Found | Failed) -> None:
        if isinstance(news, Failed):
            self._failed(news.reason)
            return
        named = {place(replica.url) for replica in self._given}
        replicas = self._given + tuple(each for each in news.replicas if place(each.url) not in named)
        try:
            check_replicas(replicas)
        except ConfigError as error:
            self._failed(f"{error}; what was found last is kept")
            return
        if news.problem is not None:
            self._complain(news.problem)
        elif self.problem is not None:
            log.info("discovery: works again")
            self.problem = None
        is_other, self.unused = news.unused != self.unused, news.unused
        self.reason = news.reason
        if replicas != self._last or news.lives != self.lives:
            before, self._last, self.lives = self._last, replicas, news.lives
            self.counts["changed"] += 1
            self._changed(replicas)
            _tell(before, replicas, news)
        elif is_other and news.unused:
            log.info("discovery: %s; not used: %s", news.reason, ", ".join(news.unused))
        self.has_told.set()

    def _failed(self, reason: str) -> None:
        self.counts["failed"] += 1
        self._complain(reason)
        self.has_told.set()

    def _complain(self, reason: str) -> None:
        if reason != self.problem:
            log.warning("discovery: %s", reason)
        self.problem = reason


def _tell(before: tuple[ReplicaSettings, ...], now: tuple[ReplicaSettings, ...], news: Found) -> None:
    """One line for one change, however many endpoints it is about."""
    old, new = {each.url for each in before}, {each.url for each in now}
    number = counted(len(new), "endpoint")
    unused = f"; not used: {', '.join(news.unused)}" if news.unused else ""
    come, gone = _some(new - old), _some(old - new)
    log.info("discovery: %s: %s; come: %s; gone: %s%s", news.reason, number, come, gone, unused)


def _some(urls: set[str]) -> str:
    shown = sorted(urls)[:MAX_TOLD]
    more = f" and {len(urls) - MAX_TOLD} more" if len(urls) > MAX_TOLD else ""
    return (", ".join(shown) or "none") + more
