"""The brain: the choice of a replica for each request, by what its cache holds and by what it has to do.

Knows the caches, the fleet and the policy, and binds them together. Never knows sockets, bodies or clocks: news comes in
through ``put``, ``set_status`` and ``caches.observe``, time as ``now`` (seconds, any monotonic clock), chance as ``draw``.
Between calls: each open lease belongs to one replica, and is released exactly once.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from balancer.admission import AdmissionSettings, Pool
from balancer.arms import Arm, Arms, arm
from balancer.caches import Caches, Sent
from balancer.continuing import Ends
from balancer.core import Asked, Candidate, Decision, Failure, Load, Outcome, Paper, Replica, RouteRequest, Truth
from balancer.disaggregation.choosing import Threshold, Worth
from balancer.disaggregation.estimate import Estimate
from balancer.disaggregation.roles import PREFILL_SESSION, Part, Role
from balancer.economics.economy import Economy, tier_of
from balancer.economics.hints import forbids
from balancer.economics.mix import Mix
from balancer.ejection import Ejections, EjectionSettings
from balancer.errors import Contended, NoReplica, Saturated, UnknownModel
from balancer.fleet import Fleet, LiveReplica, Status
from balancer.healing import SETTLE_SECONDS
from balancer.leaning import BEGINNING, lean
from balancer.load_plans import NO_ECONOMY, NO_PLANS, LoadPlans, Turn
from balancer.loading import NO_LOADS, NOTHING
from balancer.matching import Holding
from balancer.policies.base import Policy
from balancer.sessions import Sessions
from balancer.shadow import Seen, Shadow
from balancer.siblings.others import NOBODY
from balancer.slow_start import SlowStart, SlowStartSettings
from balancer.stages import UNTIMED, Stage
from balancer.stores import Store
from balancer.transfers import ANSWER_WEIGHT, NO_ESTIMATES, Transfers
from balancer.words import counted
from indexer.index import MAX_BLOCKS, ReplicaId

NOTHING_KNOWN: Final = Holding([], 0)
"""Of a request whose tokens nobody knows."""


class _Seen(msgspec.Struct, frozen=True):
    """What a policy has chosen by, which one it was, and what another would have chosen."""

    candidates: tuple[Candidate, ...]
    asked: Asked
    arm: Arm
    shadow: Paper | None
    mixes: Mapping[ReplicaId, Mix]
    ends: list[int]
    estimates: Mapping[ReplicaId, Estimate]


NO_ADMISSION: Final = AdmissionSettings()
DEFAULT_EJECTION: Final = EjectionSettings()
DEFAULT_SLOW_START: Final = SlowStartSettings()
DEFAULT_WORTH: Final = Threshold(0)

MAX_REST: Final = 60.0
"""Seconds; the longest time that a replica is spared because it has asked for it."""


class Router:
    """Routes requests by what each replica's cache holds. Changes with every call but the questions."""

    def __init__(
        self,
        policy: Policy,
        policy_name: str,
        max_blocks: int = MAX_BLOCKS,
        *,
        admission: AdmissionSettings = NO_ADMISSION,
        ejection: EjectionSettings = DEFAULT_EJECTION,
        slow_start: SlowStartSettings = DEFAULT_SLOW_START,
        second: Arm | None = None,
        shadow: Arm | None = None,
        stores: Iterable[Store] = (),
        worth: Worth = DEFAULT_WORTH,
        economy: Economy = NO_ECONOMY,
        answer_weight: float = ANSWER_WEIGHT,
    ) -> None:
        """``second`` decides for its share of requests, ``shadow`` on paper alone; ``stores`` are read by replicas.

        ``worth`` says whether a prompt is to be computed elsewhere, where that is possible; ``economy`` what it costs to load
        from stores, from tiers of their own and from other replicas, ``answer_weight`` what answers lose (``Transfers``).
        """
        self.arms = Arms(arm(policy_name, policy), second)
        self.caches = Caches(max_blocks, stores)
        self.shadow = None if shadow is None else Shadow(shadow, self.caches.matcher)
        self.fleet = Fleet(self.arms.feed)
        self.load_plans = LoadPlans(economy)
        self.transfers = Transfers(economy, answer_weight)
        self._admission = admission
        self._worth = worth
        self.ejections = Ejections(ejection)
        self.slow_start = SlowStart(slow_start)
        self.sessions = Sessions()
        self._ends = Ends()
        self._open: dict[int, Sent | None] = {}  # None where somebody else has routed it
        self._settling: dict[int, float] = {}  # lease -> when its expectations end; in order of time

    def __repr__(self) -> str:
        return f"<Router {self.policy_name}: {self.fleet!r}, {self.caches!r}>"

    @property
    def policy(self) -> Policy:
        """The one that decides where no other does."""
        return self.arms.first.policy

    @property
    def policy_name(self) -> str:
        return self.arms.first.name

    # News

    def put(self, replica: Replica) -> None:
        """Add a replica or replace what is known of it."""
        self.fleet.put(replica)
        self.caches.put(replica)
        live = self.fleet.get(replica.id)
        if live is not None and replica.recipe is not None:
            live.room_tokens = (replica.num_gpu_blocks or 0) * replica.recipe.block_size

    def remove(self, replica: ReplicaId) -> None:
        """The replica is gone: forget its cache, and drop events of it that are still on their way."""
        self.caches.remove(replica)
        self.fleet.remove(replica)
        self.load_plans.forget(replica)
        self.transfers.forget(replica)
        self.ejections.forget(replica)
        self.sessions.forget(replica)
        self._ends.forget(replica)

    def set_status(self, replica: ReplicaId, status: Status) -> None:
        self.fleet.set_status(replica, status)

    # The two calls of a request

    def route(self, request: RouteRequest, now: float, draw: float) -> Decision:
        """Choose a replica; the decision is a lease.

        Raises:
            UnknownModel: no replica serves this model, not even one that is lost.
            NoReplica: none of those that do can take a request now.
            Saturated: each of them that can has as much to do as it may have.
            Contended: each of them has asked not to be sent anything for a while.
        """
        live, chosen, seen = self._choose(request, now, draw)
        is_split = self._is_split(request, live, chosen, seen, now)
        computed, loads = (0, 0) if is_split else (chosen.computed_tokens, chosen.load_tokens)
        came_at = now if request.came_at is None else request.came_at
        rank = seen.arm.rank(computed / chosen.speed, came_at)
        if live.replica.id in self.ejections:  # a trial, or nobody else is left: only what is sent there can end that
            rank = None
        if rank is not None:
            rank += request.yields
        live.asked(request.model)
        # While its prompt is computed elsewhere it is not this replica that is late.
        tells_start = request.tells_start and not is_split
        hint = {} if is_split else self._hint(request, live, chosen, seen, now)
        can_load = not is_split and self.caches.can_load(live.replica.id)
        lease = self.fleet.acquire(
            live,
            computed,
            chosen.prompt_tokens,
            now,
            rank,
            tells_start=tells_start,
            loads=loads,
            may_load=can_load and not (hint and forbids(hint, map(tier_of, self.caches.loader.places(live.replica)))),
        )
        if is_split and (estimate := seen.estimates.get(live.replica.id)) is not None:
            self.transfers.sent(live.replica.id, estimate, now)
        decision, holding = self._decision(request, live.replica, chosen, seen, lease, hint, is_split=is_split)
        if decision.mix is not None or hint:
            self.load_plans.sent(live, decision.mix, hint, now)
        if self.shadow is not None and seen.shadow is not None:
            self.shadow.count(seen.shadow, seen.arm.name, chosen, knows_tokens=decision.knows_tokens)
        self._open[lease] = self.caches.sent(decision, request, holding.missing)
        self.sessions.sent(request.session, live.replica.id)
        self._ends.passed(seen.ends)
        self._note_end(request, live.replica)
        request.stages.passed(Stage.MATCH)
        self.ejections.sent(live.replica.id, lease, now)
        return decision

    def adopt(self, replica: ReplicaId, queued_tokens: int, now: float) -> int | None:
        """A request that somebody else has sent there counts from now on; its lease, or None where there is no such replica.

        Nothing is expected of it but its work; with none left, it has begun to answer.
        """
        live = self.fleet.get(replica)
        if live is None:
            return None
        lease = self.fleet.adopt(live, queued_tokens, now)
        self._open[lease] = None
        self.ejections.sent(replica, lease, now)
        return lease

    def consider(self, request: RouteRequest, now: float, draw: float) -> Decision:
        """What ``route`` would decide. It is no lease (its number is 0), and changes nothing.

        Raises:
            UnknownModel, NoReplica, Contended, Saturated: as ``route``.
        """
        live, chosen, seen = self._choose(request, now, draw)
        is_split = self._is_split(request, live, chosen, seen, now)
        hint = {} if is_split else self._hint(request, live, chosen, seen, now)
        return self._decision(request, live.replica, chosen, seen, 0, hint, is_split=is_split)[0]

    def room(self, request: RouteRequest | Pool, now: float) -> list[LiveReplica]:
        """The replicas that may be sent a request like this now; never none.

        Raises:
            UnknownModel, NoReplica, Contended, Saturated: as ``route``.
        """
        available = self._available(request, now)
        if not self._admission.is_on:
            return available
        room = [live for live in available if not self.is_saturated(live)]
        if not room:
            raise Saturated(
                f"each of the {len(available)} replicas of '{request.model}' is busy; try again", retry_after=1
            )
        return room

    def is_saturated(self, live: LiveReplica) -> bool:
        """Whether the replica has as much to do as it may have."""
        return self._admission.saturates(live.in_flight, live.queued_tokens)

    def has_room(self) -> bool:
        """Whether any replica at all may be sent anything now."""
        return any(live.is_available() and not self.is_saturated(live) for live in self.fleet)

    def can_route(self, request: RouteRequest, now: float) -> bool:
        """Whether ``route`` would find anybody."""
        return any(
            live.is_available() and live.rests_until <= now and live.replica.id not in request.excluded
            for live in self.fleet.serving(request.model, request.part)
        )

    def is_held(self, lease: int) -> bool:
        """Whether the request has to wait until its replica has less to do."""
        return self.fleet.is_held(lease)

    def dispatch(self, now: float) -> list[int]:
        """The leases whose requests are to be sent now, and were held until now."""
        if not self.fleet.has_held:
            return []
        return [
            lease
            for live in self.fleet
            if live.held and self._takes(live, now)
            for lease in self.fleet.dispatch(live, now)
        ]

    def due(self, now: float = -math.inf) -> float | None:
        """When, after now, ``dispatch`` is to be called again if nothing happens before; None where that would let nobody go.

        Who was due and has not gone waits for a first output that is late: looking again and again would not bring it.
        """
        times = [due for live in self.fleet if (due := self.fleet.due(live)) is not None and due > now]
        return min(times, default=None)

    def stranded(self, now: float) -> list[int]:
        """The leases that are held for replicas that can take nothing now: their requests belong somewhere else."""
        if not self.fleet.has_held:
            return []
        return [
            lease
            for live in self.fleet.holding()
            if self.fleet.get(live.replica.id) is not live or not self._takes(live, now)
            for _, lease, _ in live.held
        ]

    def delayed(self, now: float) -> list[int]:
        """The leases that are held for replicas that should have answered long ago: another one may be sooner by now."""
        return [
            lease
            for live in self.fleet.holding()
            if len(self.fleet) > 1 and live.is_late(now)
            for _, lease, _ in live.held
        ]

    def started(self, lease: int, now: float) -> None:
        """The first output of the request has come: its prompt is computed."""
        self.fleet.started(lease, now)
        if self.ejections and (sent := self._open.get(lease)) is not None:
            self.ejections.began(sent.decision.replica.id, lease, now)

    def release(
        self, lease: int, outcome: Outcome, now: float, truth: Truth | None = None, failure: Failure | None = None
    ) -> None:
        """The request has ended; ``truth`` is what the engine said of it, ``failure`` what the replica did wrong.

        Raises:
            KeyError: the lease was released before, or never given.
        """
        sent = self._open.pop(lease)
        is_good, cached = outcome is Outcome.OK, None if truth is None else truth.cached_tokens
        self._judge(self.fleet.release(lease, now, is_good=is_good, cached_tokens=cached), lease, outcome, failure, now)
        if sent is None or outcome is not Outcome.OK:
            self.caches.expect_no_more(lease)
            return
        self._settling[lease] = now + SETTLE_SECONDS
        self.caches.finished(sent, now, truth)

    def tick(self, now: float) -> None:
        """What is due by time alone; call it often."""
        for lease in list(islice(self._settling, 1_000)):
            if self._settling[lease] > now:
                break
            del self._settling[lease]
            self.caches.expect_no_more(lease)
        self.caches.tick(now)
        self._look_after(now)
        self.slow_start.see(
            [live.replica.id for live in self.fleet if live.is_available() and live.replica.id not in self.ejections],
            now,
        )

    def status(self, live: LiveReplica) -> Status:
        """The replica's status, its ejection included."""
        return Status.EJECTED if live.is_available() and live.replica.id in self.ejections else live.status

    # How

    def _takes(self, live: LiveReplica, now: float) -> bool:
        """Whether those that are held for the replica may be sent there, as soon as it has little enough to do."""
        return live.rests_until <= now and self.status(live) is Status.READY

    def _look_after(self, now: float) -> None:
        """How full the caches are, as far as events tell; what was learned of speeds fades."""
        gpu = self.caches.index.gpu
        for live in self.fleet:
            if live.room_tokens and live.replica.recipe is not None:
                live.holds(gpu.blocks(live.replica.id) * live.replica.recipe.block_size)
            live.prefill.rest(now)
            self.fleet.reprice(live)

    def _judge(self, live: LiveReplica, lease: int, outcome: Outcome, failure: Failure | None, now: float) -> None:
        """What the end of a request says of the replica."""
        replica = live.replica.id
        if self.fleet.get(replica) is not live:
            return  # gone; another one may have its name
        if failure is not None:
            self.ejections.failed(replica, lease, failure, now)
            if failure.retry_after is not None:
                live.rests_until = max(live.rests_until, now + min(failure.retry_after, MAX_REST))
        elif outcome is Outcome.OK:
            self.ejections.succeeded(replica, lease, now)
        else:
            self.ejections.cancelled(replica, lease, now)

    def _choose(self, request: RouteRequest, now: float, draw: float) -> tuple[LiveReplica, Candidate, _Seen]:
        """The replica that the policy chooses, as it is and as the policy saw it, with all that it saw."""
        serving = self.room(request, now)
        acting = self.arms.of(request, draw)
        stages = request.stages
        stages.passed(Stage.QUEUE)
        shares = self.slow_start.shares([live.replica.id for live in serving], now)
        caches, prompt_tokens = self.caches, request.prompt_tokens
        views = caches.views(now)  # before the match: what was remembered of those that are known by now is void
        replicas = [live.replica for live in serving]
        matches = (
            caches.matcher.match(request, replicas, expecting=acting.counts_expected) if request.prompt_lengths else {}
        )
        loads, mixes = NO_LOADS, NO_PLANS
        if caches.loader.has_any:
            loads = caches.loader.loads(request, replicas, matches)
            mixes = self._mixes(request, serving, matches, loads, now)
        beginning = 0 if any(matches.values()) else self._beginning(request, serving)
        session_at = self.sessions.at(request.session)
        came_at = now if request.came_at is None else request.came_at
        candidates = []
        for at, live in enumerate(serving):
            name = live.replica.id
            cached = matches.get(name, 0)
            answering = live.in_flight - len(live.queue) - len(live.held)
            in_flight, waiting = live.in_flight, live.in_flight - answering
            queued, active = live.queued_tokens, live.active_tokens
            others, theirs = live.others, 0
            if others is not NOBODY:
                in_flight += others.requests(in_flight)
                waiting = min(in_flight, waiting + others.unanswered(waiting))
                theirs = others.queued(queued)
                queued += theirs
                active += others.active(active)
                answering = in_flight - waiting
            speed = live.prefill.speed((prompt_tokens + cached) / 2, answering)
            wait, passed = live.sent_wait(now), 0
            mix = mixes.get(name) if mixes else None
            loaded = 0 if mix is None else mix.loaded_tokens
            if live.held:
                rank = acting.rank((prompt_tokens - cached - loaded) / speed, came_at)
                wait, passed = (live.wait(now), 0) if rank is None else live.standing(rank + request.yields, now)
            if theirs:
                wait += theirs / speed
            candidates.append(
                Candidate(  # by position, which costs half as much as by name
                    name,
                    prompt_tokens,
                    cached,
                    queued,
                    in_flight,
                    live.last_lease,
                    views[name].state,
                    1.0 if shares is None else shares[at],
                    lean(beginning, name) if beginning else 0,
                    wait,
                    speed,
                    waiting,
                    active,
                    live.room_tokens,
                    name == session_at,
                    passed,
                    live.turnover(now),
                    live.usage_now(now),
                    live.has_adapter(request.model),
                    live.skipped,
                    loads.get(name, NOTHING) if loads else NOTHING,
                    loaded,
                    0.0 if mix is None else mix.load_seconds,
                )
            )
        estimates = NO_ESTIMATES
        if request.part is Part.WHOLE and self.transfers.knows_any:
            estimates = self._estimates(request, serving, candidates, mixes, now, draw)
            candidates = [self.transfers.priced(each, estimates.get(each.replica), self._worth) for each in candidates]
        stages.passed(Stage.MATCH)
        seen = tuple(candidates)
        after = acting.trial_after
        is_unused = after is not None and max([each.skipped for each in seen]) >= after * len(seen)
        ends = self._found_ends(request, serving, matches) if is_unused else []
        goes_on = bool(ends) or (is_unused and session_at is not None)
        asked = self._asked(request, serving, now, goes_on, reads_prompt=acting.reads_prompt)
        chosen = acting.policy.choose(seen, draw, asked)
        stages.passed(Stage.CHOOSE)
        taken = self.fleet.get(chosen.replica)
        assert taken is not None, "a replica was chosen that is not in the fleet"
        if not acting.counts_expected and request.prompt_lengths:
            # The engine will hold what is expected, and work that is queued does not come twice, whatever the policy looks at.
            cached = caches.matcher.match(request, [taken.replica]).get(chosen.replica, 0)
            chosen = chosen.counting(cached)
        paper = None
        if self.shadow is not None:
            paper = self.shadow.decide(
                Seen(
                    acting,
                    request,
                    replicas,
                    seen,
                    chosen,
                    draw,
                    lambda: self._beginning(request, serving),
                    lambda reads_prompt: self._asked(request, serving, now, goes_on, reads_prompt=reads_prompt),
                )
            )
            stages.passed(Stage.CHOOSE)
        return taken, chosen, _Seen(seen, asked, acting, paper, mixes, ends, estimates)

    def _estimates(
        self,
        request: RouteRequest,
        serving: Sequence[LiveReplica],
        candidates: Sequence[Candidate],
        mixes: Mapping[ReplicaId, Mix],
        now: float,
        draw: float,
    ) -> Mapping[ReplicaId, Estimate]:
        """What it costs each decode replica to compute the prompt, and to have it computed, as far as that is known.

        It is not where something could be loaded and nobody knows in what time. The prefill replica is the one that would be
        chosen now; its own turn comes when the decode replica is known.
        """
        found: dict[ReplicaId, Estimate] = {}
        decoding = [
            (live, each)
            for live, each in zip(serving, candidates, strict=True)
            if live.replica.role is Role.DECODE
            and self.transfers.knows(live)
            and (each.replica in mixes or not each.loadable)
        ]
        if not decoding:
            return found
        session = request.session ^ PREFILL_SESSION if request.session else 0
        prompt = msgspec.structs.replace(
            request, part=Part.PREFILL, excluded=frozenset(), session=session, came_at=None, stages=UNTIMED
        )
        try:
            prefill, chosen, seen = self._choose(prompt, now, draw)
        except (UnknownModel, NoReplica, Contended, Saturated):
            return found
        if chosen.loadable and chosen.replica not in seen.mixes:
            return found
        for live, each in decoding:
            estimate = self.transfers.estimate(live, each, prefill, chosen, now)
            if estimate is not None:
                found[live.replica.id] = estimate
        return found

    def _mixes(
        self,
        request: RouteRequest,
        serving: Sequence[LiveReplica],
        matches: Mapping[ReplicaId, int],
        loads: Mapping[ReplicaId, tuple[Load, ...]],
        now: float,
    ) -> dict[ReplicaId, Mix]:
        """What those would do that could load something, as far as anybody knows what that costs."""
        mixes, utilisation = {}, self.fleet.utilisation(serving[0], now)
        for live in serving:
            name = live.replica.id
            if name in loads:
                mix = self.load_plans.plan(
                    live,
                    request.prompt_tokens,
                    matches.get(name, 0),
                    loads[name],
                    Turn(now, live.wait(now), live.answering, utilisation),
                    takes_hint=request.takes_hint,
                )
                if mix is not None:
                    mixes[name] = mix
        return mixes

    def _asked(
        self, request: RouteRequest, serving: Sequence[LiveReplica], now: float, goes_on: bool, *, reads_prompt: bool
    ) -> Asked:
        """What the policy may know besides; the chain is that of one replica, the same one in every process."""
        utilisation, reuse = self.fleet.utilisation(serving[0], now), self.fleet.reuse(serving[0])
        if not (reads_prompt and request.prompt_lengths):
            return Asked(request.session, utilisation=utilisation, reuse=reuse, goes_on=goes_on)
        first, matcher = min((live.replica for live in serving), key=lambda each: each.id), self.caches.matcher
        recipe, chains = matcher.recipe(first), matcher.chains(request, first)
        if recipe is None or not chains:
            return Asked(request.session, utilisation=utilisation, reuse=reuse, goes_on=goes_on)
        return Asked(request.session, chains[0], recipe.block_size, utilisation, reuse, goes_on)

    def _found_ends(
        self, request: RouteRequest, serving: Sequence[LiveReplica], matches: Mapping[ReplicaId, int]
    ) -> list[int]:
        """Where earlier prompts ended that the first one goes on with, in the keys of who holds most of it."""
        if not matches:
            return []
        most = max(matches, key=matches.__getitem__)
        holder = next(live.replica for live in serving if live.replica.id == most)
        recipe, chains = self.caches.matcher.recipe(holder), self.caches.matcher.chains(request, holder)
        if recipe is None or not chains:
            return []
        size = recipe.block_size
        return self._ends.found(chains[0], request.prompt_lengths[0] // size, matches[most] // size)

    def _note_end(self, request: RouteRequest, replica: Replica) -> None:
        recipe, chains = self.caches.matcher.recipe(replica), self.caches.matcher.chains(request, replica)
        if recipe is not None and chains:
            self._ends.sent(chains[0], request.prompt_lengths[0] // recipe.block_size, replica.id)

    def _beginning(self, request: RouteRequest, serving: Sequence[LiveReplica]) -> int:
        """How the first prompt begins, in the keys of one replica: the same one in every process."""
        if not request.prompt_lengths or request.prompt_lengths[0] < BEGINNING:
            return 0
        first = min((live.replica for live in serving), key=lambda each: each.id)
        return self.caches.matcher.beginning(request, first)

    def _decision(
        self,
        request: RouteRequest,
        replica: Replica,
        chosen: Candidate,
        seen: _Seen,
        lease: int,
        hint: dict[str, Any],
        *,
        is_split: bool,
    ) -> tuple[Decision, Holding]:
        caches = self.caches
        knows_tokens = bool(request.prompt_lengths)
        holding = caches.matcher.holding(request, replica) if knows_tokens else NOTHING_KNOWN
        is_comparable = (
            knows_tokens and request.is_comparable and not is_split and bool(caches.matcher.chains(request, replica))
        )
        mix = None if is_split else seen.mixes.get(replica.id)
        decision = Decision(
            lease=lease,
            replica=replica,
            prompt_tokens=chosen.prompt_tokens,
            cached_tokens=chosen.cached_tokens,
            is_predicted=is_comparable and chosen.knowledge.is_promise and not caches.can_load(replica.id),
            knows_tokens=knows_tokens,
            policy=seen.arm.name,
            candidates=seen.candidates,
            asked=seen.asked,
            shadow=seen.shadow,
            model=request.model,
            is_comparable=is_comparable,
            held_tokens=holding.held_tokens if request.reads_cache else 0,
            request_id=request.request_id,
            loadable=chosen.loadable,
            is_split=is_split,
            estimate=seen.estimates.get(replica.id),
            mix=mix,
            hint=hint,
        )
        return decision, holding

    def _hint(
        self, request: RouteRequest, live: LiveReplica, chosen: Candidate, seen: _Seen, now: float
    ) -> dict[str, Any]:
        """What the engine is told of loads; nothing where it does by itself what is best, or cannot be told."""
        is_asked = request.takes_hint and request.reads_cache and len(request.prompt_lengths) == 1
        if not is_asked or not self.caches.can_load(live.replica.id):
            return {}
        turn = Turn(now, chosen.wait, chosen.in_flight - chosen.waiting, seen.asked.utilisation)
        places, mix = self.caches.loader.places(live.replica), seen.mixes.get(live.replica.id)
        return self.load_plans.hint(live, chosen, mix, places, turn)

    def _is_split(self, request: RouteRequest, live: LiveReplica, chosen: Candidate, seen: _Seen, now: float) -> bool:
        """Whether somebody else is to compute the prompt for the replica that was chosen to answer."""
        if live.replica.role is not Role.DECODE or request.part is not Part.WHOLE:
            return False
        if not self._worth(chosen, seen.estimates.get(live.replica.id)):
            return False
        return any(
            other.is_available() and other.rests_until <= now
            for other in self.fleet.serving(request.model, Part.PREFILL)
        )

    def _available(self, request: RouteRequest | Pool, now: float) -> list[LiveReplica]:
        serving = self.fleet.serving(request.model, request.part)
        if serving and not request.excluded and not self.ejections:
            for live in serving:
                if live.health is not Status.READY or live.drain is not None or live.rests_until > now:
                    break
            else:  # the usual case
                return serving
        if not len(self.fleet):
            raise NoReplica(
                "no replica has answered yet; see /kvlb/status for the endpoints that are tried", retry_after=5
            )
        if not serving and request.model in self.fleet.models():
            kind = "compute prompts for others" if request.part is Part.PREFILL else "answer"
            raise NoReplica(f"no replica of '{request.model}' is there to {kind}; see its role", retry_after=5)
        if not serving:
            served = ", ".join(self.fleet.models()) or "none yet"
            raise UnknownModel(f"the model '{request.model}' is not served here; served: {served}", param="model")
        usable = [live for live in serving if live.is_available()]
        available = [live for live in usable if live.replica.id not in request.excluded]
        if not available:
            why = Counter(str(live.status) for live in serving if not live.is_available())
            told = f" ({', '.join(f'{count} {status}' for status, count in sorted(why.items()))})" if why else ""
            raise NoReplica(
                f"none of {counted(len(serving), 'replica')} of '{request.model}' can take a request now{told}; try again",
                retry_after=2,
            )
        rested = [live for live in available if live.rests_until <= now]
        if not rested:
            rest = min(live.rests_until for live in available) - now
            raise Contended(
                f"all replicas of '{request.model}' have more to do than they take on; try again later",
                retry_after=math.ceil(rest),
            )
        withheld = self.ejections.withheld([live.replica.id for live in usable], now)
        return [live for live in rested if live.replica.id not in withheld] or rested
