"""Why a request goes where it goes, in figures and in one sentence.

Knows a decision, its candidates and the policy that chose. Never chooses: it tells what was chosen, and what each candidate
would have cost. All lengths are tokens; what a cost counts is the policy's own.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from balancer.core import Candidate, Decision, Knowledge, Outcome, Paper, RouteRequest, Truth
from balancer.economics.mix import Mix
from balancer.fleet import LiveReplica, Status
from balancer.knowledge import View
from balancer.matching import usable_blocks
from balancer.policies.base import Policy, costs_of, unit_of
from balancer.router import Router
from indexer.hits import matches
from indexer.index import ReplicaId

NO_SIGNAL: Final = "no signal: all candidates equal"

NO_VIEWS: Final[Mapping[ReplicaId, View]] = {}

_SHOWN: Final = 3
"""Rivals that are named in a sentence."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate, as the policy saw it.

    ``cost`` is what the policy weighs, the lower the better; None for a policy that weighs nothing. ``knowledge`` says how much
    was known of the cache, ``reason`` why not more; None where nobody had looked. ``tiers`` has the prompt's tokens that
    each tier holds, by events alone; ``cached_tokens`` also counts what is still expected. The last token is never counted.
    ``loadable`` are further leading tokens, by the tier or the store that they could be loaded from instead of being computed;
    ``load_tokens`` of them are to be loaded, which takes ``load_seconds``; both are there where that is known.
    ``share`` is there while the replica starts slowly. ``wait_seconds`` is how long it was thought to be busy before this one,
    ``tokens_per_second`` how fast it was thought to compute, ``passed`` how many that are held for it would have been passed,
    ``turnover_seconds`` how long what nobody uses stays in its cache (not there while it has room), ``usage`` the share of the
    cache that running requests need, ``skipped`` how many requests went elsewhere since its last one, less where that was slow.
    """

    replica: ReplicaId
    cached_tokens: int
    queued_tokens: int
    in_flight: int
    cost: float | None = None
    knowledge: Knowledge
    reason: str | None = None
    tiers: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    loadable: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    load_tokens: int | msgspec.UnsetType = msgspec.UNSET
    load_seconds: float | msgspec.UnsetType = msgspec.UNSET
    share: float | msgspec.UnsetType = msgspec.UNSET
    wait_seconds: float = 0.0
    tokens_per_second: float = 0.0
    passed: int | msgspec.UnsetType = msgspec.UNSET
    turnover_seconds: float | msgspec.UnsetType = msgspec.UNSET
    usage: float | msgspec.UnsetType = msgspec.UNSET
    skipped: int = 0
    has_session: bool | msgspec.UnsetType = msgspec.UNSET


class NotAsked(msgspec.Struct, frozen=True):
    """A replica that serves the model and was no candidate; ``tiers`` as in ``Seen``.

    ``status`` is the one that it has; of a replica that is ready it is ``saturated`` (``[admission]``) or ``resting`` (it has
    asked for that).
    """

    replica: ReplicaId
    status: str
    tiers: dict[str, int]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the chosen replica is to do with the prompt; seconds are as if it had nothing else to do.

    ``loads`` are tokens by tier or store. ``hint`` is what its engine is told (``kv_transfer_params``) so that it does that;
    empty where it does so by itself, or cannot be told.
    """

    hit_tokens: int
    loads: dict[str, int]
    load_seconds: float
    computed_tokens: int
    compute_seconds: float
    hint: dict[str, Any]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One decision with its grounds; ``time`` is in seconds since 1970.

    ``knows_tokens`` and ``is_predicted`` are those of ``core.Decision``. ``outcome`` and ``truth`` are None until the request
    has ended, or when it was never sent; then ``request_id`` is empty, and ``not_asked`` has those that were no candidates.
    ``shadow`` is what another policy would have chosen, where one decides on paper. ``plan`` is there where the replica could
    load some of the prompt, and it is known what that costs. ``utilisation``, ``reuse`` and ``goes_on`` are what the policy was
    told besides (``core.Asked``).
    """

    request_id: str
    time: float
    path: str
    model: str
    prompt_tokens: int
    knows_tokens: bool
    is_predicted: bool
    policy: str
    replica: ReplicaId
    cached_tokens: int
    why: str
    candidates: list[Seen]
    not_asked: list[NotAsked] = []
    shadow: Paper | msgspec.UnsetType = msgspec.UNSET
    plan: Plan | msgspec.UnsetType = msgspec.UNSET
    utilisation: float = 0.0
    reuse: float = 0.0
    goes_on: bool = False
    outcome: Outcome | None = None
    truth: Truth | None = None


def seen(
    candidates: Sequence[Candidate],
    costs: Sequence[float] | None,
    views: Mapping[ReplicaId, View] = NO_VIEWS,
    tiers: Mapping[ReplicaId, dict[str, int]] | None = None,
) -> list[Seen]:
    """The candidates, the cheapest first."""
    found = [
        Seen(
            replica=each.replica,
            cached_tokens=each.cached_tokens,
            queued_tokens=each.queued_tokens,
            in_flight=each.in_flight,
            cost=None if costs is None else costs[at],
            knowledge=each.knowledge,
            reason=view.reason if (view := views.get(each.replica)) and view.state is each.knowledge else None,
            tiers=msgspec.UNSET if tiers is None else tiers.get(each.replica, {}),
            loadable={load.source: load.tokens for load in each.loadable} if each.loadable else msgspec.UNSET,
            load_tokens=each.load_tokens if each.load_tokens else msgspec.UNSET,
            load_seconds=each.load_seconds if each.load_tokens else msgspec.UNSET,
            share=each.share if each.share < 1 else msgspec.UNSET,
            wait_seconds=round(each.wait, 6),
            tokens_per_second=round(each.speed, 1),
            passed=each.passed or msgspec.UNSET,
            turnover_seconds=round(each.turnover, 3) if each.turnover < math.inf else msgspec.UNSET,
            usage=each.usage or msgspec.UNSET,
            skipped=each.skipped,
            has_session=each.has_session or msgspec.UNSET,
        )
        for at, each in enumerate(candidates)
    ]
    return sorted(found, key=lambda each: (each.cost or 0, each.replica))


SPLIT: Final = "; a prefill replica computes its prompt first"
"""Of a request that is split."""


def way(decision: Decision) -> str:
    """Who computes the prompt of a request that may be split, and why; empty of all others."""
    estimate = decision.estimate
    if estimate is None:
        return SPLIT if decision.is_split else ""
    if decision.is_split:
        return f"{SPLIT} (predicted {estimate.split:.3f} s, and {estimate.alone:.3f} s alone)"
    return f"; it computes the prompt itself (predicted {estimate.alone:.3f} s, and {estimate.split:.3f} s split)"


def why(decision: Decision, costs: Sequence[float] | None, unit: str = "") -> str:
    """Why the chosen one won, in one sentence; ``costs`` are the candidates', in their order, in ``unit``."""
    candidates = decision.candidates
    if len(candidates) == 1:
        return "it is the only candidate"
    if costs is None:
        if len({_signal(each) for each in candidates}) == 1:
            return NO_SIGNAL
        return f"{decision.policy} weighs no costs; it has a rule of its own"
    busy = {each.replica: each.in_flight / each.share for each in candidates}
    if len(set(costs)) == len(set(busy.values())) == 1:
        return NO_SIGNAL
    by_cost = sorted(zip(costs, busy, strict=True))
    chosen = decision.replica.id
    mine = next(cost for cost, replica in by_cost if replica == chosen)
    rivals = [(cost, replica) for cost, replica in by_cost if replica != chosen]
    equal = [replica for cost, replica in rivals if cost == mine]
    own, other = _figure(mine, unit), _figure(rivals[0][0], unit)
    if rivals[0][0] < mine:
        return f"{decision.policy} chose it at a cost of {own}, though {rivals[0][1]} costs {other}"
    if not equal:
        return f"it has the lowest cost, {own}; next is {rivals[0][1]} with {other}"
    if all(busy[chosen] <= busy[replica] for replica in equal):
        alike = [replica for replica in equal if busy[replica] == busy[chosen]]
        if not alike:
            return f"it has the lowest cost, {own}, as {_named(equal)}, and the fewest requests in flight of these"
        equal = alike
    leans = any(each.lean for each in candidates)
    decided = "the prompt leans to it" if leans else "chance chose among them"
    return f"it has the lowest cost, {own}, as {_named(equal)}; {decided}"


def _signal(candidate: Candidate) -> Candidate:
    """All of it that a rule could weigh; whose turn it is, and where a prompt leans to, decide between equals."""
    return msgspec.structs.replace(candidate, replica=ReplicaId(""), last_lease=0, skipped=0, lean=0)


def _named(replicas: Sequence[ReplicaId]) -> str:
    more = len(replicas) - _SHOWN
    return ", ".join(replicas[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def explain(
    decision: Decision,
    policy: Policy,
    *,
    request_id: str,
    time: float,
    path: str,
    model: str,
    views: Mapping[ReplicaId, View],
    tiers: Mapping[ReplicaId, dict[str, int]] | None = None,
    not_asked: Sequence[NotAsked] = (),
) -> Explanation:
    """The decision with its grounds, before anything has come of it."""
    costs = costs_of(policy, decision.candidates, decision.asked)
    return Explanation(
        request_id=request_id,
        time=time,
        path=path,
        model=model,
        prompt_tokens=decision.prompt_tokens,
        knows_tokens=decision.knows_tokens,
        is_predicted=decision.is_predicted,
        policy=decision.policy,
        replica=decision.replica.id,
        cached_tokens=decision.cached_tokens,
        why=why(decision, costs, unit_of(policy)) + way(decision),
        candidates=seen(decision.candidates, costs, views, tiers),
        not_asked=list(not_asked),
        shadow=msgspec.UNSET if decision.shadow is None else decision.shadow,
        plan=plan_of(decision),
        utilisation=round(decision.asked.utilisation, 4),
        reuse=round(decision.asked.reuse, 4),
        goes_on=decision.asked.goes_on,
    )


def plan_of(decision: Decision) -> Plan | msgspec.UnsetType:
    """What was planned, or told without a plan; nothing where neither was."""
    mix = decision.mix
    if mix is None and not decision.hint:
        return msgspec.UNSET
    if mix is None:  # nothing was found to load, and nothing is to be loaded whatever the engine finds
        chosen = next(each for each in decision.candidates if each.replica == decision.replica.id)
        mix = Mix(decision.cached_tokens, (), chosen.computed_tokens, chosen.computed_tokens / chosen.speed)
    return Plan(
        hit_tokens=mix.hit_tokens,
        loads={load.source: load.tokens for load in mix.loads},
        load_seconds=mix.load_seconds,
        computed_tokens=mix.computed_tokens,
        compute_seconds=mix.compute_seconds,
        hint=decision.hint,
    )


def tiers(router: Router, request: RouteRequest, candidates: Sequence[Candidate]) -> dict[ReplicaId, dict[str, int]]:
    """Leading tokens of the request that each tier of each candidate holds, by events alone; summed over its prompts."""
    live = [found for each in candidates if (found := router.fleet.get(each.replica)) is not None]
    return {each.replica.id: _held(router, request, each) for each in live}


def not_asked(router: Router, request: RouteRequest, candidates: Sequence[Candidate]) -> list[NotAsked]:
    """Who serves the request's model, and is not among these candidates."""
    asked = {each.replica for each in candidates}
    away = [live for live in router.fleet.serving(request.model) if live.replica.id not in asked]
    return [NotAsked(live.replica.id, _why_not(router, live), _held(router, request, live)) for live in away]


def _why_not(router: Router, live: LiveReplica) -> str:
    status = router.status(live)
    if status is not Status.READY:
        return status
    return "saturated" if router.is_saturated(live) else "resting"


def _held(router: Router, request: RouteRequest, live: LiveReplica) -> dict[str, int]:
    replica = live.replica
    recipe = router.caches.recognitions[replica.id].recipe
    found: dict[str, int] = {}
    if recipe is None or not request.reads_cache:
        return found
    rule = router.caches.recognitions[replica.id].rule
    chains = request.hashes.chains(recipe, replica.adapter(request.model))
    for tier, table in router.caches.index.tiers.items():
        if not table.blocks(replica.id):
            continue
        bit = table.bit(replica.id)
        tokens = 0
        for chain, length in zip(chains, request.prompt_lengths, strict=False):
            if rule is None:
                ((_, depth),) = table.depths(chain, usable_blocks(length, recipe.block_size), bit)
                tokens += depth * recipe.block_size
            else:
                tokens += dict(matches(rule, table, chain, length, [bit])).get(bit, 0)
        if tokens:
            found[tier.label] = tokens
    return found


def _figure(cost: float, unit: str) -> str:
    return f"{cost:,.9g} {unit}".rstrip()
