"""What a replica computed within one step, or two, and what that teaches of its speed.

Knows prompts' lengths and seconds. Never knows queues, replicas or clocks. Of prompts that were computed together the first one
took the time of all; it is told to the replica's speed once it is closed, and what its prompts were is known.

What was to be computed is an expectation. Where an engine can load what it lacks, it is wrong in both ways: a prefix that was
pushed out meanwhile is computed after all, or loaded after all. So there the engine's own figures are waited for, but not of
prompts of which nothing was expected; without figures the expectation counts. Time that passed while anything was loaded says
nothing of computing: a replica that seemed slow because it was loading would be made to load all the more.
"""

from typing import Final

import msgspec

from balancer.speeds import MOST, ReplicaSpeed

ONE_MOMENT: Final = 0.003
"""Seconds; two prompts that are computed within them were computed in one step."""


class Work(msgspec.Struct, frozen=True):
    """What one prompt is to a replica.

    Attributes:
        tokens: of the prompt.
        uncached: those of them that are computed.
        answers: that are under way meanwhile.
        loads: tokens that it loads before.
        may_load: its engine loads more than that, if it finds more.
    """

    tokens: int
    uncached: int
    answers: int = 0
    loads: int = 0
    may_load: bool = False

    @property
    def context(self) -> float:
        """Mean number of tokens before one that is computed."""
        return self.tokens - self.uncached / 2


class Bundle(msgspec.Struct, eq=False):
    """Prompts of one moment; mutable. Between calls: told once, when it is closed and nothing of it is awaited."""

    speed: ReplicaSpeed
    requests: int = 0
    tokens: int = 0
    pairs: float = 0.0
    crowd: float = 0.0
    seconds: float = 0.0
    is_void: bool = False
    is_closed: bool = False
    awaited: int = 0

    def add(self, work: Work, seconds: float, expected: float) -> bool:
        """It took so long, where so long was expected; returns whether ``reported`` is to be called for it."""
        if not self.requests and work.loads:
            self.is_void = True
        self.requests += 1
        self.seconds += seconds
        self._count(work.uncached, work, 1)
        awaits = work.may_load and (work.uncached < work.tokens or seconds * MOST < expected)
        self.awaited += awaits
        return awaits

    def close(self, now: float) -> None:
        """Nothing more was computed with it."""
        self.is_closed = True
        self._tell(now)

    def reported(self, work: Work, cached: int | None, now: float) -> None:
        """The engine has said how many tokens of the prompt it had, or loaded; None where it says nothing."""
        self.awaited -= 1
        if cached is not None and 0 <= cached <= work.tokens:
            if cached > work.tokens - work.uncached:
                self.is_void = True  # more than anybody knew: it may have been loaded
            self._count(work.uncached, work, -1)
            self._count(max(1, work.tokens - cached), work, 1)
        self._tell(now)

    def _count(self, uncached: int, work: Work, sign: int) -> None:
        self.tokens += sign * uncached
        self.pairs += sign * uncached * (work.tokens - uncached / 2)
        self.crowd += sign * uncached * work.answers

    def _tell(self, now: float) -> None:
        if self.is_closed and not self.awaited and not self.is_void:
            self.speed.observe(self.requests, self.tokens, self.pairs, self.crowd, self.seconds, now)
