"""Every decision as a line of JSON in a file, if the settings name one.

Knows one file, its size and the thread that writes. Never holds up a request and never fails one: what cannot be written is
lost, with one warning until writing works again. Every line of the file is whole.
"""

import asyncio
import contextlib
import errno
import logging
import os
import stat
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from balancer.decisions import Entry
from balancer.policies.base import Policy
from balancer.settings import LogSettings

log = logging.getLogger(__name__)

WRITE_SECONDS: Final = 0.5
"""Between two writes: what a reader of the file has to wait for a line."""

MAX_WAITING: Final = 20_000
"""Entries that wait for a disk; the oldest go first."""


def problem(path: Path) -> str | None:
    """Why no decision can be appended there, whatever happens to disks and folders."""
    if path.exists() and not path.is_file():
        return "it is there, and is no regular file"
    return None


class DecisionFile:
    """Appends ended decisions. Changes with ``add``; whoever owns it runs ``run``, and calls ``flush`` at the end."""

    def __init__(self, settings: LogSettings, policy: Policy) -> None:
        assert settings.decisions is not None
        self.lost = 0
        self._path = Path(settings.decisions)
        self._max_bytes = settings.decisions_max_bytes
        self._policy = policy
        self._waiting: deque[Entry] = deque(maxlen=MAX_WAITING)
        self._has_failed = False
        self._writing = asyncio.Lock()

    def add(self, entry: Entry) -> None:
        """Have an ended decision written soon."""
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
                await asyncio.to_thread(self._write, entries)

    def _write(self, entries: list[Entry]) -> None:
        lines = b"".join(msgspec.json.encode(entry.explained(self._policy)) + b"\n" for entry in entries)
        try:
            self._rotate(len(lines))
            _append(self._path, lines)
        except OSError as error:
            self.lost += len(entries)
            if not self._has_failed:
                log.warning(
                    "log.decisions: cannot write '%s': %s; decisions are lost until it can be",
                    self._path,
                    error.strerror,
                )
            self._has_failed = True
        else:
            if self._has_failed:
                log.warning("log.decisions: '%s' can be written again; %d decisions were lost", self._path, self.lost)
            self._has_failed = False

    def _rotate(self, coming: int) -> None:
        """Begin another file where this one would grow too large; whoever moved it away has done so already."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size + coming > self._max_bytes:
                self._path.replace(self._path.with_name(self._path.name + ".1"))


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
