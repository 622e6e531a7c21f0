"""Of a prompt on one replica: how much to find there, to load and to compute, so that it takes the least time.

Knows what lies where, how long moving and computing take, and what the engine can be told. Never knows replicas, requests or
hashes, and never what others pay for it: that is the policy's.

A prompt is cut twice: what the replica's own cache holds is a hit, what follows is loaded as far as that pays, the rest is
computed. Loads take blocks from the sources in the engine's order, each as far as it reaches, one after the other, before any
computing begins (vLLM keeps the request waiting until its blocks are there).
"""

import math
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import combinations
from typing import Final

import msgspec

from balancer.economics.links import Link
from balancer.economics.prefill import Prefill
from balancer.economics.shape import CacheShape


class Control(IntEnum):
    """What an engine can be told of a single request's loads; each includes those before it."""

    NOTHING = 0
    """It loads all it finds."""
    SOURCES = 1
    """Which of the optional sources it may load from."""
    LENGTH = 2
    """How many tokens it may load."""


class Source(msgspec.Struct, frozen=True):
    """Where blocks of the prompt can be loaded from.

    Attributes:
        name: what it is called in the result.
        link: the way from there to the replica.
        tokens: how many leading tokens of the prompt it holds.
        chunk: loads from it end at multiples of so many tokens.
        optional: whether the engine can be told to leave it out and load from others (vLLM: all but its CPU tier).
        start: it is known to hold the tokens from here on; of those before nobody knows.
        weight: how much a second of loading from it counts beside one of computing (``load_weight``).
    """

    name: str
    link: Link
    tokens: int
    chunk: int = 1
    optional: bool = True
    start: int = 0
    weight: float = 1.0

    @property
    def reach(self) -> int:
        """Tokens that can be loaded from it, in whole chunks."""
        return self.tokens // self.chunk * self.chunk


class Load(msgspec.Struct, frozen=True):
    """The tokens from ``start`` to ``end``, from one source."""

    source: str
    start: int
    end: int
    size: float
    seconds: float

    @property
    def tokens(self) -> int:
        return self.end - self.start


class Mix(msgspec.Struct, frozen=True):
    """One way to have a prompt computed.

    Attributes:
        hit_tokens: found in the replica's own cache.
        loads: in the order of the prompt.
        computed_tokens: the rest, one at least: the last token is always computed.
        compute_seconds: what those take.
        allowed: names of the optional sources that it may load from, whether it does or not.
    """

    hit_tokens: int
    loads: tuple[Load, ...]
    computed_tokens: int
    compute_seconds: float
    allowed: tuple[str, ...] = ()

    @property
    def loaded_tokens(self) -> int:
        return sum(load.tokens for load in self.loads)

    @property
    def load_seconds(self) -> float:
        return sum(load.seconds for load in self.loads)

    @property
    def seconds(self) -> float:
        """Until the first token, on a replica with nothing else to do."""
        return self.load_seconds + self.compute_seconds


FULL_CONTROL: Final = Control.LENGTH


def cheapest(
    prompt_tokens: int,
    hit_tokens: int,
    sources: Sequence[Source],
    prefill: Prefill,
    shape: CacheShape,
    control: Control = FULL_CONTROL,
) -> Mix:
    """The mix of least weighted seconds that the engine can be made to do; of equal ones that which moves least.

    ``sources`` stand in the order in which the engine looks for a block. Without control this is what the engine does anyhow.
    """
    best = computed_after(prompt_tokens, hit_tokens, prefill) if control is Control.LENGTH or not sources else None
    least = math.inf if best is None else best.seconds
    weights = {source.name: source.weight for source in sources}
    for allowed in _allowed(sources, control):
        steps = _steps(allowed, hit_tokens, prompt_tokens)
        names = tuple(source.name for source in allowed if source.optional)
        if not steps:
            found = computed_after(prompt_tokens, hit_tokens, prefill, names)
            if found.seconds < least:
                best, least = found, found.seconds
            continue
        ends = _ends(steps, prompt_tokens, prefill, shape) if control is Control.LENGTH else [steps[-1][2]]
        for end in ends:
            found = loaded_until(end, prompt_tokens, hit_tokens, steps, prefill, shape, names)
            cost = found.compute_seconds + sum([load.seconds * weights[load.source] for load in found.loads])
            if cost < least:
                best, least = found, cost
    assert best is not None, "there is always a way to have a prompt computed"
    return best


def load_weight(price: float, link: Link, shape: CacheShape, prefill: Prefill, tokens: int, start: int = 0) -> float:
    """How much a second of loading so many tokens over this link, behind ``start`` others, counts beside one of computing.

    While a replica computes, others wait for it: ``price`` is what a second of it costs all together, 1 where nobody waits.
    So a load may wait for its link somewhat longer than computing would take. A link that is slower than computing, with its
    delays, is not preferred for that, and a faster one for no more than it is faster.
    """
    loading = link.seconds(shape.moved(start, start + tokens, start + tokens))
    faster = prefill.seconds(tokens, start) / loading if loading else math.inf
    return 1 / max(1.0, min(price, faster))


Step = tuple[Source, int, int]
"""A source, and the tokens that are loaded from it: from, to."""


def computed_after(prompt_tokens: int, hit_tokens: int, prefill: Prefill, allowed: tuple[str, ...] = ()) -> Mix:
    """Nothing is loaded."""
    rest = max(1, prompt_tokens - hit_tokens)
    return Mix(prompt_tokens - rest, (), rest, prefill.seconds(rest, prompt_tokens - rest), allowed)


def loaded_until(
    end: int,
    prompt_tokens: int,
    hit_tokens: int,
    steps: Sequence[Step],
    prefill: Prefill,
    shape: CacheShape,
    allowed: tuple[str, ...] = (),
) -> Mix:
    """What follows the hit is loaded up to ``end``, by these steps."""
    loads = []
    for source, start, reach in steps:
        if start >= end:
            break
        until = min(reach, end)
        size = shape.moved(start, until, end)
        loads.append(Load(source.name, start, until, size, source.link.seconds(size)))
    rest = max(1, prompt_tokens - end)
    return Mix(hit_tokens, tuple(loads), rest, prefill.seconds(rest, prompt_tokens - rest), allowed)


def _allowed(sources: Sequence[Source], control: Control) -> Iterator[tuple[Source, ...]]:
    """The sets of sources that the engine can be held to, fewest first."""
    if control is Control.NOTHING:
        yield tuple(sources)
        return
    optional = [source for source in sources if source.optional]
    for count in range(len(optional) + 1):
        for chosen in combinations(optional, count):
            yield tuple(source for source in sources if not source.optional or source in chosen)


def _steps(sources: Sequence[Source], start: int, prompt_tokens: int) -> list[Step]:
    """Each block from the first source that holds it, as far as that is known."""
    steps: list[Step] = []
    for source in sources:
        end = min(source.reach, prompt_tokens // source.chunk * source.chunk)
        if source.start <= start < end:
            steps.append((source, start, end))
            start = end
    return steps


def _ends(steps: Sequence[Step], prompt_tokens: int, prefill: Prefill, shape: CacheShape) -> list[int]:
    """The lengths among which the best one is.

    Between two of them the time is concave in the length: moving another token costs what the one before it has cost, or less,
    and saves more computing. So the best length is where a source ends, where a window has passed what another source holds,
    or where the rest takes no more time to compute than one step, or one token, does in any case.
    """
    corners = {prompt_tokens - 1, *(end for _, _, end in steps)}
    corners.update(end + window for _, _, end in steps for window in shape.windows)
    if prefill.least and prefill.token:
        corners.add(prompt_tokens - int(prefill.least / prefill.token))
    ends: set[int] = set()
    for source, start, end in steps:
        for corner in corners:
            below = corner // source.chunk * source.chunk
            ends.update(each for each in (below, below + source.chunk) if start < each <= end)
    return sorted(ends)
