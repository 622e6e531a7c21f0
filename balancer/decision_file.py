"""Every decision as a line of JSON in a file, if the settings name one.

Knows one file, its size and the thread that writes. Never holds up a request and never fails one: what cannot be written is
lost, with one warning until writing works again.
"""

import asyncio
import contextlib
import logging
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
            with self._path.open("ab") as file:
                file.write(lines)
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
