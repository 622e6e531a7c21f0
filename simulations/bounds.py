"""What any cache could have saved of a workload, whoever routes it.

Knows prefixes and the order in which requests came. Never knows replicas, time or load: these figures stand beside every run,
and say how much of what was missed could have been had.

Everything here rests on one property. A request uses a whole path from the root, so of the blocks that a request was the last
to use, those still its own are a tail of its path; the head was taken over by whoever came later with the same beginning. A
path therefore falls into a few stretches, each with one last user, and passes walk over stretches, not over blocks.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from heapq import heappop, heappush
from itertools import accumulate
from typing import Final

import msgspec

from simulations.traces.trace import Trace

NEVER: Final = -1
ANEW: Final = -2


class Rule(Enum):
    """Which blocks of a prompt can be cached.

    ``FULL_BLOCKS`` is vLLM's: full blocks only, and one token at least is always computed, so of a prompt of n tokens at most
    ``(n - 1) // block_size`` blocks count as hits. ``AS_GIVEN`` takes every id of the trace, a partial last one included, for a
    block that can be cached and hit; other simulators do that.
    """

    FULL_BLOCKS = "full_blocks"
    AS_GIVEN = "as_given"


class Hit(msgspec.Struct, frozen=True):
    """Shares from 0 to 1: of prompt tokens, and of the prompts' blocks that can be cached."""

    tokens: float
    blocks: float


class Pool(msgspec.Struct, frozen=True):
    """One cache as large as a whole fleet's together.

    Attributes:
        blocks: its size.
        lru: hit when the least recently used block goes first, of one request the tail first, as vLLM frees it.
        belady: hit when what is needed last goes first, which needs to know the future: with requests taken in order of
            arrival, no way to evict finds more blocks.
    """

    blocks: int
    lru: Hit
    belady: Hit


class Bounds(msgspec.Struct, frozen=True):
    """What caches of several sizes save of one trace.

    Attributes:
        rule: which blocks count.
        measured_from: the number of the first request that counts; those before it fill the cache.
        infinite: hit of a cache that forgets nothing; nobody hits more.
        infinite_by_request: tokens of each request that came before.
        pools: by size, for those sizes that were asked for.
        curve_blocks, curve_hits: hit (of tokens) of one LRU cache over its size in blocks.
    """

    rule: Rule
    measured_from: int
    infinite: Hit
    infinite_by_request: "array[int]"
    pools: list[Pool]
    curve_blocks: list[int]
    curve_hits: list[float]


def bounds(
    trace: Trace,
    sizes: Iterable[int],
    *,
    curve: Iterable[int] | None = None,
    rule: Rule = Rule.FULL_BLOCKS,
    measured_from: int = 0,
) -> Bounds:
    """The bounds of a trace for pools of ``sizes`` blocks, and the LRU curve over ``curve`` (default: ``spaced_sizes``).

    Takes time by requests, not by blocks: one pass for all of LRU, one for the next uses, one more for each size of Belady's.

    Raises:
        ValueError: a size is below 0, or ``measured_from`` lies outside of the trace.
    """
    asked = sorted(set(sizes))
    drawn = sorted(set(spaced_sizes(trace) if curve is None else curve))
    if min([*asked, *drawn], default=0) < 0:
        raise ValueError("sizes: a cache has 0 blocks or more")
    if not 0 <= measured_from <= len(trace):
        raise ValueError(f"measured_from: must be from 0 to {len(trace)}, got {measured_from}")
    paths = _Paths(trace, rule)
    tally = _Tally(paths, measured_from)
    all_sizes = sorted({*asked, *drawn})
    seen, lru = _least_recent(paths, all_sizes, tally)
    of_lru = dict(zip(all_sizes, lru, strict=True))
    uses = _Uses(paths) if asked else None
    return Bounds(
        rule=rule,
        measured_from=measured_from,
        infinite=tally.hit(seen[at] for at in range(measured_from, len(seen))),
        infinite_by_request=array("q", [paths.tokens(at, seen[at]) for at in range(len(seen))]),
        pools=[Pool(size, of_lru[size], _belady(paths, uses, size, tally)) for size in asked if uses is not None],
        curve_blocks=drawn,
        curve_hits=[of_lru[size].tokens for size in drawn],
    )


def spaced_sizes(trace: Trace, *, per_doubling: int = 4) -> list[int]:
    """Sizes in blocks, evenly spread on a log axis: from 64 to the first at which everything fits."""
    everything = len(trace.parents)
    sizes: list[int] = []
    step = 0
    while not sizes or sizes[-1] < everything:
        sizes.append(round(64 * 2 ** (step / per_doubling)))
        step += 1
    return sizes


class _Paths:
    """By request: its path, how many of its blocks are kept, and how many of those it may hit."""

    def __init__(self, trace: Trace, rule: Rule) -> None:
        size = trace.block_size
        self.blocks = trace.blocks
        self.size = size
        self.ids = len(trace.parents)
        self.inputs = trace.inputs
        counts = map(len, trace.blocks)
        if rule is Rule.AS_GIVEN:
            self.kept = array("q", counts)
            self.hittable = self.kept
        else:
            self.kept = array("q", map(min, counts, [tokens // size for tokens in trace.inputs]))
            self.hittable = array("q", map(min, self.kept, [(tokens - 1) // size for tokens in trace.inputs]))

    def __len__(self) -> int:
        return len(self.blocks)

    def tokens(self, at: int, blocks: int) -> int:
        """Tokens in the first ``blocks`` of a request; its last one may be partial."""
        return min(blocks * self.size, self.inputs[at])

    def is_partial(self, at: int) -> bool:
        return self.kept[at] * self.size > self.inputs[at]


class _Owners:
    """Who used each block last. Mutable.

    An owner holds a tail of its path; ``_heads`` finds it by the first block of that tail, which is the only place where
    another path can come upon it.
    """

    def __init__(self, paths: _Paths, lengths: "array[int]") -> None:
        self._blocks = paths.blocks
        self._lengths = lengths
        self._heads = array("q", [NEVER]) * paths.ids

    def stretches(self, at: int, limit: int) -> Iterator[tuple[int, int]]:
        """The first ``limit`` blocks of ``at`` by their owners: pairs (where it ends, whose it is).

        ``NEVER`` is for what is nobody's, nor is what lies behind it; ``ANEW`` for a single block that is nobody's.
        """
        path = self._blocks[at]
        heads = self._heads
        begin = 0
        while begin < limit:
            owner = heads[path[begin]]
            if owner == NEVER:
                yield limit, NEVER
                return
            begin = begin + 1 if owner == ANEW else self._shared(path, owner, begin, limit)
            yield begin, owner

    def take(self, at: int, found: Sequence[tuple[int, int]]) -> None:
        """Request ``at`` now owns its path; ``found`` are the stretches up to the length that it takes, or one block more."""
        lengths, heads, blocks = self._lengths, self._heads, self._blocks
        for end, owner in found:
            if owner >= 0 and end < lengths[owner]:
                heads[blocks[owner][end]] = owner
        if found and found[-1][0] > lengths[at]:
            heads[blocks[at][lengths[at]]] = ANEW
        if lengths[at]:
            heads[blocks[at][0]] = at

    def _shared(self, path: "array[int]", owner: int, begin: int, limit: int) -> int:
        """How far ``path`` and the owner's are the same; they are at ``begin``. An id names all that comes before it."""
        other = self._blocks[owner]
        high = min(limit, self._lengths[owner])
        if path[high - 1] == other[high - 1]:
            return high
        low = begin + 1
        high -= 1
        while low < high:
            middle = (low + high) // 2
            if path[middle] == other[middle]:
                low = middle + 1
            else:
                high = middle
        return low


class _Tally:
    """Turns counts of hits into shares."""

    def __init__(self, paths: _Paths, measured_from: int) -> None:
        self.first = measured_from
        self._paths = paths
        self._tokens = sum(paths.inputs[measured_from:])
        self._blocks = sum(paths.kept[measured_from:])

    def hit(self, by_request: Iterable[int]) -> Hit:
        """Of the blocks that each request hit, from the first that counts on."""
        blocks = tokens = 0
        of = self._paths.tokens
        for at, count in enumerate(by_request, self.first):
            blocks += count
            tokens += of(at, count)
        return self.share(tokens, blocks)

    def share(self, tokens: int, blocks: int) -> Hit:
        return Hit(tokens / self._tokens if self._tokens else 0.0, blocks / self._blocks if self._blocks else 0.0)


def _least_recent(paths: _Paths, sizes: list[int], tally: _Tally) -> tuple["array[int]", list[Hit]]:
    """By request, how many of its leading blocks were ever there; and by size, what LRU hits. All sizes in one pass.

    Mattson's stack distances: a block is hit by every cache that is at least as large as the number of blocks used since,
    itself included. Along a path they grow by one a block within a stretch, so each stretch adds one ramp to the curve.
    """
    owners = _Owners(paths, paths.kept)
    count = len(paths)
    owned = [0] * (count + 1)  # a Fenwick tree over requests: how many blocks each of them owns
    total = 0
    begins = array("q", bytes(8 * count))  # by request: where the tail that it owns begins
    seen = array("q", bytes(8 * count))
    whole = [0] * (len(sizes) + 1)  # blocks that this size hits and the one before does not
    part = [0] * len(sizes)  # blocks of stretches that only begin to fit
    short = [0] * (len(sizes) + 1)  # tokens that partial last blocks lack of full ones
    kept, hittable = paths.kept, paths.hittable
    for at in range(count):
        length = kept[at]
        found = list(owners.stretches(at, length))
        limit = hittable[at]
        begin = 0
        for end, owner in found:
            if owner == NEVER:
                break
            newer = total
            node = owner + 1
            while node:
                newer -= owned[node]
                node &= node - 1
            stop = min(end, limit)
            if stop > begin:
                seen[at] = stop
                if at >= tally.first:
                    first = (
                        newer  # as many blocks were used since this stretch, which begins where its owner's tail does
                    )
                    last = first + stop - begin
                    fits = bisect_left(sizes, last)
                    whole[fits] += stop - begin
                    for size in range(bisect_right(sizes, first), fits):
                        part[size] += sizes[size] - first
                    if stop == length and paths.is_partial(at):
                        short[fits] += stop * paths.size - paths.inputs[at]
            begin = end
        for end, owner in found:
            if owner == NEVER:
                break
            less = end - begins[owner]
            begins[owner] = end
            total -= less
            node = owner + 1
            while node <= count:
                owned[node] -= less
                node += node & -node
        total += length
        node = at + 1
        while node <= count:
            owned[node] += length
            node += node & -node
        owners.take(at, found)
    hits = []
    for blocks, partial, lacking in zip(accumulate(whole), part, accumulate(short), strict=False):
        hits.append(tally.share((blocks + partial) * paths.size - lacking, blocks + partial))
    return seen, hits


class _Uses:
    """By request, its path in stretches (where each ends, who needs it next): found from the last request to the first."""

    def __init__(self, paths: _Paths) -> None:
        owners = _Owners(paths, paths.hittable)
        ends, nexts, starts = array("q"), array("q"), array("q", bytes(8 * (len(paths) + 1)))
        for at in range(len(paths) - 1, -1, -1):
            found = list(owners.stretches(at, paths.kept[at]))
            starts[at + 1] = len(ends)
            for end, user in reversed(found):  # all of it is read backwards
                ends.append(end)
                nexts.append(user)
            # The block behind what it may hit is computed anew in any case: nobody needs it before that.
            owners.take(at, found)
        starts[0] = len(ends)
        self._ends, self._nexts, self._starts = ends, nexts, starts

    def of(self, at: int) -> Iterator[tuple[int, int]]:
        """From the head of the path on."""
        ends, nexts = self._ends, self._nexts
        for place in range(self._starts[at] - 1, self._starts[at + 1] - 1, -1):
            yield ends[place], nexts[place]


def _belady(paths: _Paths, uses: _Uses, size: int, tally: _Tally) -> Hit:
    """Evicts what is needed last, of one request the tail first, and keeps nothing that is needed later than all that is there.

    A block's parent is never needed later than the block, or is computed anew before that: then it takes the place of the last
    one that waits for the same request, if there is no other. So of what a request needs next the head is there when it comes,
    and it is enough to know, for each request to come, how many blocks wait for it.
    """
    waiting = [0] * len(paths)
    latest: list[
        int
    ] = []  # of those with blocks waiting, the last one first; negated. Each is there once, and may be done with
    free = size
    blocks = tokens = 0
    for at in range(len(paths)):
        hit = waiting[at]
        waiting[at] = 0
        free += hit
        if at >= tally.first:
            blocks += hit
            tokens += paths.tokens(at, hit)
        begin = 0
        for end, user in uses.of(at):
            if user == NEVER:
                break
            want = end - begin
            begin = end
            if user == ANEW:
                continue
            while free < want and latest and -latest[0] > user:
                last = -latest[0]
                gone = min(waiting[last], want - free)
                waiting[last] -= gone
                free += gone
                if not waiting[last]:
                    heappop(latest)
            got = min(want, free)
            if got:
                if not waiting[user]:
                    heappush(latest, -user)
                waiting[user] += got
                free -= got
            if got < want:
                break
    return tally.share(tokens, blocks)
