"""Warm restarts: the index in a file and between gateways.

Knows files, other gateways, clocks and the order of things: at the start the first source that gives a whole snapshot is used,
then one is saved every so often and at the end. Never knows what is in it (``balancer.handover``). A snapshot that cannot be
read or written is one line in the log; kvlb serves without it.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Final, TypeVar

import aiohttp

from balancer.facts import Described
from balancer.handover import Handover
from balancer.settings import SnapshotSettings
from indexer.errors import SnapshotError
from indexer.snapshot import Image, write
from indexer.stream import Position

log = logging.getLogger(__name__)

T = TypeVar("T")

PATH: Final = "/kvlb/snapshot"
CONTENT_TYPE: Final = "application/vnd.kvlb.snapshot"

SLICE_SECONDS: Final = 0.004
"""For which copying keeps the loop; not less, for events wait until the whole copy is made."""

READ_BYTES: Final = 128 * 1024
SIBLING_CONNECT_SECONDS: Final = 2.0
SIBLING_SILENCE_SECONDS: Final = 5.0

UNCLAIMED_SECONDS: Final = 600.0
"""How long blocks wait for an endpoint that does not answer: it may be down, and be another engine when it is back."""

LEFTOVER_SECONDS: Final = 3600.0
"""Age of a temporary file that nobody can be writing any more."""


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
        self.restored_blocks = 0
        """Blocks on GPU that the start found in a snapshot."""
        self._settings = settings
        self._handover = handover
        self._hold = hold
        self._one_at_a_time = asyncio.Lock()
        self._drop_at: float | None = None
        self._has_told_failure = False

    # At the start

    async def load(self, session: aiohttp.ClientSession) -> None:
        """Take over from the first sibling that has anything, else from the file, else begin with nothing."""
        for url in self._settings.siblings:
            if await self._load(url, self._from_sibling(session, url)):
                return
        if self._settings.path is not None:
            path = Path(self._settings.path)
            await asyncio.to_thread(_remove_leftovers, path)
            await self._load(str(path), _from_file(path))

    async def _load(self, name: str, source: AsyncGenerator[bytes, None]) -> bool:
        begun = time.monotonic()
        restoration = self._handover.restoration(time.time() - self._settings.max_age_seconds)
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
            log.warning("%s: the snapshot is not used: %s", name, str(error) or type(error).__name__)
            self._handover.abandon()
            return False
        except Exception:
            log.exception("%s: the snapshot is not used, for a fault of kvlb's own", name)
            self._handover.abandon()
            return False
        self._drop_at = begun + UNCLAIMED_SECONDS
        log.info(
            "%s: took over %d blocks of %d replicas, as of %.0f s ago, in %.1f s",
            name,
            self.restored_blocks,
            len(self._handover.waiting),
            max(0.0, time.time() - restoration.created),
            time.monotonic() - begun,
        )
        return True

    async def _from_sibling(self, session: aiohttp.ClientSession, url: str) -> AsyncGenerator[bytes, None]:
        timeout = aiohttp.ClientTimeout(
            total=self._settings.sibling_timeout_seconds,
            sock_connect=SIBLING_CONNECT_SECONDS,
            sock_read=SIBLING_SILENCE_SECONDS,
        )
        async with session.get(url.rstrip("/") + PATH, timeout=timeout, allow_redirects=False) as response:
            if response.status != 200 or response.content_type != CONTENT_TYPE:
                raise SnapshotError(f"it answers {PATH} with {response.status} and {response.content_type}")
            async for data in response.content.iter_chunked(READ_BYTES):
                yield data

    def adopt(self, described: Described) -> Position | None:
        """A replica has become known: where its events are to be resumed, if anything was restored of it."""
        position, problem = self._handover.adopt(described)
        if problem is not None:
            log.info("%s: what a snapshot has of it is not used: %s", described.replica.id, problem)
        return position

    def told(self, endpoint: str) -> None:
        """The endpoint has told all its replicas."""
        for replica in self._handover.drop(endpoint):
            log.info("%s: is not there any more; what a snapshot has of it is dropped", replica)

    # While it runs

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
                    return image
                if time.monotonic() > until:
                    await asyncio.sleep(0)
                    until = time.monotonic() + SLICE_SECONDS

    async def save(self) -> None:
        """Write the file, if there is to be one: all of it or nothing."""
        if self._settings.path is None:
            return
        begun = time.monotonic()
        path = Path(self._settings.path)
        # Two gateways that were given the same file by mistake must not write into each other's.
        draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            self.size = await self._write(draft, path)
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
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
        self._has_told_failure = False
        self.saves += 1
        self.saved_at = time.monotonic()
        self.duration = self.saved_at - begun

    async def _write(self, draft: Path, path: Path) -> int:
        size = 0
        async with _created(draft) as file:
            async with contextlib.aclosing(self.pieces()) as pieces:
                async for piece in pieces:
                    size += await _in_thread(file.write, piece)
            await _in_thread(_flush, file)
        await _in_thread(_replace, draft, path)
        return size


async def _from_file(path: Path) -> AsyncGenerator[bytes, None]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while data := await asyncio.to_thread(file.read, READ_BYTES):
            yield data


async def _in_thread(call: Callable[..., T], *args: object) -> T:
    """The call's result; when cancelled, only after it has ended: a file must not be closed while it is written."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


@contextlib.asynccontextmanager
async def _created(path: Path) -> AsyncGenerator[IO[bytes], None]:
    opening = asyncio.ensure_future(asyncio.to_thread(_create, path))
    try:
        yield await asyncio.shield(opening)
    finally:
        await asyncio.wait([opening])
        if opening.exception() is None:
            opening.result().close()


def _create(path: Path) -> IO[bytes]:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _replace(draft: Path, path: Path) -> None:
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_leftovers(path: Path) -> None:
    """Drafts of gateways that were killed while they wrote."""
    with contextlib.suppress(OSError):
        for draft in path.parent.glob(f"{path.name}.*.tmp"):
            if time.time() - draft.stat().st_mtime > LEFTOVER_SECONDS:
                draft.unlink()
