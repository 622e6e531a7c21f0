"""How long each part of one request took.

Knows the parts and their order. Never knows a clock: whoever makes a ``Stages`` brings one (nanoseconds, never going back), so
that the core can say what has ended without knowing when. Between calls: laps follow each other without a gap.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import msgspec


class Stage(StrEnum):
    """What a request's time is spent on, in the order in which it is."""

    READ = "read"  # unpacking and parsing the body
    TOKENIZE = "tokenize"
    QUEUE = "queue"  # waiting for a place at a replica
    HASH = "hash"  # within the match: as far as the index asks for hashes
    MATCH = "match"  # asking the index, without the hashing
    CHOOSE = "choose"  # the policy's
    ASK = "ask"  # where the brain is another process: the way there and back
    PREFILL = "prefill"  # of a split request: the leg before its answer's, if they are sent one after the other
    CONNECT = "connect"  # next to nothing where a connection was kept
    FIRST_BYTE = "first_byte"  # of output: the replica's queue and its prefill
    STREAM = "stream"  # the rest of the answer


class Lap(msgspec.Struct, frozen=True, gc=False):
    """One stretch of time, in nanoseconds on the clock of its ``Stages``. A retry has further laps of the same stages."""

    stage: Stage
    begin: int
    end: int


class Stages:
    """One request's laps. Changes with ``passed`` and ``hashed``."""

    __slots__ = ("_done", "_hashed", "_times", "began", "now")

    def __init__(self, clock: Callable[[], int]) -> None:
        self.now = clock
        """The time on its clock."""
        self.began = clock()
        # What has been done, and when: laps are made where somebody asks. A stream holds these until its end, and pairs would
        # take twice the memory.
        self._done: list[Stage] = []
        self._times: list[int] = []
        self._hashed = 0

    def __repr__(self) -> str:
        return f"<Stages {', '.join(f'{stage} {ns / 1e6:.3f} ms' for stage, ns in self.spent().items())}>"

    def passed(self, stage: Stage) -> None:
        """What has been done since the last call was this."""
        self._done.append(stage)
        self._times.append(self.now())

    @property
    def laps(self) -> list[Lap]:
        """What has been done, in its order."""
        begins = [self.began, *self._times]
        return [Lap(*each) for each in zip(self._done, begins, self._times, strict=False)]

    def passed_elsewhere(self, stage: Stage, others: Mapping[Stage, int]) -> None:
        """As ``passed``; so many nanoseconds of it, here the last ones, somebody else has spent on other stages."""
        now = self.now()
        at = max(self._times[-1] if self._times else self.began, now - sum(others.values()))
        self._done.append(stage)
        self._times.append(at)
        for other, ns in others.items():
            at = min(now, at + ns)
            self._done.append(other)
            self._times.append(at)

    def hashed(self, begin: int) -> None:
        """Hashes were made since ``begin``, in the midst of a match."""
        self._hashed += self.now() - begin

    def spent(self) -> dict[Stage, int]:
        """Nanoseconds in each stage that there was, all attempts together."""
        spent: dict[Stage, int] = {}
        last = self.began
        for stage, at in zip(self._done, self._times, strict=True):
            spent[stage] = spent.get(stage, 0) + at - last
            last = at
        if self._hashed:
            spent[Stage.HASH] = self._hashed
            if Stage.MATCH in spent:
                spent[Stage.MATCH] = max(0, spent[Stage.MATCH] - self._hashed)
        return spent


class _Untimed(Stages):
    """For whoever does not ask how long anything takes."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(int)

    def passed(self, stage: Stage) -> None:
        pass

    def passed_elsewhere(self, stage: Stage, others: Mapping[Stage, int]) -> None:
        pass

    def hashed(self, begin: int) -> None:
        pass


UNTIMED: Final[Stages] = _Untimed()
