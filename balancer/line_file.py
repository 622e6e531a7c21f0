"""Lines that are appended to a file, or to standard output, while requests go on.

Knows one file, its size and the thread that writes. Never knows what the lines say. Never holds up a request and never fails
one: what cannot be written is lost, with one warning until writing works again. Every line of the file is whole.
"""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import select
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

WRITE_SECONDS: Final = 0.5
"""Between two writes: what a reader of the file has to wait for a line."""

MAX_WAITING: Final = 20_000
"""Lines that wait for a disk; the oldest go first."""

STANDARD_OUTPUT: Final = "-"

T = TypeVar("T")


def problem(path: str) -> str | None:
    """Why no line can be appended there, whatever happens to disks and folders."""
    if path != STANDARD_OUTPUT and Path(path).exists() and not Path(path).is_file():
        return "it is there, and is no regular file"
    return None


class LineFile(Generic[T]):
    """Appends what it is given. Changes with ``add``; whoever owns it runs ``run``, and calls ``flush`` at the end."""

    def __init__(self, setting: str, path: str, max_bytes: int, render: Callable[[T], bytes]) -> None:
        """``setting`` names it in warnings, ``render`` makes a line of what was given, in the thread that writes."""
        self.lost = 0
        self._setting = setting
        self._path = path
        self._max_bytes = max_bytes
        self._render = render
        self._waiting: deque[T] = deque(maxlen=MAX_WAITING)
        self._has_failed = False
        self._writing = asyncio.Lock()

    def add(self, entry: T) -> None:
        """Have a line written soon."""
        self.lost += len(self._waiting) == MAX_WAITING
        self._waiting.append(entry)

    async def run(self) -> None:
        """Write now and then, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write what waits."""
        async with self._writing:
            entries = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if entries:
                writing = asyncio.ensure_future(asyncio.to_thread(self._write, entries))
                try:
                    await asyncio.shield(writing)
                except asyncio.CancelledError:
                    await asyncio.wait({writing})  # a thread cannot be cancelled, and whoever flushes next counts on it
                    raise

    def _write(self, entries: Sequence[T]) -> None:
        lines = b"".join(self._render(entry) + b"\n" for entry in entries)
        try:
            self._append(lines)
        except OSError as error:
            self.lost += len(entries)
            if not self._has_failed:
                log.warning(
                    "%s: cannot write '%s': %s; lines are lost until it can be",
                    self._setting,
                    self._path,
                    error.strerror,
                )
            self._has_failed = True
        else:
            if self._has_failed:
                log.warning("%s: '%s' can be written again; %d lines were lost", self._setting, self._path, self.lost)
            self._has_failed = False

    def _append(self, lines: bytes) -> None:
        if self._path == STANDARD_OUTPUT:
            for piece in whole_lines(
                lines, select.PIPE_BUF
            ):  # more than that, and lines of other processes come between
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
            return
        path = Path(self._path)
        self._rotate(path, len(lines))
        _append(path, lines)

    def _rotate(self, path: Path, coming: int) -> None:
        """Begin another file where this one would grow too large; whoever moved it away has done so already."""
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size + coming > self._max_bytes:
                _move(path, self._max_bytes - coming)


def whole_lines(lines: bytes, at_most: int) -> Iterator[bytes]:
    """The lines in pieces of so many bytes at most; only a line that is longer by itself is a longer piece."""
    at = 0
    while at < len(lines):
        end = lines.rfind(b"\n", at, at + at_most) + 1 or lines.find(b"\n", at) + 1 or len(lines)
        yield lines[at:end]
        at = end


def _move(path: Path, at_most: int) -> None:
    """Move the file away if it is larger, unless another process of ours that writes there has just done so."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with contextlib.suppress(OSError):  # where there are no locks, two at once cost a file
            fcntl.flock(file, fcntl.LOCK_EX)
        about, now = os.fstat(file), path.stat()
        if now.st_ino == about.st_ino and now.st_size > at_most:
            path.replace(path.with_name(path.name + ".1"))
    finally:
        os.close(file)


def _append(path: Path, lines: bytes) -> None:
    """All of the lines or none of them, behind whole ones."""
    # Opened for reading, too, and without waiting: a pipe in its place would keep this thread until somebody reads it.
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if about.st_size and os.pread(file, 1, about.st_size - 1) != b"\n":  # of a process that was killed
            lines = b"\n" + lines
        left = memoryview(lines)
        try:
            while left:
                left = left[os.write(file, left) :]
        except OSError:
            os.ftruncate(file, about.st_size)
            raise
    finally:
        os.close(file)
