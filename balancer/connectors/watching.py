"""A directory that is looked through again and again, in a thread of its own: a mount that hangs must keep nobody waiting.

Knows threads, pauses and what makes a store unusable. Never knows names of files (``Layout`` does), nor what becomes of keys.
Notifications of a file system are no help: shared ones do not tell what other machines do.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import msgspec

from balancer.connectors.base import Question, StoreError, Writer
from hashing.own import LearnedKeys
from indexer.stores import Namespace

log = logging.getLogger(__name__)

LOOKED_AT_ONCE: Final = 256
"""Directories, after which the thread leaves the interpreter to others for a moment."""

BREATH: Final = 0.002

RESTS: Final = 10.0
"""It rests this many times as long as a look has computed, at least: a tenth of a core at most."""

SILENT_SECONDS: Final = 30.0
"""Longest that one look may take before the directory is taken for hanging; a first look may."""

APPLIED_AT_ONCE: Final = 4_096

FRESH_SECONDS: Final = 2.0
"""The coarsest clock of a file system that is in use (FAT); a shared one keeps its server's."""


class Change(msgspec.Struct, frozen=True):
    """What one look has found to be new, and to be gone, in one part of the store; keys are block keys.

    ``kind`` and ``chunk`` are those of ``Writer.add``; ``model`` is empty where no name says it.
    """

    part: str
    model: str
    kind: LearnedKeys | None
    chunk: int
    added: list[int]
    removed: list[int]


class Layout(Protocol):
    """How a directory is read. Called in one thread alone; it remembers what it has seen."""

    def changes(self, breathe: Callable[[], None]) -> Iterator[Change]:
        """One look; ``breathe`` is to be called for each directory.

        Raises:
            OSError: the directory cannot be read.
            StoreError: it is not what it should be.
        """
        ...


class Watched:
    """A session (``balancer.connectors.base.Session``) on a directory. ``make`` gives a layout that has seen nothing."""

    def __init__(self, path: str, interval: float, make: Callable[[], Layout], writer: Writer) -> None:
        self._path = path
        self._interval = interval
        self._make = make
        self._writer = writer
        self._stop = threading.Event()
        self._namespaces: dict[tuple[str, str], Namespace] = {}

    async def run(self) -> None:
        """Look until cancelled.

        Raises:
            StoreError: the directory cannot be read, or hangs.
        """
        loop, stop = asyncio.get_running_loop(), threading.Event()
        looks: asyncio.Queue[list[Change] | StoreError | None] = asyncio.Queue()

        def tell(news: list[Change] | StoreError | None) -> None:
            if not stop.is_set():
                loop.call_soon_threadsafe(looks.put_nowait, news)

        self._stop = stop
        self._namespaces.clear()
        threading.Thread(
            target=_look, args=(self._make(), self._interval, tell, stop), name="kvlb-store", daemon=True
        ).start()
        try:
            while True:
                try:
                    async with asyncio.timeout(SILENT_SECONDS + self._interval):
                        news = await looks.get()
                except TimeoutError:
                    raise StoreError(f"path: '{self._path}' has not answered for {SILENT_SECONDS:g} s") from None
                if isinstance(news, StoreError):
                    raise news
                if news is None:
                    self._writer.looked()
                    self._writer.up()
                    continue
                for change in news:
                    self._apply(change)
        finally:
            stop.set()

    async def ask(self, question: Question) -> None:
        """Nothing to ask: all is known."""

    async def close(self) -> None:
        self._stop.set()

    def _apply(self, change: Change) -> None:
        name = (change.part, change.model)
        if change.added:
            self._namespaces[name] = self._writer.add(
                change.model, change.added, change.kind, change.chunk, change.part
            )
        if change.removed and name in self._namespaces:
            self._writer.discard(self._namespaces[name], change.removed)


def _look(
    layout: Layout, interval: float, tell: Callable[[list[Change] | StoreError | None], None], stop: threading.Event
) -> None:
    """The thread: looks, and tells what has changed; None at the end of each look."""
    looked = 0

    def breathe() -> None:
        nonlocal looked
        looked += 1
        if looked % LOOKED_AT_ONCE == 0:
            stop.wait(BREATH)

    try:
        while not stop.is_set():
            began = time.thread_time()
            for change in layout.changes(breathe):
                if stop.is_set():
                    return
                for piece in _pieces(change):
                    tell([piece])
            tell(None)
            stop.wait(max(interval, RESTS * (time.thread_time() - began)))
    except StoreError as error:
        tell(error)
    except OSError as error:
        tell(StoreError(f"path: cannot read '{error.filename}': {error.strerror}"))
    except Exception as error:
        log.exception("a store's directory could not be read")
        tell(StoreError(f"path: {type(error).__name__}: {error}"))


def _pieces(change: Change) -> Iterator[Change]:
    """The same, in pieces that keep the loop for a few milliseconds at most."""
    for start in range(0, max(len(change.added), len(change.removed)), APPLIED_AT_ONCE):
        end = start + APPLIED_AT_ONCE
        yield msgspec.structs.replace(change, added=change.added[start:end], removed=change.removed[start:end])


def is_fresh(changed: int) -> bool:
    """Whether another change could have the same time as this one, in nanoseconds since 1970."""
    return time.time_ns() - changed < FRESH_SECONDS * 1e9
