"""The router with the world attached: event sources, health, time and chance.

Knows the clock, the dice, the event reader and the watchers, and feeds a ``Router`` with them. Decides nothing itself. Its
calls for a request are ``route``, ``started`` and ``release``; whoever makes them need not live in this process.
"""

import asyncio
import logging
import math
import random
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

import aiohttp
import msgspec

from balancer import offers
from balancer.admission import ANYONE, Claim
from balancer.arms import chosen
from balancer.caches import Renew, Resync
from balancer.care import Care
from balancer.census import Census
from balancer.connectors.running import StoreRunner, stores_of
from balancer.core import Decision, Failure, Outcome, Prompt, Replica, RouteRequest, Truth
from balancer.decision_file import open_decision_file
from balancer.decisions import NOBODY, DecisionLog, Origin
from balancer.disaggregation import plan
from balancer.disaggregation.choosing import Quicker, Threshold
from balancer.disaggregation.roles import Part, Role
from balancer.disaggregation.witness import Witness
from balancer.discovery import base as discovery
from balancer.discovery.follower import Follower
from balancer.discovery.namesakes import Namesakes
from balancer.errors import BalancerError, NoReplica, UnknownModel
from balancer.facts import Described, merge_listings
from balancer.feed import EventFeed
from balancer.fleet import Drain, LiveReplica, Status
from balancer.handover import Handover
from balancer.hashes import PromptHashes
from balancer.health import Watcher
from balancer.limits import Limiter, Permit
from balancer.model_files import economy_of
from balancer.news import News
from balancer.next_best import ranked
from balancer.pulse import Order, Pulse, Pulses
from balancer.recording import Recorder
from balancer.retries import Retries
from balancer.router import Router
from balancer.settings import DiscoverySettings, ReplicaSettings, Settings
from balancer.siblings.exchange import Exchange
from balancer.siblings.watching import Siblings
from balancer.signals import Sign
from balancer.silence import SILENT_AFTER, Silence, likely_causes
from balancer.stages import UNTIMED, Stages
from balancer.stalls import Answer
from balancer.stores import SOURCE
from balancer.targets import Targets
from balancer.tenants import Caller
from balancer.tokens import Tokenizer
from balancer.turns import Turns
from balancer.upstream import open_session
from balancer.waiting import Waiting
from balancer.warm import WarmStart
from balancer.yielding import Yielding
from hashing.memory import ChainMemory
from hashing.token_text import TokenText
from indexer.events import BlockStored
from indexer.index import ReplicaId
from indexer.sources.vllm import Publisher, PublisherStatus
from indexer.stream import Apply, Forget, Position, Standing, Step

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.1

TELL_AGAIN_SECONDS: Final = 60.0
"""Seconds after which what fails at every tick is told again."""

STARTUP_SECONDS: Final = 600.0
"""How long engines may take to load their weights: what one that has not answered serves is not known until then."""

UNKNOWN_BLOCK_SIZE: Final = 256
"""Tokens; more than the blocks of most engines, for one that does not tell."""


class RouterService:
    """Owns one ``Router``. Start it in a running event loop; ``stop`` ends every task, thread and connection."""

    def __init__(self, settings: Settings, tls: ssl.SSLContext | None = None) -> None:
        """``tls`` is for endpoints with https; without it they are checked against the system's authorities."""
        self.settings = settings
        self._tls = tls
        policies = chosen(settings.policy)
        self.router = Router(
            policies.first.policy,
            policies.first.name,
            settings.index.max_blocks,
            admission=settings.admission,
            ejection=settings.ejection,
            slow_start=settings.slow_start,
            second=policies.second,
            shadow=policies.shadow,
            stores=stores_of(settings.stores, settings.server.processes),
            worth=Quicker(Threshold(settings.disaggregation.threshold_tokens)),
            economy=economy_of(settings),
            answer_weight=settings.disaggregation.answer_weight,
        )
        self.stores = StoreRunner(self.router)
        self.care = Care(self.router, settings)
        self.is_draining = False
        """Whether this process is about to end, and is to be sent nothing new."""
        self.waiting = Waiting(settings.admission, self.router, self._lease, self._give_back)
        self.turns = Turns(self.router, self._lease, self._give_back, self.waiting)
        self.yielding = Yielding(settings.admission.tenant_weights, settings.admission.weights)
        self.limiter = Limiter(settings.limits)
        self.memory = ChainMemory(settings.hashing.memory_bytes, secret=secrets.randbits(64))
        self.decisions = DecisionLog(settings.log.decisions_kept)
        self._decision_file = open_decision_file(settings.log, self.router.arms)
        self.recorders: list[Recorder] = []
        """Recordings under way."""
        self.targets = Targets(
            self._watcher, self._came, self._left, self._replaced, lambda url: bool(self.behind(url))
        )
        finds_more = settings.discovery != DiscoverySettings()
        found_by = discovery.make(settings.discovery.name, settings.discovery.settings)
        self.follower = Follower(found_by, settings.replicas, self._set_endpoints)
        self._namesakes = Namesakes()
        self.warm = WarmStart(
            settings.snapshot,
            Handover(self.router, None if finds_more else [replica.url for replica in settings.replicas]),
            self._hold_events,
        )
        exchange = Exchange(self.router.fleet, self.router.sessions, self.warm.name, settings.siblings.interval_seconds)
        self.siblings = Siblings(settings.siblings, exchange)
        self.session: aiohttp.ClientSession
        self.tokenizer: Tokenizer
        self.feed: EventFeed
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._starting_until = time.monotonic() + STARTUP_SECONDS
        self._publishers: dict[ReplicaId, Publisher] = {}
        self._pulses = Pulses()
        self.silence = Silence()
        self.witness = Witness()
        split = settings.disaggregation
        # What lies in a store is there before the decode replica is asked for it: its silence is its own.
        self._waits_for_prefill = not plan.make(split.name, split.settings).shares
        self._split: dict[int, Decision] = {}  # by lease: those whose prompt another replica computes
        self._news = News()
        self.census = Census()
        self.lives: Counter[str] = Counter()
        """How often each endpoint has told what it is."""

    async def start(self) -> None:
        self.session = open_session(self.settings.timeouts, self._tls)
        self.tokenizer = Tokenizer(self.session, self.settings.tokenizer)
        self.feed = EventFeed(self._take)
        self.stores.start()
        self._follow_stores()
        if self._decision_file is not None:
            self._tasks.append(asyncio.create_task(self._decision_file.run()))
        self._set_endpoints(self.settings.replicas)
        self._tasks += [asyncio.create_task(self.follower.run()), asyncio.create_task(self._begin())]

    async def _begin(self) -> None:
        """Take over what there is, and only then look at the fleet: a snapshot is restored into an empty index."""
        found = await self.siblings.to_take_over_from(self.session)
        await self.warm.load(self.session, found, self.settings.siblings.api_key)
        self._tasks += [
            asyncio.create_task(self._tick()),
            asyncio.create_task(self.warm.run()),
            asyncio.create_task(self.siblings.run(self.session)),
        ]
        self.targets.begin()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._namesakes.stop()
        self.turns.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.targets.stop()
        await self.stores.stop()
        await self.warm.save(logging.INFO)  # before the rest, which may wait for a disk
        if self._decision_file is not None:
            await self._decision_file.flush()
        await self.feed.close()
        await self.session.close()

    # The calls of a request

    async def enter(self, caller: Caller, now: float) -> Permit:
        """A request of this caller begins; whoever got its permit leaves with it.

        Raises:
            RateLimited: the caller has had its share.
        """
        return self.limiter.enter(caller.name, caller.tenant, caller.rates, now)

    async def spend(self, permit: Permit, tokens: int, now: float) -> None:
        """The request's prompts have so many tokens.

        Raises:
            RateLimited: that is more than may be spent now.
        """
        permit.spend(tokens, now)

    async def route(self, request: RouteRequest, origin: Origin = NOBODY, claim: Claim = ANYONE) -> Decision:
        """Choose a replica for the request; where all are saturated, or its own has enough to do, it waits for its turn.

        Raises:
            UnknownModel: none of the endpoints that can be used serves this model, and no other is waited for.
            NoReplica: none that serves it can take a request now, or some have not answered since the start.
            Saturated: none has had a place for it in time, or too many wait for one.
        """
        placed = self.route_at_once(request, origin, claim)
        return placed if isinstance(placed, Decision) else await placed

    def route_at_once(
        self, request: RouteRequest, origin: Origin = NOBODY, claim: Claim = ANYONE
    ) -> Decision | Awaitable[Decision]:
        """The same, as far as that is decided now; else what has to be awaited for it, at once.

        Raises:
            RequestError: as ``route``.
        """
        placed = self.place(request, origin, claim)
        return placed if isinstance(placed, Decision) else self._in_turn(placed)

    def place(
        self, request: RouteRequest, origin: Origin = NOBODY, claim: Claim = ANYONE
    ) -> "Decision | asyncio.Future[Decision]":
        """The same for whoever need not await it: who cancels the future before its result is read has nothing left to release.

        Raises:
            RequestError: as ``route``.
        """
        if (asking := self.stores.asking(request)) is not None:
            return asyncio.ensure_future(self._after_asking(asking, request, origin, claim))
        return self._place(request, origin, claim)

    async def _after_asking(
        self, asking: Awaitable[None], request: RouteRequest, origin: Origin, claim: Claim
    ) -> Decision:
        await asking
        placed = self._place(request, origin, claim)
        return placed if isinstance(placed, Decision) else await self._in_turn(placed)

    def _place(self, request: RouteRequest, origin: Origin, claim: Claim) -> "Decision | asyncio.Future[Decision]":
        at = time.time()
        request = self._yielding(request, claim)
        decision = self.waiting.at_once(request)
        if decision is None:
            return asyncio.ensure_future(self._after_waiting(request, origin, claim, at))
        seconds = self._charge(decision, claim)
        if self.router.is_held(decision.lease):
            return self._hold(decision, seconds, request, origin, claim, at)
        return self._sent(decision, request, origin)

    async def _after_waiting(self, request: RouteRequest, origin: Origin, claim: Claim, at: float) -> Decision:
        decision = await self.waiting.turn(request, claim)
        seconds = self._charge(decision, claim)
        if self.router.is_held(decision.lease):
            return await self._in_turn(self._hold(decision, seconds, request, origin, claim, at))
        return self._sent(decision, request, origin, at)

    def _hold(
        self, decision: Decision, seconds: float, request: RouteRequest, origin: Origin, claim: Claim, at: float
    ) -> "asyncio.Future[Decision]":
        charged_at = time.monotonic()
        return self.turns.hold(
            request,
            claim,
            decision,
            lambda at_last: self._sent(at_last, request, origin, at),
            lambda: self.yielding.give_back(claim.tenant, seconds, charged_at, time.monotonic()),
        )

    async def _in_turn(self, placed: "asyncio.Future[Decision]") -> Decision:
        try:
            return await placed
        except asyncio.CancelledError:
            if (
                placed.done() and not placed.cancelled() and placed.exception() is None
            ):  # its turn came in the same moment
                self.release_at_once(placed.result().lease, Outcome.CANCELLED)
            raise

    def _yielding(self, request: RouteRequest, claim: Claim) -> RouteRequest:
        """The request, with what it lets pass where others wait for the same replica."""
        if not self.router.arms.orders:
            return request
        seconds = self.yielding.seconds(claim.tenant, claim.urgency, time.monotonic())
        return msgspec.structs.replace(request, yields=seconds) if seconds else request

    def _charge(self, decision: Decision, claim: Claim) -> float:
        """How many seconds of prefill its tenant has been charged for it."""
        if not self.router.arms.orders:
            return 0.0
        chosen = decision.candidates[0]
        for chosen in decision.candidates:
            if chosen.replica == decision.replica.id:
                break
        seconds = decision.computed_tokens / chosen.speed
        self.yielding.charge(claim.tenant, seconds, time.monotonic())
        return seconds

    def _sent(
        self, decision: Decision, request: RouteRequest, origin: Origin, came_at: float | None = None
    ) -> Decision:
        now = time.time()
        if decision.is_split:
            self._split[decision.lease] = decision
        if decision.shadow is not None and decision.shadow.failure:
            self._news.shadow(decision.shadow)
        self.decisions.opened(decision, request.model, origin, now)
        if self.recorders and request.part is not Part.PREFILL:
            self._record(decision, request, now if came_at is None else came_at)
        if decision.replica.id in self._publishers:
            recipe = self.router.caches.recognitions[decision.replica.id].recipe
            self.silence.sent(decision, request.prompt_lengths, recipe.block_size if recipe else UNKNOWN_BLOCK_SIZE)
        return decision

    def _record(self, decision: Decision, request: RouteRequest, at: float) -> None:
        matcher = self.router.caches.matcher
        recipe = matcher.recipe(decision.replica)
        chains = matcher.chains(request, decision.replica)
        block_size = UNKNOWN_BLOCK_SIZE if recipe is None else recipe.block_size
        for recorder in self.recorders:
            recorder.sent(decision, request.prompt_lengths, chains, block_size, at)

    def can_route(self, request: RouteRequest) -> bool:
        """Whether anybody could take the request now."""
        return self.router.can_route(request, time.monotonic())

    def consider(self, request: RouteRequest) -> Decision:
        """What ``route`` would decide now; nothing is leased, nothing changes.

        Raises:
            UnknownModel, NoReplica: as ``route``.
            Saturated: it would have to wait.
        """
        return self._told_unheard(self.router.consider, request)

    def _lease(self, request: RouteRequest) -> Decision:
        return self._told_unheard(self.router.route, request)

    def _told_unheard(
        self, decide: Callable[[RouteRequest, float, float], Decision], request: RouteRequest
    ) -> Decision:
        try:
            return decide(request, time.monotonic(), random.random())
        except NoReplica as error:
            if (refusal := self._none_left()) is None:
                raise
            raise refusal from error
        except UnknownModel as error:
            unknown = [watcher for watcher in self.watchers.values() if not watcher.is_known]
            if not unknown:
                raise
            told = (
                f"{error.message}; {len(unknown)} of {len(self.watchers)} endpoints cannot be used (see /kvlb/status)"
            )
            is_starting = time.monotonic() < self._starting_until
            if is_starting and any(not watcher.is_heard for watcher in unknown):
                raise NoReplica(told, retry_after=5) from error
            raise UnknownModel(told, param=error.param) from error

    def started(self, lease: int) -> None:
        """The prompt has been computed. Told, and not waited for: it is called between two pieces of an answer."""
        self.router.started(lease, time.monotonic())
        for recorder in self.recorders:
            recorder.started(lease, time.time())
        if self.waiting.has_any:
            self.waiting.look()
        self.turns.look()

    def follow(self, decision: Decision, answer: Answer) -> None:
        """Look at this answer now and then while it is under way."""
        waits = decision.is_split and self._waits_for_prefill
        self.care.stalls.sent(decision.lease, decision.replica.id, answer, waits=waits)

    async def release(
        self, lease: int, outcome: Outcome, truth: Truth | None = None, failure: Failure | None = None
    ) -> None:
        """The request has ended; ``truth`` is what the engine said of it, ``failure`` what the replica did wrong."""
        self.release_at_once(lease, outcome, truth, failure)

    def release_at_once(
        self, lease: int, outcome: Outcome, truth: Truth | None = None, failure: Failure | None = None
    ) -> None:
        """The same, for whoever lives in this process."""
        self._give_back(lease, outcome, truth, failure)
        if (split := self._split.pop(lease, None)) is not None and outcome is Outcome.OK and split.knows_tokens:
            lacking = split.prompt_tokens - split.cached_tokens
            self.witness.handed(split.replica.id, lacking, time.monotonic())
        self.care.stalls.ended(lease, is_good=outcome is Outcome.OK)
        silent = self.silence.ended(lease, is_good=outcome is Outcome.OK, truth=truth)
        if silent is not None:
            self._break_silence(silent)
        ended = self.decisions.closed(lease, outcome, truth)
        if ended is not None and self._decision_file is not None:
            self._decision_file.add(ended)
        for recorder in self.recorders:
            recorder.ended(lease, outcome, truth, time.time())

    def adopt(self, replica: ReplicaId, queued_tokens: int, answer: Answer) -> int | None:
        """A request is under way there that this process has not routed; its lease, or None where there is no such replica."""
        lease = self.router.adopt(replica, queued_tokens, time.monotonic())
        if lease is not None:
            self.care.stalls.sent(lease, replica, answer)
        return lease

    def _give_back(
        self,
        lease: int,
        outcome: Outcome = Outcome.CANCELLED,
        truth: Truth | None = None,
        failure: Failure | None = None,
    ) -> None:
        self.router.release(lease, outcome, time.monotonic(), truth, failure)
        if self.waiting.has_any:
            self.waiting.answered(lease, truth)
            self.waiting.look()
        self.turns.look()

    def hashes(self, prompts: Sequence[Prompt], salt: str | None, stages: Stages = UNTIMED) -> PromptHashes:
        """The prompts' block hashes, made as far as they are needed; ``stages`` is told how long that takes."""
        tokens, media = [each.tokens for each in prompts], [each.media for each in prompts]
        return PromptHashes(tokens, salt, self.memory, media, stages)

    def read_ids(self, body: bytes, begin: int, end: int) -> Sequence[int] | None:
        """The token ids of the JSON list between two places of a body; None unless it is one. ``hashes`` knows it again."""
        return TokenText.read(body, begin, end, self.memory)

    # What is known

    @property
    def retries(self) -> Retries:
        """Judges what has failed, and keeps the budget."""
        return self.care.retries

    @property
    def open_leases(self) -> int:
        return self.router.fleet.open_leases

    @property
    def is_ready(self) -> bool:
        """Whether any replica can answer a request."""
        return any(live.is_available() and live.replica.role is not Role.PREFILL for live in self.router.fleet)

    @property
    def watchers(self) -> dict[str, Watcher]:
        """Those of the endpoints there are, by URL."""
        return self.targets.watchers

    @property
    def is_refilled(self) -> bool:
        """Whether all that can be known at the start is: each endpoint has been asked, and each event stream is whole.

        One that has not answered its first probe in time has not been asked: whoever used it until now may know better.
        """
        watchers = self.watchers.values()
        if not (self.warm.is_loaded and self.follower.has_told.is_set() and watchers):
            return False
        if not all(watcher.is_judged for watcher in watchers):
            return False
        return all(
            self._is_settled(live.replica.id, publisher)
            for live in self.router.fleet
            if live.is_available() and (publisher := self._publishers.get(live.replica.id)) is not None
        )

    def _is_settled(self, replica: ReplicaId, publisher: Publisher) -> bool:
        """Whether the subscription has found out what it can."""
        standing, status = self.router.caches.standings.get(replica), self.publishers().get(replica)
        if status is not None and status.problem:
            return True
        return (
            standing is not None
            and standing.is_connected
            and not standing.is_restored
            and (standing.is_complete or publisher.replay is None)
        )

    def problems(self) -> str:
        """Why each endpoint cannot be used, for people."""
        problems = [f"{url}: {watcher.problem}" for url, watcher in self.watchers.items() if watcher.problem]
        problems += [f"{live.replica.id}: {live.status}" for live in self.router.fleet if live.drain is not None]
        if self.follower.problem is not None:
            problems.append(f"discovery: {self.follower.problem}")
        unused = f"; not used: {', '.join(self.follower.unused)}" if self.follower.unused else ""
        found = "" if self.follower.reason is None else f" ({self.follower.reason}{unused})"
        return "; ".join(problems) or f"there are no endpoints{found}"

    async def wait_ready(self) -> None:
        """Return as soon as any replica can take a request."""
        while not self.is_ready:
            self._changed.clear()
            await self._changed.wait()

    async def wait_usable(self, seconds: float, stop: asyncio.Event) -> None:
        """Return once a replica can be used, or once ``stop`` is set.

        Raises:
            BalancerError: neither has come within ``seconds``.
        """
        waits = [asyncio.create_task(self.wait_ready()), asyncio.create_task(stop.wait())]
        try:
            done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if not done:
            raise BalancerError(f"no replica can be used after {seconds:g} s ({self.problems()}); start vLLM first")
        for wait in done:
            wait.result()

    def default_model(self, is_allowed: Callable[[str], bool] = lambda model: True) -> str:
        """The model meant by a request that names none: the only base model that is allowed.

        Raises:
            BadRequest: there are several.
            NoReplica: no endpoint has answered yet.
        """
        try:
            return offers.default_model(self.router.fleet, is_allowed)
        except NoReplica as error:
            if (refusal := self._none_left()) is None:
                raise
            raise refusal from error

    def _none_left(self) -> NoReplica | None:
        """What clients are told where there is no endpoint, as ``/ready`` tells it; None where there is any, or may yet be."""
        if len(self.router.fleet) or self.watchers or not self.follower.has_told.is_set():
            return None
        # With keys, addresses and names of Pods are not for everybody.
        told = "" if self.settings.auth.is_on else f": {self.problems()}"
        return NoReplica(f"no replica can be used{told}", retry_after=5)

    def max_model_len(self, model: str) -> int | None:
        """The longest sequence that any replica of the model takes, in tokens; None where one does not say."""
        return offers.max_model_len(self.router.fleet, model)

    def models(self) -> list[dict[str, object]]:
        """``/v1/models`` of the whole fleet."""
        return merge_listings(watcher.facts.listing for watcher in self.watchers.values() if watcher.is_known)

    def tokenizing_endpoint(self, model: str) -> str | None:
        """The least busy endpoint that serves the model, of those that answer in time if any does."""
        return offers.tokenizing_endpoint(self.router.fleet, model, self.tokenizer.is_paused, random.random)

    def behind(self, endpoint: str) -> frozenset[ReplicaId]:
        """The replicas of one endpoint, available or not."""
        return frozenset([live.replica.id for live in self.router.fleet.behind(endpoint)])

    def replicas(self) -> Sequence[Replica]:
        """All that there are, available or not."""
        return [live.replica for live in self.router.fleet]

    def next_best(self, decision: Decision, request: RouteRequest) -> Sequence[Replica]:
        """Who else could take the request of this decision, the best first."""
        found = (self.router.fleet.get(name) for name in ranked(decision))
        return [live.replica for live in found if live is not None]

    def publishers(self) -> dict[ReplicaId, PublisherStatus]:
        """The state of every event subscription."""
        return self.feed.reader.status()

    def signs(self, live: LiveReplica) -> list[Sign]:
        """What is wrong with a replica, by all that has been noticed."""
        watcher, replica = self.watchers.get(live.replica.endpoint), live.replica.id
        return self.care.signs(live, None if watcher is None else watcher.sign, self.silence.unheard(replica))

    def drain(self, name: str, why: Drain | None) -> list[ReplicaId]:
        """Send nothing new to a replica, or to all of an endpoint (``name`` is its id or URL); None ends that.

        Which ones these are; none when there is nobody of this name.
        """
        meant = [live for live in self.router.fleet if name in {live.replica.id, live.replica.endpoint}]
        for live in meant:
            if live.drain is not why:
                log.info("%s: %s", live.replica.id, "takes requests again" if why is None else f"drains ({why})")
            self.router.fleet.drain(live.replica.id, why)
        self._changed.set()
        self.turns.look()
        return [live.replica.id for live in meant]

    def unreachable(self, endpoint: str) -> None:
        """A request found nobody at this endpoint: it is lost until a probe says otherwise."""
        watcher = self.watchers.get(endpoint)
        if watcher is not None:
            watcher.suspect()

    def broke_off(self, endpoint: str) -> None:
        """An answer ended in its middle: perhaps so did the engine."""
        watcher = self.watchers.get(endpoint)
        if watcher is not None:
            watcher.refresh()

    # News

    def _set_endpoints(self, replicas: tuple[ReplicaSettings, ...]) -> None:
        self.targets.set(replicas, self.follower.lives)
        self._namesakes.see([replica.url for replica in replicas])

    def _watcher(self, replica: ReplicaSettings) -> Watcher:
        headers = {}
        if self.settings.upstream.api_key:
            headers["Authorization"] = f"Bearer {self.settings.upstream.api_key}"
        return Watcher(replica, self.settings.health, self.session, headers, self._learned, self._status, self._felt)

    def _came(self, endpoint: str) -> None:
        """It is there, perhaps again."""
        if any(live.drain is Drain.LEAVING for live in self.router.fleet.behind(endpoint)):
            self.drain(endpoint, None)

    def _left(self, endpoint: str) -> None:
        """It is not there any more: nothing new is sent there, and what it has is finished."""
        self.drain(endpoint, Drain.LEAVING)
        self.warm.described(endpoint)

    def _replaced(self, endpoint: str) -> None:
        """Another engine has the address of one that is gone, and its cache with it; what waits for it there waits in vain."""
        gone = self.behind(endpoint)
        for answer in self.care.stalls.waiting_at(gone):
            answer.leave()
        for replica in gone:
            log.info("%s: is gone, and another engine has its address", replica)
            self._forget(replica)

    def _learned(self, endpoint: str, described: list[Described]) -> None:
        """The engine behind the endpoint has told what it is, for the first time or after it was lost."""
        self.tokenizer.forget_endpoint(endpoint)
        self.lives[endpoint] += 1
        wanted = {each.replica.id for each in described}
        for live in self.router.fleet.behind(endpoint):
            if live.replica.id not in wanted:
                self._forget(live.replica.id)
        for each in described:
            is_new = self.router.fleet.get(each.replica.id) is None
            order = self._pulses.serves(each.replica.id, each.replica.base_models)
            self._obey(each.replica.id, order, "it serves another model")
            self.router.put(each.replica)
            resume = self.warm.adopt(each)
            if is_new:  # until the subscription says otherwise
                self.router.caches.observe(each.replica.id, [Standing(is_restored=resume is not None)])
            for warning in each.warnings:
                log.warning("%s: %s", each.replica.id, warning)
            self._follow(each, resume)
        self.warm.described(endpoint)
        self.waiting.look()

    def _forget(self, replica: ReplicaId) -> None:
        """The replica is gone."""
        self._publishers.pop(replica, None)
        for told in (self._news, self._pulses, self.silence, self.witness):
            told.forget(replica)
        self.care.stalls.unheard(replica)
        self.feed.reader.remove(replica)
        self.router.remove(replica)
        self.turns.look()

    def _follow(self, described: Described, resume: Position | None) -> None:
        """Subscribe to what the replica publishes now; it may have moved with a restart."""
        replica, source = described.replica.id, described.source
        known = self._publishers.pop(replica, None)
        wanted = None
        if source is not None:
            wanted = Publisher(
                replica,
                source.events,
                source.replay,
                source.topic,
                source.is_dialling,
                source.told_topic,
                source.senders,
                described.said_ranks,
            )
        if known is not None and known != wanted:
            self.feed.reader.remove(replica)  # which ends with a Forget, behind all that is queued
        if wanted is not None:
            self._publishers[replica] = wanted
            if known != wanted:
                self.feed.reader.add(wanted, resume)

    def _felt(self, endpoint: str, pulse: Pulse) -> None:
        """One look at the endpoint's metrics."""
        clears = self.router.caches.index.clears
        for live in self.router.fleet.behind(endpoint):
            replica = live.replica
            order = self._pulses.look(replica.id, replica.rank, pulse, clears[replica.id])
            self._obey(replica.id, order, "the engine was restarted")
            self.router.caches.felt(replica.id, pulse.queries_of.get(replica.rank, 0.0))
            self._hear(replica, pulse)
            if (usage := pulse.usage_of.get(replica.rank)) is not None:
                live.usage, live.usage_at = usage, time.monotonic()

    def _hear(self, replica: Replica, pulse: Pulse) -> None:
        """What its engine has fetched from others."""
        fetched = pulse.fetched_of.get(replica.rank)
        if fetched is None or replica.role is not Role.DECODE:
            return
        doubt = self.witness.told(replica.id, fetched, time.monotonic())
        if doubt is not None:
            log.warning(
                "%s: of %d tokens that prefill replicas have computed for it, its engine has fetched %d (%d requests): do "
                "both have the same connector, and is the one of the settings theirs ([disaggregation] name)?",
                *(replica.id, doubt.expected, doubt.fetched, doubt.requests),
            )

    def _obey(self, replica: ReplicaId, order: Order | None, reason: str) -> None:
        match order:
            case Order.CLEAR:
                self.router.caches.slept(replica)
            case Order.BEGIN_ANEW:
                if replica in self._publishers:
                    log.info("%s: %s", replica, reason)
                    self.feed.reader.add(self._publishers[replica])
                # The old subscription ends with a Forget, behind all that is queued; requests need not be misled until then.
                self.router.caches.observe(replica, [Forget(reason)])

    def _break_silence(self, replica: ReplicaId) -> None:
        """Tell that no events come, and subscribe anew: that costs nothing where nothing is known."""
        publisher = self._publishers.get(replica)
        if publisher is None:
            return
        status = self.publishers().get(replica)
        causes = (status is not None and status.problem) or likely_causes(
            publisher.events,
            publisher.topic,
            is_dialling=publisher.is_dialling,
            is_connected=status is not None and status.is_connected,
        )
        reason = f"has answered {SILENT_AFTER} requests and published nothing; {causes}"
        log.warning("%s: %s", replica, reason)
        self.feed.reader.restart(replica, reason)

    def _status(self, endpoint: str, status: Status) -> None:
        for live in self.router.fleet.behind(endpoint):
            if live.health is not status:
                log.info("%s: %s", live.replica.id, status)
                self.router.set_status(live.replica.id, status)
        self._changed.set()
        self.waiting.look()
        self.turns.look()

    def _hold_events(self) -> AbstractContextManager[None]:
        return self.feed.held()

    def _follow_stores(self) -> None:
        """Subscribe to those stores that publish by themselves; none of them is a replica."""
        for store in self.router.caches.stores:
            settings = store.settings
            if settings.events is not None:
                name = ReplicaId(store.source)
                self.feed.reader.add(Publisher(name, settings.events, settings.replay, settings.topic))

    def _take(self, replica: ReplicaId, step: Step) -> None:
        """One step of the replica's event stream, or of a store's."""
        if replica.startswith(SOURCE):
            self.router.caches.stores.observe(replica.removeprefix(SOURCE), step)
            return
        if self.router.fleet.get(replica) is not None:  # of one that is gone, that has been told
            self._news.step(replica, step)
        if isinstance(step, Apply):
            self.silence.heard(replica)
            self.care.stalls.told(replica, _largest_block(step))
        elif isinstance(step, Forget):
            self._pulses.began(replica)
            self.care.stalls.unheard(replica)
        is_gone = isinstance(step, Standing) and not step.is_connected
        if is_gone:
            self.care.stalls.unheard(replica)
        if (is_gone or isinstance(step, Forget)) and (live := self.router.fleet.get(replica)) is not None:
            self.broke_off(live.replica.endpoint)  # a restart, perhaps of another model, faster than the probes
        self.router.caches.observe(replica, [step])

    async def _tick(self) -> None:
        steps: tuple[Callable[[], None], ...] = (
            lambda: self.router.tick(time.monotonic()),
            self.waiting.look,
            self.turns.look,
            self._obey_orders,
            self._tell_knowledge,
            self.stores.look,
            self.siblings.refresh,
            self._look_after,
        )
        told: dict[int, float] = {}
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for at, step in enumerate(steps):
                try:
                    step()
                except Exception:  # a policy may be anybody's, and what heals must not end with it
                    if (now := time.monotonic()) >= told.get(at, -math.inf) + TELL_AGAIN_SECONDS:
                        told[at] = now
                        log.exception("looking after replicas and requests has failed; it goes on")

    def _look_after(self) -> None:
        for answer in self.care.tick(time.monotonic()):
            answer.leave()
        self._news.ejections(self.care.ejected())
        for replica in self.router.fleet.departed():
            log.info("%s: has ended what it had, and is gone", replica)
            self._forget(replica)

    def _obey_orders(self) -> None:
        orders, self.router.caches.orders = self.router.caches.orders, []
        for order in orders:
            match order:
                case Resync():
                    log.warning("%s: its events are asked for again: %s", order.replica, order.reason)
                    self.feed.reader.recheck(order.replica)
                case Renew():
                    log.warning("%s: its events are followed anew: %s", order.replica, order.reason)
                    self.feed.reader.restart(order.replica, order.reason)

    def _tell_knowledge(self) -> None:
        now = time.monotonic()
        views = {live.replica.id: self.router.caches.view(live.replica.id, now) for live in self.router.fleet}
        self.decisions.know(views)
        for replica, view in views.items():
            self._news.knowledge(replica, view, now)


def _largest_block(step: Apply) -> int:
    """Tokens; 0 where nothing was stored."""
    return max(
        [event.block_size for batch in step.batches for event in batch.events if isinstance(event, BlockStored)],
        default=0,
    )
