"""What is told of requests once they have been answered: timings, a line in the access log, spans.

Knows the clocks and who wants to be told. Never knows how a request is answered: whoever answers it fills the ``Record`` that
``begin`` has given, and gives it back. What nobody wants costs nothing.
"""

import asyncio
import time

import msgspec

from balancer.core import Decision
from balancer.http.messages import Request
from balancer.line_file import LineFile
from balancer.logs import written
from balancer.records import Record, Tried
from balancer.settings import LogSettings, Settings
from balancer.stages import Stages
from balancer.timings import StageTimings
from balancer.trace_context import TRACEPARENT
from balancer.tracing import Tracer, open_tracer


class Observer:
    """Gives records out and takes them back. ``start`` it in a running loop; ``stop`` writes and delivers what waits.

    Raises:
        ConfigError: tracing is asked for, and what it needs is not installed.
    """

    def __init__(self, settings: Settings) -> None:
        self.timings = StageTimings()
        self.tracer: Tracer = open_tracer(settings.tracing)
        self.access = open_access_log(settings.log)
        self.lost_elsewhere = 0
        """Lines of the access log that other processes could not write."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(asyncio.create_task(self.tracer.run()))
        if self.access is not None:
            self._tasks.append(asyncio.create_task(self.access.run()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.tracer.flush()
        if self.access is not None:
            await self.access.flush()

    @property
    def lost_lines(self) -> int:
        """Lines of the access log that could not be written."""
        return self.lost_elsewhere + (0 if self.access is None else self.access.lost)

    def take_lost_lines(self) -> int:
        """Those that were lost since the last time; they are counted here no more."""
        lost = self.lost_lines
        self.lost_elsewhere = 0
        if self.access is not None:
            self.access.lost = 0
        return lost

    def begin(self, request: Request, path: str, request_id: str, peer: str) -> Record:
        """A request has come from this address."""
        record = Record(request_id, request.method, path, time.time(), Stages(time.perf_counter_ns), peer)
        self.tracer.begin(record, request.named.get(TRACEPARENT))
        return record

    def tried(self, record: Record, decision: Decision) -> Tried:
        """A replica is asked; whoever asks says what comes of it."""
        noted = Tried(decision, record.stages.now(), self.tracer.attempted(record))
        record.attempts.append(noted)
        return noted

    def finished(self, record: Record, status: int) -> None:
        """It has been answered with ``status``, or with nothing (0)."""
        record.status = status
        record.end = record.stages.now()
        self.timings.add(record.stages)
        self.tracer.finished(record)
        if self.access is not None:
            self.access.add(record)


def open_access_log(settings: LogSettings) -> LineFile[Record] | None:
    """Where requests are written; None where nobody wants them."""
    if settings.access is None:
        return None
    return LineFile(
        "log.access",
        settings.access,
        settings.access_max_bytes,
        lambda record: msgspec.json.encode(record.line(written(record.at))),
    )
