"""The way of KV events from the reader's thread to the event loop: a queue, applied in slices.

Knows the event reader, the queue between the two threads and how long one slice may last. Never knows what the steps mean:
each is handed to ``take`` in the loop, in the order of its replica's stream. Used by the gateway and by the index service.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from indexer.index import ReplicaId
from indexer.sources.vllm import EventReader
from indexer.stream import Apply, Forget, Standing, Step

log = logging.getLogger(__name__)

SLICE_SECONDS: Final = 0.005
"""Longest that applying events keeps a request waiting; the rest of a flood follows in the next turns of the loop."""

BATCHES_AT_ONCE: Final = 32
"""Batches applied between two looks at the clock: a replay comes as thousands of them in one piece."""


class EventFeed:
    """Owns an ``EventReader``; begin it in the running event loop that ``take`` is to be called in.

    A step that ``take`` fails on costs its replica a fresh start, and the others nothing.
    """

    def __init__(self, take: Callable[[ReplicaId, Step], None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[ReplicaId, list[Step]]] = deque()
        self._is_draining = False
        self._is_held = False
        self._failed: set[ReplicaId] = set()  # whose steps are void until their stream begins anew
        self.reader = EventReader(self.deliver)

    async def close(self) -> None:
        """End the reader's thread. What is still queued is applied if the loop has another turn."""
        await asyncio.to_thread(self.reader.close)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """What comes while the block lasts is applied afterwards."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            if self._queue and not self._is_draining:
                self._is_draining = True
                self._loop.call_soon(self._drain)

    @property
    def is_idle(self) -> bool:
        """Whether all that was handed over has been applied."""
        return not self._queue

    def deliver(self, replica: ReplicaId, steps: list[Step]) -> None:
        """Queue, and wake the loop if it is not about to look anyway. Called in the reader's thread."""
        self._queue.append((replica, steps))
        if not self._is_draining:
            self._is_draining = True
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        if self._is_held:
            self._is_draining = False
            return
        until = time.monotonic() + SLICE_SECONDS
        while self._queue:
            replica, steps = self._queue.popleft()
            step, rest = _first_piece(steps)
            if rest:
                self._queue.appendleft((replica, rest))
            self._hand_over(replica, step)
            if time.monotonic() > until:
                self._loop.call_soon(self._drain)
                return
        self._is_draining = False
        if self._queue:  # the reader appended between the last look and the line above
            self._is_draining = True
            self._loop.call_soon(self._drain)

    def _hand_over(self, replica: ReplicaId, step: Step) -> None:
        if replica in self._failed:
            if not isinstance(step, Forget):
                return
            self._failed.discard(replica)
        try:
            self._take(replica, step)
        except Exception:
            log.exception("%s: its events could not be applied; its index begins anew", replica)
            self._start_over(replica)

    def _start_over(self, replica: ReplicaId) -> None:
        self._failed.add(replica)
        reason = "its events could not be applied"
        self.reader.restart(replica, reason)
        for step in (Forget(reason), Standing()):
            try:
                self._take(replica, step)
            except Exception:
                log.exception("%s: nor could it be forgotten", replica)


def _first_piece(steps: list[Step]) -> tuple[Step, list[Step]]:
    """The first step, and the rest; of a long run of batches, the first few and the rest of them."""
    first = steps[0]
    if isinstance(first, Apply) and len(first.batches) > BATCHES_AT_ONCE:
        rest = Apply(first.batches[BATCHES_AT_ONCE:])
        return Apply(first.batches[:BATCHES_AT_ONCE]), [rest, *steps[1:]]
    return first, steps[1:]
