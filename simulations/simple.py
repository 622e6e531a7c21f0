"""The simple model: a fleet whose replicas compute one prompt after the other, at one speed, beside any number of answers.

Knows arrivals, one lane of prefill a replica, caches by segments, and the policy, which sees the same candidates that it sees
in the gateway (``balancer.fleet`` keeps the load). Never knows steps, batches or events: what a cache holds is known at once.
Time and chance come from the trace and the seed alone, so a run repeats to the bit.

A request holds ``ceil((input + output) / block size)`` blocks from the start of its prefill to its end. It hits the longest
prefix of full blocks that is cached when its prefill starts, but its last token is always computed. Its own full blocks
become cached when its prefill ends; output is not cached. Who is first in the lane waits while the blocks do not fit. Where the
policy has an order, requests are held until the lane has little left to do, and go in that order. An
answer takes ``output * decode_seconds * (1 + decode_slowdown * answers under way)``. Time to first token is waiting plus
prefill.

With a store (``simulations.store``), whose turn it is loads first what is planned of what it does not hit, and gives way to the
next one until that is there; then it is the first to be computed. Loads of a replica go over its link one after the other.
"""

import random
from collections.abc import Sequence
from typing import Annotated

import msgspec

from balancer.core import DEFAULT_FEED, Asked, Candidate, Replica
from balancer.fleet import Fleet
from balancer.leaning import BEGINNING, beginning, lean
from balancer.policies.base import Policy, rank_of
from indexer.index import Keys, ReplicaId
from simulations.arrivals import Arrivals, scale_to
from simulations.course import Course
from simulations.holdings import Holdings
from simulations.lanes import Lane, PathChain, Taken
from simulations.paths import Paths
from simulations.results import Run
from simulations.segment_cache import SegmentCache
from simulations.sizes import Replicas
from simulations.store import Store, StoreSettings
from simulations.traces.trace import NO_SESSION, Trace

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
Count = Annotated[int, msgspec.Meta(ge=1)]

MODEL = "m"

LEAST_IDLE = 0.01
"""Of the fleet's time, when the price of what is computed is made of it."""


class SimpleFleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fleet of equal replicas.

    Attributes:
        replicas: how many.
        blocks: that each has, of ``block_size`` tokens.
        prefill_tps: uncached prompt tokens that a replica computes a second.
        decode_seconds: from one token of an answer to the next, when it is the only one.
        decode_slowdown: how much longer that takes for each answer under way, as a share.
        rate: by what the trace is played faster than it was recorded.
        load: instead of ``rate``, prompt tokens a second over what all replicas compute a second: the trace's time is
            stretched to that.
        closed_loop: requests of a session come a pause after the answer to the one before, as far as the trace tells pauses.
        pooled: one cache of ``replicas * blocks`` that all share, at no cost: nobody can do that, and few rules can do better.
        believed_tps: the speed that the router takes replicas to have; their own by default.
        store: a shared store, from which replicas load what they do not hold.
    """

    replicas: Replicas = 8
    blocks: Count = 8192
    block_size: Count = 512
    prefill_tps: Positive = 10_000.0
    decode_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.02
    decode_slowdown: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.01
    rate: Positive = 1.0
    load: Positive | None = None
    closed_loop: bool = False
    pooled: bool = False
    believed_tps: Positive | None = None
    store: StoreSettings | None = None

    def __post_init__(self) -> None:
        if self.store is not None and self.store.tokens is not None:
            raise ValueError(
                "store.tokens: the simple model's store forgets nothing; leave it out, or play the detailed one"
            )


def play(
    trace: Trace, paths: Paths, fleet: SimpleFleet, policy: Policy, name: str, sessions: Sequence[int], seed: int = 1
) -> Run:
    """Every request of the trace, in its order, through the policy called ``name``.

    ``paths`` are the trace's, for the fleet's block size; ``sessions`` a number for each request, ``NO_SESSION`` for none.
    """
    return _Play(trace, paths, fleet, policy, sessions, random.Random(seed)).run(name, seed)


class _Play(Course):
    """One run, until it is over."""

    def __init__(
        self,
        trace: Trace,
        paths: Paths,
        fleet: SimpleFleet,
        policy: Policy,
        sessions: Sequence[int],
        dice: random.Random,
    ) -> None:
        if paths.block_size != fleet.block_size:
            raise ValueError(f"paths are of blocks of {paths.block_size} tokens, the fleet's have {fleet.block_size}")
        load, speed = fleet.load, fleet.replicas * fleet.prefill_tps
        scale = 1 / fleet.rate if load is None else scale_to(trace, load * speed)
        super().__init__(trace, Arrivals(trace, scale, closed_loop=fleet.closed_loop))
        self._paths = paths
        self._settings = fleet
        self._choose = policy.choose
        self._draw = dice.random
        self._sessions = sessions
        self._at: dict[int, int] = {}  # session -> replica of its last request
        self._ends: set[int] = set()  # segments at whose end a prompt has ended
        self._reads_prompt: bool = getattr(policy, "reads_prompt", False)
        self._expecting: bool = getattr(policy, "counts_expected", True)
        self._trial_after: int | None = getattr(policy, "trial_after", None)
        self._rank = rank_of(policy)
        self._fleet = Fleet(getattr(policy, "feed", DEFAULT_FEED))
        self._held: dict[int, int] = {}  # lease -> request
        self._lanes = self._build()
        self._live = [lane.live for lane in self._lanes]
        self._holdings = Holdings(paths.lengths, [lane.cache.held for lane in self._lanes])
        self._writes = fleet.store is not None and fleet.store.write_gbits is not None
        self._stored = bytearray(len(paths.lengths)) if self._writes else self._holdings.computed  # by segment
        self._store = (
            None
            if fleet.store is None
            else Store(fleet.store, fleet.block_size, fleet.prefill_tps, paths.lengths, self._stored)
        )
        self._until: dict[int, int] = {}  # lease -> tokens up to which it loads
        if fleet.store is not None:
            self._divide_links(fleet.store.hub())

    def _build(self) -> list[Lane]:
        settings, lengths = self._settings, self._paths.lengths
        capacity = settings.blocks * (settings.replicas if settings.pooled else 1)
        shared = SegmentCache(capacity, lengths) if settings.pooled else None
        lanes = []
        for number in range(settings.replicas):
            name = ReplicaId(f"r{number:03}")
            self._fleet.put(Replica(name, f"http://{name}", models=(MODEL,)))
            live = self._fleet.get(name)
            assert live is not None, "what was put is there"
            live.fix_speed(settings.believed_tps or settings.prefill_tps)
            live.room_tokens = settings.blocks * settings.block_size
            lanes.append(Lane(number, shared or SegmentCache(capacity, lengths), live))
        return lanes

    def run(self, name: str, seed: int) -> Run:
        self._play(self._arrive)
        settings = msgspec.structs.asdict(self._settings)
        store = settings.pop("store")
        settings |= {} if store is None else {"store": msgspec.json.encode(store).decode()}
        busy = [lane.busy_seconds for lane in self._lanes]
        loading = [lane.reader.loading_seconds for lane in self._lanes]
        if self._links is not None:
            loading = [self._links.seconds.get((lane.number, 0), 0.0) for lane in self._lanes]
        return self._run_of(name, seed, {"model": "simple", **settings}, busy, loading)

    # What happens

    def _arrive(self, now: float, request: int) -> None:
        self._arrivals[request] = now
        tokens = self._trace.inputs[request]
        size = self._settings.block_size
        if -(-(tokens + self._trace.outputs[request]) // size) > self._lanes[0].cache.capacity:
            self._follow(now, request, self._arrive)  # no replica could ever hold it
            return
        path = self._paths.paths[request]
        session = self._sessions[request]
        at = self._at.get(session) if session != NO_SESSION else None
        usable = (tokens - 1) // size
        depths = self._holdings.depths(path, expecting=self._expecting)
        leading = 0 if any(depths) else self._beginning(request)
        stored = 0 if self._store is None else min(self._store.depth(path), usable)
        price = 1 / max(LEAST_IDLE, 1 - self._fleet.utilisation(self._live[0], now))
        candidates = []
        speed = self._settings.believed_tps or self._settings.prefill_tps
        for number, (live, depth) in enumerate(zip(self._live, depths, strict=True)):
            cached = (depth if depth < usable else usable) * size
            wait, passed = live.wait(now), 0
            loads, load_seconds = 0, 0.0
            if self._store is not None and stored * size > cached:
                mix = self._store.plan(tokens, cached, stored, self._lanes[number].reader.wait(now, wait), price)
                loads, load_seconds = mix.loaded_tokens, mix.load_seconds
            if live.held and (rank := self._rank((tokens - cached - loads) / speed, now)) is not None:
                wait, passed = live.standing(rank, now)
            candidates.append(
                Candidate(
                    live.replica.id,
                    tokens,
                    cached,
                    live.queued_tokens,
                    live.in_flight,
                    live.last_lease,
                    lean=lean(leading, live.replica.id) if leading else 0,
                    wait=wait,
                    speed=speed,
                    waiting=live.waiting,
                    active_tokens=live.active_tokens,
                    room_tokens=live.room_tokens,
                    has_session=number == at,
                    passed=passed,
                    turnover=live.turnover(now),
                    usage=self._lanes[number].cache.usage,
                    skipped=live.skipped,
                    load_tokens=loads,
                    load_seconds=load_seconds,
                )
            )
        chain: Keys | None = self._chain(request) if self._reads_prompt else None
        ends: set[int] = set()
        after = self._trial_after
        is_unused = after is not None and max([each.skipped for each in candidates]) >= after * len(candidates)
        if is_unused:  # as balancer.router looks for them
            ends = self._ends.intersection(path if self._paths.own[request] else path[:-1])
        goes_on = bool(ends) or (is_unused and at is not None)
        first = self._live[0]
        utilisation, reuse = self._fleet.utilisation(first, now), self._fleet.reuse(first)
        asked = Asked(session + 1, chain, self._trace.block_size, utilisation, reuse, goes_on)
        chosen = self._choose(candidates, self._draw(), asked)
        number = candidates.index(chosen)
        lane = self._lanes[number]
        if session != NO_SESSION:
            self._at[session] = number
        self._chosen[request] = number
        self._ends -= ends
        if path and not self._paths.own[request]:
            self._ends.add(path[-1])
        uncached = chosen.computed_tokens
        if not self._expecting:  # as balancer.router does
            depth = self._holdings.depths(path, expecting=True)[number]
            uncached = tokens - min(depth, usable) * size
        rank = self._rank(uncached / speed, now)
        lease = self._fleet.acquire(lane.live, uncached, tokens, now, rank, loads=chosen.load_tokens)
        if chosen.load_tokens and self._store is not None:
            self._until[lease] = chosen.cached_tokens + chosen.load_tokens
            lane.reader.expect(now, self._store.seconds(chosen.load_tokens))
        self._holdings.expect(lease, number, path)
        if self._fleet.is_held(lease):
            self._held[lease] = request
            self._dispatch(now, lane)
        else:
            lane.queue.append((request, lease))
            self._begin(now, lane)
        self._look_later(lane)

    def _dispatch(self, now: float, lane: Lane) -> None:
        """Those whose turn it is are held no longer."""
        for lease in self._fleet.dispatch(lane.live, now):
            lane.queue.append((self._held.pop(lease), lease))
        self._begin(now, lane)
        self._look_later(lane)

    def _look_later(self, lane: Lane) -> None:
        due = self._fleet.due(lane.live)
        if due is not None and due != lane.due:
            lane.due = due
            self._push(due, self._dispatch, lane)

    def _beginning(self, request: int) -> int:
        """How a prompt begins that nobody holds anything of, as ``balancer.router`` takes it."""
        if self._trace.inputs[request] < BEGINNING:
            return 0
        return beginning([self._chain(request)], self._trace.block_size)

    def _chain(self, request: int) -> PathChain:
        full = self._trace.inputs[request] // self._trace.block_size
        return PathChain(self._trace.blocks[request][:full])

    def _begin(self, now: float, lane: Lane) -> None:
        """Who can be computed, if the lane is free; those before who have something to load give way meanwhile."""
        while not lane.busy:
            if lane.loaded:
                self._compute(now, lane, lane.loaded.popleft())
                return
            taken = self._take(lane)
            if taken is None:
                return
            until = self._until.pop(taken.lease, 0)
            if until <= taken.there:
                self._compute(now, lane, taken)
                return
            assert self._store is not None, "it was planned"
            tokens, loaded = until - taken.there, msgspec.structs.replace(taken, there=until)
            if self._links is None:
                self._push(lane.reader.load(now, self._store.seconds(tokens)), self._has_loaded, lane, loaded)
            else:
                self._links.begin(now, (lane.number, 0), self._store.size(tokens), self._has_loaded, lane, loaded)

    def _take(self, lane: Lane) -> Taken | None:
        """The first one in the lane, if the blocks fit."""
        if not lane.queue:
            return None
        request, lease = lane.queue[0]
        size = self._settings.block_size
        tokens, path = self._trace.inputs[request], self._paths.paths[request]
        used, found = lane.cache.find(path)
        hit = min(found, (tokens - 1) // size)
        needed = -(-(tokens + self._trace.outputs[request]) // size) - hit
        broken = lane.cache.take(path[:used], needed)
        if broken is None:
            return None
        lane.queue.popleft()
        self._holdings.lose(lane.number, broken) if not self._settings.pooled else self._lose_everywhere(broken)
        return Taken(request, lease, used, needed, hit * size)

    def _has_loaded(self, now: float, lane: Lane, taken: Taken) -> None:
        lane.loaded.append(taken)
        self._begin(now, lane)

    def _compute(self, now: float, lane: Lane, taken: Taken) -> None:
        request, there = taken.request, taken.there
        self._explain(request, there // self._settings.block_size)
        self._holdings.begin(lane.number, self._paths.paths[request])
        seconds = (self._trace.inputs[request] - there) / self._settings.prefill_tps
        self._hits[request] = there
        lane.busy = True
        lane.busy_seconds += seconds
        self._push(now + seconds, self._prefilled, lane, request, taken.lease, taken.used, taken.needed)

    def _prefilled(self, now: float, lane: Lane, request: int, lease: int, used: int, taken: int) -> None:
        self._ttfts[request] = now - self._arrivals[request]
        path = self._paths.paths[request]
        new, blocks = lane.cache.keep(path, used)
        for number in range(len(self._lanes)) if self._settings.pooled else (lane.number,):
            self._holdings.keep(number, new)
        self._holdings.end(lane.number, path)
        if self._writes:
            self._write(now, lane, request)
        self._holdings.expect_no_more(lease, lane.number, path)
        self._fleet.started(lease, now)
        lane.busy = False
        lane.answers += 1
        settings = self._settings
        seconds = self._trace.outputs[request] * settings.decode_seconds * (1 + settings.decode_slowdown * lane.answers)
        self._push(now + seconds, self._ended, lane, request, lease, taken - blocks)
        self._dispatch(now, lane)

    def _write(self, now: float, lane: Lane, request: int) -> None:
        """What was computed goes to the store, as far as it is not there."""
        store, stored, lengths = self._settings.store, self._stored, self._paths.lengths
        assert store is not None, "it is written there"
        path = self._paths.paths[request]
        blocks = self._paths.own[request] + sum([lengths[segment] for segment in path if not stored[segment]])
        if blocks:
            seconds = store.write_seconds(blocks * self._settings.block_size)
            self._push(lane.writer.load(now, seconds), self._written, path)

    def _written(self, _: float, path: Sequence[int]) -> None:
        for segment in path:
            self._stored[segment] = 1

    def _ended(self, now: float, lane: Lane, request: int, lease: int, others: int) -> None:
        lane.answers -= 1
        lane.cache.free(self._paths.paths[request], others)
        self._fleet.release(lease, now)
        self._latencies[request] = now - self._arrivals[request]
        self._end = now
        for each in self._lanes if self._settings.pooled else (lane,):
            self._begin(now, each)
        self._follow(now, request, self._arrive)

    def _lose_everywhere(self, segments: Sequence[int]) -> None:
        for number in range(len(self._lanes)):
            self._holdings.lose(number, segments)

    def _explain(self, request: int, hit: int) -> None:
        """Why what it does not hit has to be computed. Who begins with a block that nobody has begun with is its first."""
        holdings, lengths, size = self._holdings, self._paths.lengths, self._settings.block_size
        tokens, path = self._trace.inputs[request], self._paths.paths[request]
        longest = holdings.longest(path)
        usable = min((tokens - 1) // size, tokens // size - self._paths.own[request])
        new = in_flight = elsewhere = evicted = 0
        begin = end = 0
        for segment in path:
            begin, end = end, min(end + lengths[segment], usable)
            if end <= hit:
                continue
            begin = max(begin, hit)
            if begin < longest:
                there = min(end, longest)
                elsewhere += there - begin
                if there == end:
                    continue
                begin = there
            if holdings.computing[segment]:
                in_flight += end - begin
            elif holdings.computed[segment]:
                evicted += end - begin
            else:
                new += end - begin
        missed = self._missed
        missed[0] += tokens - (usable - new) * size
        missed[1] += in_flight * size
        missed[2] += elsewhere * size
        missed[3] += evicted * size
