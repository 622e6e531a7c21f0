"""The brain as a gateway sees it that is a process of its own (``balancer.brain.Brain``).

Knows the socket, the calls that wait for an answer, and the leases that this gateway has. No request fails because the brain is
away: until it is back and knows what it knew, replicas are chosen by ``fallback`` among those that could be used last, and
limits are kept by ``permits``. Its leases are told to the next brain. Between calls: each lease is open here until it is
released; ``is_told`` says of each whether the brain that is there knows it.
"""

import asyncio
import logging
import os
import random
import secrets
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Final, TypeVar

import aiohttp
import msgspec

from balancer import offers
from balancer.admission import Claim
from balancer.core import Decision, Failure, Outcome, Prompt, Replica, RouteRequest, Truth
from balancer.decisions import Origin
from balancer.disaggregation.choosing import Threshold
from balancer.errors import BadRequest
from balancer.leaning import BEGINNING
from balancer.limits import Permit
from balancer.observer import Observer
from balancer.processes import fallback, protocol
from balancer.processes.frames import MAX_FRAME, ProtocolError
from balancer.processes.keys import OwnHashes
from balancer.processes.link import Link
from balancer.processes.mirror import Mirror
from balancer.processes.permits import BrainAway, Permits
from balancer.processes.protocol import (
    Abandon,
    Adopt,
    Cancel,
    Done,
    FleetView,
    FromGateway,
    Hello,
    Loads,
    Refused,
    Release,
    Report,
    Route,
    Routed,
    Started,
    Suspect,
)
from balancer.request_counts import RequestCounts
from balancer.retries import Retries
from balancer.settings import Settings
from balancer.stages import UNTIMED, Stage, Stages
from balancer.stalls import Answer
from balancer.tenants import Caller
from balancer.tokens import Tokenizer
from balancer.upstream import open_session
from hashing.memory import ChainMemory
from hashing.token_text import TokenText
from indexer.index import ReplicaId

log = logging.getLogger(__name__)

T = TypeVar("T")

FALLBACK: Final = "fallback"
"""Stands for a policy's name in decisions that were made without the brain."""

REPORT_SECONDS: Final = 0.5
"""Between two reports of what was counted."""

SILENT_SECONDS: Final = 5.0
"""After which a brain is away that says nothing; it speaks once a second."""

MAX_KEYS: Final = MAX_FRAME // 4
"""Bytes of keys in one question; a request with more goes by load."""

AGAIN_SECONDS: Final = 0.05
"""Between two attempts to reach it."""


class _Call(msgspec.Struct, frozen=True):
    answer: "asyncio.Future[Decision | None]"
    request: RouteRequest | None = None


class _Lease(msgspec.Struct):
    """A request under way. ``reported`` are the bytes of its answer at the last report."""

    replica: ReplicaId
    queued_tokens: int
    is_told: bool
    answer: Answer | None = None
    reported: int = 0


class RemoteBrain:
    """``start`` it in a running loop; ``stop`` tells the rest and ends the connection."""

    def __init__(
        self,
        settings: Settings,
        path: str,
        number: int,
        counts: RequestCounts,
        observer: Observer,
        tls: ssl.SSLContext | None = None,
        retries: Retries | None = None,
        *,
        waits_for_all: bool = False,
    ) -> None:
        """``path`` is the brain's socket, ``number`` this gateway's place among all.

        With ``waits_for_all`` nothing is known before the brain knows all that there is to know: whoever takes over from a
        gateway that knew the fleet must not begin with half of it.
        """
        self.settings = settings
        self.retries = retries or Retries(settings.retries)
        self.is_draining = False
        self._is_stopping = False
        self.tokenizer: Tokenizer
        self.mirror = Mirror()
        self.is_known = asyncio.Event()
        """Set once there is a fleet to fall back to."""
        self._path = path
        self._waits_for_all = waits_for_all
        self._number = number
        self._counts = counts
        self._observer = observer
        self._tls = tls
        self._session: aiohttp.ClientSession
        self._loop = asyncio.get_running_loop()
        self._memory = ChainMemory(settings.hashing.memory_bytes, secret=secrets.randbits(64))
        self._link: Link | None = None
        self._is_refilled = False
        self._worth = Threshold(settings.disaggregation.threshold_tokens)
        self._last_call = 0
        self._calls: dict[int, _Call] = {}
        self._leases: dict[int, _Lease] = {}
        self._at: Counter[ReplicaId] = Counter()  # leases at each replica
        self._permits = Permits(settings, self._next_call, self._call, self._tell, lambda: self._link, self._loop.time)
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<RemoteBrain {'asked' if self.is_asked else 'away'}, {len(self._leases)} leases>"

    async def start(self) -> None:
        self._session = open_session(self.settings.timeouts, self._tls)
        self.tokenizer = Tokenizer(self._session, self.settings.tokenizer)
        self._tasks = [asyncio.create_task(self._stay_connected()), asyncio.create_task(self._tick())]

    async def stop(self) -> None:
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if (link := self._link) is not None:
            self._report()
            await link.finish()
        await self._session.close()

    # The calls of a request

    async def enter(self, caller: Caller, now: float) -> Permit:
        return await self._permits.enter(caller, now)

    async def spend(self, permit: Permit, tokens: int, now: float) -> None:
        await self._permits.spend(permit, tokens, now)

    def route_at_once(self, request: RouteRequest, origin: Origin, claim: Claim) -> Decision | Awaitable[Decision]:
        return self.route(request, origin, claim) if self.is_asked else self._fall_back(self._next_call(), request)

    async def route(self, request: RouteRequest, origin: Origin, claim: Claim) -> Decision:
        number = self._next_call()
        if not self.is_asked:
            return self._fall_back(number, request)
        chains: list[protocol.Chains] = []
        if isinstance(request.hashes, OwnHashes):
            chains = request.hashes.told(self.mirror.ways(request.model))
            if chains:
                request.stages.passed(Stage.HASH)
            if sum(len(keys) for each in chains for keys in each.keys) > MAX_KEYS:
                chains = []
        asked = Route(
            number,
            request.model,
            request.prompt_lengths,
            request.size_hint,
            request.reads_cache,
            request.is_comparable,
            request.rendered_at,
            tuple(request.excluded),
            origin.request_id,
            origin.path,
            origin.salt,
            claim.tenant,
            claim.urgency,
            claim.deadline,
            chains,
            request.tells_start,
            request.session,
            request.part,
            request.takes_hint,
        )
        try:
            decision = await self._call(number, asked, request)
        except BrainAway:
            return self._fall_back(number, request)
        except ProtocolError as error:  # what a client wrote; without the brain it would get around the queue
            raise BadRequest(f"the request {error}") from error
        except asyncio.CancelledError:
            self._forget(number)
            self._tell(Cancel(number))
            raise
        return decision if decision is not None else self._fall_back(number, request)

    def can_route(self, request: RouteRequest) -> bool:
        return self.mirror.can_route(request, self._loop.time())

    def follow(self, decision: Decision, answer: Answer) -> None:
        lease = self._leases.get(decision.lease)
        if lease is not None:
            lease.answer = answer

    def started(self, lease: int) -> None:
        held = self._leases.get(lease)
        if held is not None:
            held.queued_tokens = 0
            if held.is_told:
                self._tell(Started(lease))

    def release_at_once(
        self, lease: int, outcome: Outcome, truth: Truth | None = None, failure: Failure | None = None
    ) -> None:
        held = self._forget(lease)
        if held is not None and held.is_told:
            self._tell(Release(lease, outcome, truth, failure))

    def hashes(self, prompts: Sequence[Prompt], salt: str | None, stages: Stages = UNTIMED) -> OwnHashes:
        return OwnHashes(prompts, salt, self._memory)

    def read_ids(self, body: bytes, begin: int, end: int) -> Sequence[int] | None:
        return TokenText.read(body, begin, end, self._memory)

    # What is known

    @property
    def is_asked(self) -> bool:
        """Whether the brain is there, and knows what there is to know."""
        return self._link is not None and self._is_refilled

    @property
    def is_ready(self) -> bool:
        return self.mirror.is_ready()

    @property
    def open_leases(self) -> int:
        return len(self._leases)

    def default_model(self, is_allowed: Callable[[str], bool] = lambda model: True) -> str:
        return offers.default_model(self.mirror.fleet, is_allowed)

    def max_model_len(self, model: str) -> int | None:
        return offers.max_model_len(self.mirror.fleet, model)

    def tokenizing_endpoint(self, model: str) -> str | None:
        return offers.tokenizing_endpoint(self.mirror.fleet, model, self.tokenizer.is_paused, random.random)

    def behind(self, endpoint: str) -> frozenset[ReplicaId]:
        return frozenset([live.replica.id for live in self.mirror.fleet.behind(endpoint)])

    def replicas(self) -> Sequence[Replica]:
        return [live.replica for live in self.mirror.fleet]

    def next_best(self, decision: Decision, request: RouteRequest) -> Sequence[Replica]:
        """By load alone: what lies in caches is the brain's to know, and it was asked for one."""
        return self.mirror.by_load(request, decision.replica.id, self._loop.time())

    def adopt(self, replica: ReplicaId, queued_tokens: int, answer: Answer) -> int | None:
        if self.mirror.replica(replica) is None:
            return None
        number = self._next_call()
        self._leases[number] = _Lease(replica, queued_tokens, self.is_asked, answer)
        self._at[replica] += 1
        if self.is_asked:
            self._tell(Adopt(number, replica, queued_tokens))
        return number

    def unreachable(self, endpoint: str) -> None:
        self.mirror.spare(endpoint, self._loop.time(), is_told=self.is_asked)
        self._tell(Suspect(endpoint, has_answered=False))

    def broke_off(self, endpoint: str) -> None:
        self._tell(Suspect(endpoint, has_answered=True))

    # The connection

    async def _stay_connected(self) -> None:
        while True:
            try:
                _, link = await self._loop.create_unix_connection(lambda: Link(self._receive, self._lost), self._path)
            except OSError:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            self._link = link
            self._is_refilled = False
            self._tell(Hello(version("kvlb"), os.getpid(), self._number))
            self._permits.tell_all(self._loop.time())
            await link.closed.wait()
            await asyncio.sleep(AGAIN_SECONDS)

    def _lost(self) -> None:
        if self._link is None:
            return
        if self.is_asked and not (self.is_draining or self._is_stopping):
            log.warning("the brain is away: replicas are chosen by rendezvous hashing until it is back")
        self._link, self._is_refilled = None, False
        for lease in self._leases.values():
            lease.is_told = False
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(BrainAway())

    def _next_call(self) -> int:
        self._last_call += 1
        return self._last_call

    def _tell(self, message: FromGateway) -> None:
        """Tell the brain, if it is there."""
        if self._link is not None:
            self._link.send(protocol.encode(message))

    async def _call(self, number: int, message: FromGateway, request: RouteRequest | None = None) -> Decision | None:
        """Its answer.

        Raises:
            BrainAway: there is none.
            RequestError: it is this.
        """
        link = self._link
        if link is None or not link.has_spoken:
            raise BrainAway
        frame = protocol.encode(message)
        answer: asyncio.Future[Decision | None] = self._loop.create_future()
        self._calls[number] = _Call(answer, request)
        link.send(frame)
        try:
            return await answer
        finally:
            del self._calls[number]

    def _receive(self, data: bytes) -> None:
        message = protocol.from_brain(data)
        match message:
            case Routed():
                self._routed(message)
            case Refused():
                call = self._calls.get(message.call)
                if call is not None and not call.answer.done():
                    call.answer.set_exception(protocol.error_of(message))
            case Done():
                call = self._calls.get(message.call)
                if call is not None and not call.answer.done():
                    call.answer.set_result(None)
            case Loads():
                self.mirror.load(message.in_flight)
            case Abandon():
                lease = self._leases.get(message.call)
                if lease is not None and lease.answer is not None:
                    lease.answer.leave()
            case FleetView():
                self._know(message)

    def _routed(self, routed: Routed) -> None:
        call, replica = self._calls.get(routed.call), self.mirror.replica(routed.replica)
        if call is None or call.request is None or call.answer.done():
            return  # who asked has gone, and has said so
        if replica is None:
            self._tell(Cancel(routed.call))
            call.answer.set_result(None)
            return
        request = call.request
        request.stages.passed_elsewhere(
            Stage.ASK, {Stage.QUEUE: routed.queue, Stage.MATCH: routed.match, Stage.CHOOSE: routed.choose}
        )
        decision = Decision(
            lease=routed.call,
            replica=replica,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=routed.cached_tokens,
            is_predicted=routed.is_predicted,
            knows_tokens=bool(request.prompt_lengths),
            policy=routed.policy,
            candidates=(),
            model=request.model,
            is_comparable=routed.is_comparable,
            held_tokens=routed.held_tokens,
            request_id=request.request_id,
            is_split=routed.is_split,
            hint=routed.hint,
        )
        self._lease(decision, is_told=True)
        call.answer.set_result(decision)

    def _know(self, view: FleetView) -> None:
        """The fleet has changed. What a brain tells that has only begun is less than what is known."""
        was_asked = self._is_refilled
        waits = self._waits_for_all and not self.is_known.is_set()
        if not view.is_refilled and (waits or self.mirror.is_ready()):
            return
        lives = self.mirror.lives
        self.mirror.apply(view)
        for endpoint, count in view.lives.items():
            if lives.get(endpoint) != count or not was_asked:
                self.tokenizer.forget_endpoint(endpoint)
        self.is_known.set()
        self._is_refilled = True
        if not was_asked:
            self._tell_leases()

    def _tell_leases(self) -> None:
        """The brain is back, or has come."""
        for number, lease in self._leases.items():
            lease.is_told, lease.reported = True, 0
            self._tell(Adopt(number, lease.replica, lease.queued_tokens))

    # Leases

    def _fall_back(self, number: int, request: RouteRequest) -> Decision:
        now = self._loop.time()
        usable = {replica.id: replica for replica in self.mirror.usable(request, now)}
        chosen = fallback.choose(
            self._key(request) or random.getrandbits(64), {replica: self._at[replica] for replica in usable}
        )
        request.stages.passed(Stage.CHOOSE)
        decision = Decision(
            lease=number,
            replica=usable[chosen],
            prompt_tokens=request.prompt_tokens,
            cached_tokens=0,
            is_predicted=False,
            knows_tokens=bool(request.prompt_lengths),
            policy=FALLBACK,
            candidates=(),
            model=request.model,
            request_id=request.request_id,
            is_split=self.mirror.can_split(request, usable[chosen], self._worth, now),
        )
        self._counts.fell_back()
        self._lease(decision, is_told=False)
        return decision

    def _key(self, request: RouteRequest) -> int:
        """How the prompt begins, as the brain names it, or all of a short one; 0 where nobody knows."""
        if not isinstance(request.hashes, OwnHashes):
            return 0
        way = self.mirror.first_way(request.model)
        is_long = request.prompt_lengths[0] >= BEGINNING
        return (request.hashes.beginning(*way) if way and is_long else 0) or request.hashes.first()

    def _lease(self, decision: Decision, *, is_told: bool) -> None:
        replica = decision.replica.id
        self._leases[decision.lease] = _Lease(replica, decision.computed_tokens, is_told)
        self._at[replica] += 1

    def _forget(self, number: int) -> _Lease | None:
        lease = self._leases.pop(number, None)
        if lease is not None:
            self._at[lease.replica] -= 1
            if not self._at[lease.replica]:
                del self._at[lease.replica]
        return lease

    # Reports

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            link = self._link
            if link is None:
                continue
            if self._loop.time() - link.heard_at > SILENT_SECONDS:
                log.warning("the brain has said nothing for %g s", SILENT_SECONDS)
                link.abort()
            else:
                try:
                    self._report()
                except ProtocolError:
                    log.exception("what was counted cannot be told")

    def _report(self) -> None:
        """Tell what was counted since the last time."""
        observer, tokenizer = self._observer, self.tokenizer
        retries, traced, tokenizations = (
            dict(self.retries.counts),
            dict(observer.tracer.counts),
            dict(tokenizer.counters),
        )
        self.retries.counts.clear()
        tokenizer.counters.clear()
        observer.tracer.counts.update(dict.fromkeys(traced, 0))
        self._tell(
            Report(
                self._counts.take(),
                observer.timings.take(),
                retries,
                tokenizations,
                traced,
                observer.take_lost_lines(),
                self._arrived(),
            )
        )

    def _arrived(self) -> dict[int, int]:
        """Bytes that have come of answers under way, where there are more than at the last time."""
        arrived = {}
        for number, lease in self._leases.items():
            if lease.answer is not None and lease.is_told and lease.answer.arrived > lease.reported:
                lease.reported = arrived[number] = lease.answer.arrived
        return arrived
