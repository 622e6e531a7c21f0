"""Asks the other gateways what they have under way, again and again.

Knows HTTP, tasks and clocks. What an answer means, and how long, is decided by ``balancer.siblings.exchange``. No request ever
waits for any of this: a sibling that is down, slow, or speaks of something else costs a line in the log, and counts nothing.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Final

import aiohttp

from balancer.http.reasons import reason
from balancer.siblings.book import Told
from balancer.siblings.exchange import Asking, Exchange
from balancer.siblings.finding import Finder
from balancer.siblings.report import MAX_BYTES, PATH, Report, ReportError, decode
from balancer.siblings.settings import SiblingSettings
from balancer.warm import ASKER

log = logging.getLogger(__name__)

MOST_PAUSE: Final = 5.0
"""Seconds; after so many one is asked again that has not answered several times, or is this gateway itself."""

TELL_AGAIN_SECONDS: Final = 60.0
"""For which the same is not said again of an address that does not stay as it is."""

STANDS_SECONDS: Final = 5.0
"""Who has answered for so long is back: what is said of it then is new, whatever was said before."""

_NEEDS_KEY: Final = frozenset({401, 403})


class _Failed(Exception):
    """No report came. ``result`` is what that counts as; with ``is_gone`` nobody is there."""

    def __init__(self, problem: str, result: str = "failed", *, is_gone: bool = False) -> None:
        super().__init__(problem)
        self.result = result
        self.is_gone = is_gone


class Siblings:
    """All siblings of this gateway. ``run`` asks them until it is cancelled."""

    def __init__(self, settings: SiblingSettings, exchange: Exchange, finder: Finder | None = None) -> None:
        self.exchange = exchange
        self.finder = finder or Finder(settings)
        self._settings = settings
        exchange.book.set(settings.urls)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._said: dict[tuple[str, str], float] = {}
        """Until when this is not said again of this address."""
        self._last: dict[str, str] = {}
        """What was said of it last."""
        self._answers: dict[str, tuple[float, str]] = {}
        """Since when it answers, and as whom; none of who does not."""
        self._headers = {ASKER: exchange.book.own}
        if settings.api_key is not None:
            self._headers["Authorization"] = f"Bearer {settings.api_key}"

    @property
    def has_any(self) -> bool:
        """Whether any were named in the settings."""
        return self._settings.has_any

    @property
    def problem(self) -> str | None:
        """Why the list of addresses may be out of date."""
        return self.finder.problem

    def told(self) -> list[Told]:
        """How each address stands."""
        return self.exchange.book.told(time.monotonic())

    def refresh(self) -> None:
        """What has been told gets older; call it every so often."""
        if self.has_any:
            self.exchange.refresh(time.monotonic())

    async def to_take_over_from(self, session: aiohttp.ClientSession) -> list[str]:
        """Addresses of other gateways that answer, at the start; it takes no longer than two answers may.

        None where no index is to be taken over.
        """
        if not (self.has_any and self._settings.prewarm):
            return []
        found: list[str] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.timeout_seconds):
                found = await self.finder.once()
        self.exchange.book.set(found)
        await asyncio.gather(*(self._ask(session, url) for url in found))
        answering = [each.address for each in self.told() if each.age is not None]
        log.info("siblings: %d addresses, %d other gateways answer", len(found), len(answering))
        return answering

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Find them and ask them, until cancelled."""
        if not self.has_any:
            return
        try:
            async for urls in self.finder.watch():
                self._follow(session, urls)
            await asyncio.Event().wait()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _follow(self, session: aiohttp.ClientSession, urls: Sequence[str]) -> None:
        self.exchange.book.set(urls)
        for url in [url for url in self._tasks if url not in urls]:
            log.info("%s: is no sibling any more", url)
            self._tasks.pop(url).cancel()
            self._last.pop(url, None)
            self._answers.pop(url, None)
        for url in urls:
            if url not in self._tasks:
                self._tasks[url] = asyncio.create_task(self._keep_asking(session, url))

    async def _keep_asking(self, session: aiohttp.ClientSession, url: str) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            begun = loop.time()
            try:
                has_answered = await self._ask(session, url)
            except Exception:  # a fault of kvlb's own: neither requests nor other siblings are to feel it
                log.exception("%s: asking this sibling has failed; it goes on", url)
                has_answered = False
            failures = 0 if has_answered else failures + 1
            pause = self.exchange.book.pause(time.monotonic())
            if failures:
                pause = max(pause, min(MOST_PAUSE, self._settings.interval_seconds * 2 ** min(failures, 10)))
            elif self.exchange.book.is_self(url):
                pause = MOST_PAUSE
            await asyncio.sleep(max(0.0, begun + pause - loop.time()))

    async def _ask(self, session: aiohttp.ClientSession, url: str) -> bool:
        """Ask one of them once; whether a report came."""
        asking = self.exchange.asking(url, time.monotonic())
        try:
            report = await self._report(session, asking)
        except _Failed as error:
            self.exchange.failed(asking, str(error), error.result, time.monotonic(), is_gone=error.is_gone)
            self._answers.pop(url, None)
            self._say(logging.WARNING, url, str(error))
            return False
        now = time.monotonic()
        news = self.exchange.heard(asking, report, now)
        since, told = self._answers.get(url, (now, ""))
        self._answers[url] = since, news or told
        self._say(logging.INFO, url, news or told)
        if now - since >= STANDS_SECONDS:
            self._said = {(of, said): until for (of, said), until in self._said.items() if of != url}
        return True

    async def _report(self, session: aiohttp.ClientSession, asking: Asking) -> Report:
        """Raises ``_Failed``."""
        query = {"gateway": asking.after.gateway, "after": str(asking.after.mark)}
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_seconds)
        try:
            async with session.get(
                asking.address.rstrip("/") + PATH,
                params=query,
                headers=self._headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                if response.status in _NEEDS_KEY:
                    raise _Failed("it asks for a key; give siblings.api_key one that has admin = true there", "refused")
                if response.status != 200:
                    raise _Failed(
                        f"it answers {PATH} with {response.status}: is it a gateway, of this version?", "refused"
                    )
                body = bytearray()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > MAX_BYTES:
                        response.close()
                        break
            return decode(bytes(body))
        except ReportError as error:
            raise _Failed(f"its report {error}", "refused") from error
        except (aiohttp.ClientConnectorError, ConnectionRefusedError) as error:
            raise _Failed(reason(error), is_gone=True) from error
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise _Failed(reason(error)) from error

    def _say(self, level: int, url: str, news: str) -> None:
        """One line for how it stands, unless that is what was said last, or has just been said."""
        now = time.monotonic()
        if not news or news == self._last.get(url) or now < self._said.get((url, news), 0.0):
            return
        self._last[url] = news
        self._said = {key: until for key, until in self._said.items() if until > now}
        self._said[url, news] = now + TELL_AGAIN_SECONDS
        log.log(level, "%s: %s", url, news)
