"""The simple model block by block, behind the router that production runs: what ``simulations.simple`` has to agree with.

Slow and plain: one list of blocks a replica, searched and cut as the page of the model says, and a ``Router`` that is told of
each block that is stored or removed.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from balancer.core import Outcome, Replica, RouteRequest
from balancer.policies.base import Policy
from balancer.router import Router
from hashing.recipes import Recipe
from indexer.events import EMPTY, AllBlocksCleared, BlockRemoved, BlockStored
from indexer.index import ReplicaId
from simulations.given_keys import GivenKeys, proof
from simulations.simple import MODEL, SimpleFleet
from simulations.traces.trace import NO_SESSION, Trace

Played = list[tuple[int, int, float]]
"""By request: replica, tokens from the cache, time to first token."""


class _Blocks:
    """One replica's cache: keys that nobody uses, next victim first, and keys in use."""

    def __init__(self, capacity: int) -> None:
        self.empty = capacity
        self.idle: list[int] = []
        self.uses: dict[int, int] = {}

    def holds(self, key: int) -> bool:
        return key in self.uses or key in self.idle


def play_blocks(trace: Trace, fleet: SimpleFleet, policy: Policy, name: str, sessions: Any, seed: int) -> Played:
    size, dice = fleet.block_size, random.Random(seed)
    assert trace.block_size == size, "blocks are compared as they are"
    router = Router(policy, name)
    recipe = Recipe(block_size=size)
    names = [ReplicaId(f"r{number:03}") for number in range(fleet.replicas)]
    caches = [_Blocks(fleet.blocks) for _ in names]
    for each in names:
        router.put(Replica(each, f"http://{each}", models=(MODEL,), recipe=recipe, num_gpu_blocks=fleet.blocks))
        router.caches.apply(each, [proof(recipe), AllBlocksCleared()])
        live = router.fleet.get(each)
        assert live is not None
        live.fix_speed(fleet.prefill_tps)
    speed = fleet.replicas * fleet.prefill_tps
    scale = trace.input_tokens / (speed * fleet.load * trace.seconds) if fleet.load and trace.seconds else 1.0
    keys = [
        [each + 1 for each in ids[: tokens // size]] for ids, tokens in zip(trace.blocks, trace.inputs, strict=True)
    ]
    played: Played = [(-1, 0, 0.0)] * len(trace)
    queues: list[deque[int]] = [deque() for _ in names]
    busy, answers = [False] * len(names), [0] * len(names)
    leases: dict[int, int] = {}
    of: dict[int, int] = {}
    dues = [-1.0] * len(names)
    events: list[tuple[float, int, str, tuple[Any, ...]]] = []
    order = iter(range(10**9))

    def push(when: float, kind: str, *what: Any) -> None:
        heapq.heappush(events, (when, next(order), kind, what))

    def begin(now: float, at: int) -> None:
        if busy[at] or not queues[at]:
            return
        request, cache = queues[at][0], caches[at]
        mine, tokens = keys[request], trace.inputs[request]
        held = 0
        while held < len(mine) and cache.holds(mine[held]):
            held += 1
        hit = min(held, (tokens - 1) // size)
        needed = -(-(tokens + trace.outputs[request]) // size) - hit
        free = [key for key in cache.idle if key not in mine[:held]]
        if needed > cache.empty + len(free):
            return
        queues[at].popleft()
        for key in mine[:held]:
            if key in cache.idle:
                cache.idle.remove(key)
            cache.uses[key] = cache.uses.get(key, 0) + 1
        taken = min(needed, cache.empty)
        cache.empty -= taken
        gone, cache.idle = cache.idle[: needed - taken], cache.idle[needed - taken :]
        if gone:
            router.caches.apply(names[at], [BlockRemoved(gone, medium="GPU", group_idx=0)])
        busy[at] = True
        played[request] = (at, hit * size, played[request][2])
        push(now + (tokens - hit * size) / fleet.prefill_tps, "computed", at, request, held, needed)

    def computed(now: float, at: int, request: int, held: int, needed: int) -> None:
        cache, mine = caches[at], keys[request]
        new = [key for key in mine[held:] if not cache.holds(key)]
        for key in mine[held:]:
            cache.uses[key] = cache.uses.get(key, 0) + 1
        if new:
            first = len(mine) - len(new)
            event = BlockStored(new, mine[first - 1] if first else None, EMPTY, size, medium="GPU", group_idx=0)
            router.caches.apply(names[at], [event])
        router.started(leases[request], now)
        played[request] = (at, played[request][1], now - played[request][2])
        router.caches.expect_no_more(leases[request])
        busy[at] = False
        answers[at] += 1
        seconds = trace.outputs[request] * fleet.decode_seconds * (1 + fleet.decode_slowdown * answers[at])
        push(now + seconds, "ended", at, request, needed - len(new))
        dispatch(now, at)

    def dispatch(now: float, at: int) -> None:
        live = router.fleet.get(names[at])
        assert live is not None
        for lease in router.fleet.dispatch(live, now):
            queues[at].append(of[lease])
        begin(now, at)
        look_later(at)

    def look_later(at: int) -> None:
        live = router.fleet.get(names[at])
        assert live is not None
        due = router.fleet.due(live)
        if due is not None and due != dues[at]:
            dues[at] = due
            push(due, "dispatch", at)

    def ended(now: float, at: int, request: int, others: int) -> None:
        cache = caches[at]
        answers[at] -= 1
        cache.empty += others
        for key in reversed(keys[request]):
            cache.uses[key] -= 1
            if not cache.uses[key]:
                del cache.uses[key]
                cache.idle.append(key)
        router.release(leases.pop(request), Outcome.CANCELLED, now)
        begin(now, at)

    def arrive(now: float, request: int) -> None:
        session = sessions[request]
        wanted = RouteRequest(
            MODEL,
            GivenKeys(keys[request]),
            (trace.inputs[request],),
            session=0 if session == NO_SESSION else session + 1,
        )
        for each, cache in zip(names, caches, strict=True):
            live = router.fleet.get(each)
            assert live is not None
            live.usage, live.usage_at = 1 - (cache.empty + len(cache.idle)) / fleet.blocks, now
        decision = router.route(wanted, now, dice.random())
        leases[request] = decision.lease
        of[decision.lease] = request
        at = names.index(decision.replica.id)
        played[request] = (at, 0, now)
        if not router.is_held(decision.lease):
            queues[at].append(request)
            begin(now, at)
        else:
            dispatch(now, at)

    happens: dict[str, Callable[..., None]] = {"computed": computed, "ended": ended, "dispatch": dispatch}
    for request, arrival in enumerate(trace.arrivals):
        now = arrival * scale
        while events and events[0][0] <= now:
            when, _, kind, what = heapq.heappop(events)
            happens[kind](when, *what)
        arrive(now, request)
    while events:
        when, _, kind, what = heapq.heappop(events)
        happens[kind](when, *what)
    return played
