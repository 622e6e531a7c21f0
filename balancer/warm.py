"""Warm restarts: the index in a file and between gateways.

Knows the file, other gateways, clocks and the order of things: at the start the first source that gives a whole snapshot is
used, then one is saved every so often and at the end. Never knows what is in it (``balancer.handover``). A snapshot that cannot
be read or written is one line in the log; kvlb serves without it.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from balancer import snapshot_file
from balancer.facts import Described
from balancer.handover import Handover
from balancer.http.reasons import reason
from balancer.settings import SnapshotSettings
from balancer.words import counted
from indexer.errors import SnapshotError
from indexer.snapshot import Image, write
from indexer.stream import Position

log = logging.getLogger(__name__)

PATH: Final = "/kvlb/snapshot"
ASKER: Final = "x-kvlb-asker"
"""Header of that question: a name that each gateway draws for itself, by which it knows its own question."""

CONTENT_TYPE: Final = "application/vnd.kvlb.snapshot"

SLICE_SECONDS: Final = 0.004
"""For which copying keeps the loop; not less, for events wait until the whole copy is made."""

READ_BYTES: Final = 128 * 1024
SIBLING_CONNECT_SECONDS: Final = 2.0
SIBLING_SILENCE_SECONDS: Final = 5.0

CLOCKS_DIFFER_SECONDS: Final = 300.0
"""How far another gateway's clock may be ahead of ours, or our own have been set back."""

UNCLAIMED_SECONDS: Final = 600.0
"""How long blocks wait for an endpoint that does not answer: it may be down, and be another engine when it is back."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """How warm starts stand; ``saved_at`` in seconds since 1970, None until then."""

    path: str | None
    is_loaded: bool
    taken_over_from: str | None
    taken_over_blocks: int
    problem: str | None
    saves: int
    failures: int
    saved_at: float | None
    bytes: int
    seconds: float


class WarmStart:
    """Loads, saves and gives snapshots. ``run`` saves until it is cancelled; ``save`` once more at the end is the caller's.

    As long as a block of ``hold()`` lasts, no events are applied to the index.
    """

    def __init__(
        self, settings: SnapshotSettings, handover: Handover, hold: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.saved_at: float | None = None
        """Of the last one that was written whole, on the monotonic clock."""
        self.size = 0
        """Bytes of it."""
        self.duration = 0.0
        """Seconds that it took."""
        self.saves = 0
        self.failures = 0
        self.taken_over_from: str | None = None
        """The file or the sibling that the start found a snapshot in."""
        self.problem: str | None = None
        """Why the last sibling or file that was asked has not given its snapshot."""
        self.restored_blocks = 0
        """Blocks on GPU that were in it."""
        self.is_loaded = False
        """Whether the start is over, so that there is an index to save and to give."""
        self.name = secrets.token_hex(8)
        self._settings = settings
        self._handover = handover
        self._hold = hold
        self._copied = ""
        self._one_at_a_time = asyncio.Lock()
        self._drop_at: float | None = None
        self._has_told_failure = False

    # At the start

    async def load(
        self, session: aiohttp.ClientSession, found: Sequence[str] = (), found_key: str | None = None
    ) -> None:
        """Take over from the first sibling that has anything, else from the file, else begin with nothing.

        ``found`` are siblings that nobody has named and that have just answered, ``found_key`` the key for them; all of them
        together get the time that one gets that is named.
        """
        path = None if self._settings.path is None else Path(self._settings.path)
        if path is not None:
            await asyncio.to_thread(snapshot_file.remove_leftovers, path)
        has_index = await self._load_from_siblings(session) or await self._load_from_found(session, found, found_key)
        if not has_index and path is not None:
            await self._load(str(path), snapshot_file.read(path))
        self.is_loaded = True

    async def _load_from_siblings(self, session: aiohttp.ClientSession) -> bool:
        seconds = self._settings.sibling_timeout_seconds
        for url in self._settings.siblings:
            log.info("asking %s for its index (at most %g s)", url, seconds)
            if await self._load(url, self._from_sibling(session, url, self._settings.sibling_api_key, seconds)):
                return True
        return False

    async def _load_from_found(self, session: aiohttp.ClientSession, found: Sequence[str], key: str | None) -> bool:
        until = time.monotonic() + self._settings.sibling_timeout_seconds
        for url in found:
            seconds = until - time.monotonic()
            if seconds <= 0:
                return False
            log.info("asking %s for its index (at most %.3g s)", url, seconds)
            if await self._load(url, self._from_sibling(session, url, key, seconds)):
                return True
        return False

    async def _load(self, name: str, source: AsyncGenerator[bytes, None]) -> bool:
        begun = time.monotonic()
        now = time.time()
        restoration = self._handover.restoration(now - self._settings.max_age_seconds, now + CLOCKS_DIFFER_SECONDS)
        try:
            async with contextlib.aclosing(source):
                async for data in source:
                    restoration.feed(data)
                    await asyncio.sleep(0)
            self.restored_blocks = self._handover.accept(restoration.finish())
        except FileNotFoundError:
            log.info("%s: there is no snapshot yet", name)
            return False
        except (SnapshotError, OSError, aiohttp.ClientError, TimeoutError) as error:
            why = str(error) if isinstance(error, SnapshotError) else reason(error)
            self.problem = f"{name}: {why}"
            log.warning("%s: the snapshot is not used: %s", name, why)
            self._handover.abandon()
            return False
        except Exception:
            log.exception("%s: the snapshot is not used, for a fault of kvlb's own", name)
            self._handover.abandon()
            return False
        self.taken_over_from = name
        self._drop_at = begun + UNCLAIMED_SECONDS
        log.info(
            "%s: took over %s of %s, as of %.0f s ago, in %.1f s",
            name,
            counted(self.restored_blocks, "block"),
            counted(len(self._handover.waiting), "replica"),
            max(0.0, time.time() - restoration.created),
            time.monotonic() - begun,
        )
        return True

    async def _from_sibling(
        self, session: aiohttp.ClientSession, url: str, key: str | None, seconds: float
    ) -> AsyncGenerator[bytes, None]:
        timeout = aiohttp.ClientTimeout(
            total=seconds,
            sock_connect=SIBLING_CONNECT_SECONDS,
            sock_read=SIBLING_SILENCE_SECONDS,
        )
        asked, headers = url.rstrip("/") + PATH, {ASKER: self.name}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        async with session.get(asked, headers=headers, timeout=timeout, allow_redirects=False) as response:
            if response.status == 409:
                raise SnapshotError("it is this gateway itself; name another one with --sibling")
            if response.status != 200 or response.content_type != CONTENT_TYPE:
                raise SnapshotError(f"it answers {PATH} with {response.status} and {response.content_type}")
            async for data in response.content.iter_chunked(READ_BYTES):
                yield data

    def adopt(self, described: Described) -> Position | None:
        """A replica has become known: where its events are to be resumed, if anything was restored of it."""
        position, problem = self._handover.adopt(described)
        if problem is not None:
            log.info("%s: begins cold: %s", described.replica.id, problem)
        return position

    def described(self, endpoint: str) -> None:
        """The endpoint has told all its replicas."""
        for replica in self._handover.drop(endpoint):
            log.info("%s: is not there any more; what a snapshot has of it is dropped", replica)

    # While it runs

    def told(self) -> Told:
        """All this for people."""
        age = None if self.saved_at is None else time.monotonic() - self.saved_at
        return Told(
            path=self._settings.path,
            is_loaded=self.is_loaded,
            taken_over_from=self.taken_over_from,
            taken_over_blocks=self.restored_blocks,
            problem=self.problem,
            saves=self.saves,
            failures=self.failures,
            saved_at=None if age is None else time.time() - age,
            bytes=self.size,
            seconds=self.duration,
        )

    async def run(self) -> None:
        """Save every so often, and drop what nobody comes for."""
        while True:
            await asyncio.sleep(self._settings.interval_seconds)
            if self._drop_at is not None and time.monotonic() > self._drop_at:
                self._drop_at = None
                for replica in self._handover.drop_all():
                    log.info("%s: has not come back; what a snapshot has of it is dropped", replica)
            await self.save()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """A snapshot of now, a few milliseconds at a time; only one is made at once, others wait.

        Close the iterator (``contextlib.aclosing``), or nobody else gets one.
        """
        async with self._one_at_a_time:
            for piece in write(await self._image()):
                yield piece
                await asyncio.sleep(0)

    async def _image(self) -> Image:
        with self._hold():
            taking = self._handover.take(time.time())
            until = time.monotonic() + SLICE_SECONDS
            while True:
                try:
                    next(taking)
                except StopIteration as end:
                    image: Image = end.value
                    replicas = {each.replica for each in image.replicas}
                    blocks = self._handover.blocks(replicas)
                    self._copied = f"{counted(blocks, 'block')} of {counted(len(replicas), 'replica')}"
                    return image
                if time.monotonic() > until:
                    await asyncio.sleep(0)
                    until = time.monotonic() + SLICE_SECONDS

    async def save(self, level: int = logging.DEBUG) -> None:
        """Write the file, if there is to be one: all of it or nothing. What was not loaded yet is not saved over."""
        if self._settings.path is None or not self.is_loaded:
            return
        begun = time.monotonic()
        path = Path(self._settings.path)
        try:
            self.size = await snapshot_file.write(path, self.pieces())
        except OSError as error:
            self.failures += 1
            if not self._has_told_failure:
                log.warning("%s: the snapshot cannot be written: %s; it is tried again", path, error.strerror or error)
            self._has_told_failure = True
            return
        except Exception:
            self.failures += 1
            log.exception("%s: the snapshot could not be made", path)
            return
        self._has_told_failure = False
        self.saves += 1
        self.saved_at = time.monotonic()
        self.duration = self.saved_at - begun
        log.log(level, "saved %s to %s", self._copied, path)
