"""What the simple model's replicas are: a cache, one lane of prefill and a link.

Knows who waits, who loads and who is computed, by number. Never knows time or what happens when (``simulations.simple``).
"""

import math
from collections import deque
from collections.abc import Sequence

import msgspec

from balancer.fleet import LiveReplica
from simulations.segment_cache import SegmentCache
from simulations.store import Reader


class PathChain:
    """The path of a prompt as the keys of its blocks, for policies that read them."""

    __slots__ = ("_ids",)

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    def keys(self, count: int, /) -> list[int]:
        return [each + 1 for each in self._ids[:count]]  # 0 is nobody's key


class Taken(msgspec.Struct, frozen=True):
    """A request that has its blocks: segments and blocks that it uses, and tokens that it finds or loads."""

    request: int
    lease: int
    used: int
    needed: int
    there: int


class Lane:
    """One replica: the cache, and who is computed."""

    __slots__ = (
        "answers",
        "busy",
        "busy_seconds",
        "cache",
        "due",
        "live",
        "loaded",
        "number",
        "queue",
        "reader",
        "writer",
    )

    def __init__(self, number: int, cache: SegmentCache, live: LiveReplica) -> None:
        self.number = number
        self.cache = cache
        self.live = live
        self.queue: deque[tuple[int, int]] = deque()  # (request, lease)
        self.loaded: deque[Taken] = deque()  # who has all that is loaded, and can be computed
        self.reader = Reader()
        self.writer = Reader()  # the other direction of its link
        self.due = -math.inf  # when it is looked at again, for those that are held
        self.busy = False
        self.answers = 0
        self.busy_seconds = 0.0
