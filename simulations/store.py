"""A shared store behind the replicas of the simple model: all that anybody has computed lies there, a link away.

Knows segments that somebody has computed, one link a replica, and what engines can be told of loads. Never knows lanes or
policies. The store forgets nothing, and takes what is computed at once and for nothing unless ``write_gbits`` says otherwise.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from balancer.economics.links import Link
from balancer.economics.mix import Control, Mix, Source, cheapest, load_weight
from balancer.economics.prefill import Prefill
from balancer.economics.shape import CacheShape
from simulations.hub import Hub

LEAST_GBITS: Final = 1e-6
MOST_GBITS: Final = 1e6
MOST_SECONDS: Final = 86_400
"""Longer than that no load waits for its first byte."""

Rate = Annotated[float, msgspec.Meta(ge=LEAST_GBITS, le=MOST_GBITS)]
Delay = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]
Weight = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The store of a fleet.

    Attributes:
        gbits: 10^9 bits of data that one replica reads a second.
        latency: seconds until the first byte.
        token_bytes: of a token in a cache.
        loads: ``mixed``: as far as that is cheapest; ``always``: all that is there; ``never``: nothing.
        tokens: that there is room for, in the detailed model; what was used the longest time ago goes. None: without end.
        total_gbits: that all replicas together read at once, divided evenly among those that do. None: without end.
        write_gbits: that one replica writes: what it has computed goes there one prompt after the other, and is there when all
            of it is. None: it is there at once, at no cost.
        name: what people call it, in tables; nothing depends on it.
    """

    gbits: Rate = 100.0
    latency: Delay = 0.001
    token_bytes: Weight = 131_072.0
    loads: Literal["mixed", "always", "never"] = "mixed"
    tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    total_gbits: Rate | None = None
    write_gbits: Rate | None = None
    name: str | None = None

    def size(self, tokens: int) -> float:
        """Bytes."""
        return tokens * self.token_bytes

    def write_seconds(self, tokens: int) -> float:
        """What it takes one replica to write so many; nothing where that costs nothing."""
        if self.write_gbits is None:
            return 0.0
        return Link(self.write_gbits * 1e9 / 8, self.latency).seconds(self.size(tokens))

    def hub(self) -> Hub | None:
        """What divides the loads of all replicas, where they share anything."""
        return None if self.total_gbits is None else Hub(self.gbits * 1e9 / 8, self.total_gbits * 1e9 / 8, self.latency)


def gbits_of(link: Link) -> float:
    """10^9 bits of data that it carries a second."""
    return link.bandwidth * 8e-9


class Store:
    """What lies there, and what it takes to load it. ``computed`` (by segment) is somebody else's, and changes."""

    __slots__ = ("_computed", "_control", "_lengths", "_loads", "_prefill", "_shape", "_size", "link")

    def __init__(
        self, settings: StoreSettings, size: int, speed: float, lengths: Sequence[int], computed: Sequence[int]
    ) -> None:
        """``size`` is the tokens of a block, ``speed`` uncached tokens a second."""
        self.link = Link(settings.gbits * 1e9 / 8, settings.latency)
        self._loads = settings.loads
        self._control = Control.NOTHING if settings.loads == "always" else Control.LENGTH
        self._prefill = Prefill.from_speed(speed)
        self._shape = CacheShape.uniform(settings.token_bytes)
        self._size = size
        self._lengths = lengths
        self._computed = computed

    def depth(self, path: Sequence[int]) -> int:
        """Leading blocks of the path that lie there."""
        if self._loads == "never":
            return 0
        blocks = 0
        for segment in path:
            if not self._computed[segment]:
                break
            blocks += self._lengths[segment]
        return blocks

    def plan(self, tokens: int, cached: int, depth: int, wait: float, price: float = 1.0) -> Mix:
        """The mix for a prompt of so many tokens on a replica that has ``cached``, with ``depth`` blocks in the store.

        ``wait`` is how many seconds a load has to wait for those before it, ``price`` what a second of the replica costs all.
        """
        weight = load_weight(price, self.link, self._shape, self._prefill, max(0, depth * self._size - cached), cached)
        link = msgspec.structs.replace(self.link, setup=wait)
        source = Source("store", link, depth * self._size, self._size, weight=weight)
        return cheapest(tokens, cached, [source], self._prefill, self._shape, self._control)

    def size(self, tokens: int) -> float:
        """Bytes of so many tokens."""
        return self._shape.size(tokens)

    def seconds(self, tokens: int) -> float:
        """What it takes to load so many tokens."""
        return self.link.seconds(self._shape.size(tokens))


class Reader:
    """One replica's link: loads go over it one after the other. Changes with ``expect`` and ``load``; times never go back."""

    __slots__ = ("_free", "_planned", "loading_seconds")

    def __init__(self) -> None:
        self.loading_seconds = 0.0
        self._free = 0.0
        self._planned = 0.0

    def wait(self, now: float, until: float) -> float:
        """Seconds that a load has still to wait that can begin in ``until`` seconds, as far as was planned."""
        return max(0.0, self._planned - now - until)

    def expect(self, now: float, seconds: float) -> None:
        """A load is planned that takes so long."""
        self._planned = max(now, self._planned) + seconds

    def load(self, now: float, seconds: float) -> float:
        """It begins as soon as it can; when it ends."""
        self.loading_seconds += seconds
        self._free = max(now, self._free) + seconds
        return self._free
