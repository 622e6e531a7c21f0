"""The brain's end of the Unix socket: gateways ask, and a ``RouterService`` answers.

Knows who is connected, and what each of them has. Decides nothing. A gateway that goes away, however it does, has its requests
end as cancelled: nothing that it had under way goes on. All gateways are told of the fleet as soon as it changes, and once a
second that the brain is there.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import Final

from balancer.admission import Claim
from balancer.census import Member
from balancer.core import NO_HASHES, Decision, Outcome, RouteRequest
from balancer.decisions import MAX_ID, Origin
from balancer.errors import RequestError
from balancer.limits import Permit
from balancer.observer import Observer
from balancer.processes import protocol
from balancer.processes.frames import ProtocolError
from balancer.processes.keys import GivenHashes, Kind
from balancer.processes.link import Link
from balancer.processes.protocol import (
    Abandon,
    Adopt,
    Cancel,
    Charge,
    Done,
    Enter,
    FleetView,
    FromBrain,
    FromGateway,
    Hello,
    Hold,
    Known,
    Leave,
    Loads,
    Release,
    Report,
    Route,
    Routed,
    Spend,
    Started,
    Suspect,
)
from balancer.request_counts import RequestCounts
from balancer.service import RouterService
from balancer.stages import Stage, Stages
from hashing.example import ExampleKeys
from hashing.own import LearnedKeys
from hashing.recipes import Recipe
from indexer.index import ReplicaId

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.1
"""Between two looks whether the fleet has changed."""

BEAT_SECONDS: Final = 1.0
"""Between two signs of life."""

REFILL_SECONDS: Final = 15.0
"""After which a brain knows what it knows: an endpoint that is down, or events that do not come, are not waited for longer."""


FAILED: Final = "kvlb itself has failed; its log says where"


class FleetTeller:
    """Says what gateways have to know of the fleet, when it has changed. Changes with every call."""

    def __init__(self, service: RouterService) -> None:
        self._service = service
        self._numbers: dict[Kind, int] = {}
        self.kinds: dict[int, Kind] = {}
        """What each number stands for; none is ever given again."""
        self._told: object = None
        self._is_refilled = False
        self._until = time.monotonic() + REFILL_SECONDS
        self.frame = b""
        """The last view."""
        self._replicas: dict[ReplicaId, object] = {}

    def knows(self, decision: Decision) -> bool:
        """Whether the replica was told as it is."""
        return self._replicas.get(decision.replica.id) is decision.replica

    def tell_again(self) -> None:
        """At the next look there is another view, whatever has changed."""
        self._told = None

    def look(self) -> bool:
        """Whether there is another view than before."""
        service, now = self._service, time.monotonic()
        matcher = service.router.caches.matcher
        self._is_refilled = self._is_refilled or service.is_refilled or now > self._until
        fleet = [
            (live.replica, matcher.recipe(live.replica), live.is_available(), live.rests_until)
            for live in service.router.fleet
        ]
        kinds = service.router.caches.stores.kinds()
        told = (fleet, kinds, dict(service.lives), self._is_refilled)
        if told == self._told:
            return False
        self._told = told
        numbers = [None if recipe is None else self._number(recipe) for _, recipe, _, _ in fleet]
        also = [self._number(kind) for kind in kinds]
        used = {number: self.kinds[number] for number in (*numbers, *also) if number is not None}
        view = FleetView(
            [
                Known(replica, number, is_available, rests_until)
                for (replica, _, is_available, rests_until), number in zip(fleet, numbers, strict=True)
            ],
            {number: kind for number, kind in used.items() if isinstance(kind, Recipe)},
            {number: kind for number, kind in used.items() if type(kind) is LearnedKeys},
            dict(service.lives),
            self._is_refilled,
            also,
            {number: kind for number, kind in used.items() if isinstance(kind, ExampleKeys)},
        )
        self._replicas = {replica.id: replica for replica, *_ in fleet}
        self.frame = protocol.encode(view)
        return True

    def loads(self) -> bytes:
        """The requests at each replica."""
        return protocol.encode(Loads([live.in_flight for live in self._service.router.fleet]))

    def _number(self, kind: Kind) -> int:
        number = self._numbers.setdefault(kind, len(self._numbers))
        self.kinds[number] = kind
        return number


class BrainServer:
    """Serves gateways at a socket from ``start`` to ``stop``. Counts what they count."""

    def __init__(self, service: RouterService, counts: RequestCounts, observer: Observer) -> None:
        self.service = service
        self.teller = FleetTeller(service)
        self.gateways: dict[GatewayLink, None] = {}
        self._counts = counts
        self._observer = observer
        self._server: asyncio.Server
        self._task: asyncio.Task[None]
        service.census.brain = os.getpid()
        service.census.gateways = []

    async def start(self, path: str) -> None:
        """Listen at this path; whatever socket is there has been left by somebody who has gone."""
        self.teller.look()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: GatewayLink(self).link, path)
        os.chmod(path, 0o600)
        self._task = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._server.close()
        await asyncio.gather(*[gateway.link.finish() for gateway in list(self.gateways)])

    async def _tick(self) -> None:
        beat_at = 0.0
        while True:
            self.look()
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT_SECONDS
                self.beat()
            await asyncio.sleep(LOOK_SECONDS)

    def beat(self) -> None:
        """Tell everybody that the brain is there, and how busy replicas are."""
        loads = self.teller.loads()
        for gateway in self.gateways:
            gateway.link.send(loads)
        self.count_members()

    def look(self) -> None:
        """Tell everybody of the fleet if it has changed."""
        if self.teller.look():
            for gateway in self.gateways:
                gateway.link.send(self.teller.frame)

    def count_members(self) -> None:
        """Who is there now."""
        self.service.census.gateways = [
            Member(each.hello.number, each.hello.pid, len(each.leases))
            for each in self.gateways
            if each.hello is not None
        ]

    def report(self, report: Report) -> None:
        """Add what a gateway has counted."""
        self._counts.add(report.counted)
        observer, service = self._observer, self.service
        observer.timings.add_all(report.timed)
        observer.lost_elsewhere += report.lost_lines
        for result, count in report.traced.items():
            observer.tracer.counts[result] = observer.tracer.counts.get(result, 0) + count
        service.retries.counts.update(report.retries)
        service.tokenizer.counters.update(report.tokenizations)


class _Arrived:
    """An answer under way (``balancer.stalls.Answer``), as far as its gateway has told of it."""

    __slots__ = ("_call", "_link", "arrived")

    def __init__(self, link: Link, call: int) -> None:
        self._link = link
        self._call = call
        self.arrived = 0

    def leave(self) -> None:
        self._link.send(protocol.encode(Abandon(self._call)))


class GatewayLink:
    """One gateway, and all that it has: leases and permits by the calls that they were asked for with."""

    def __init__(self, server: BrainServer) -> None:
        self._server = server
        self._service = server.service
        self.hello: Hello | None = None
        self.leases: dict[int, int] = {}
        self._answers: dict[int, _Arrived] = {}
        self._waiting: dict[int, asyncio.Future[Decision]] = {}
        self._permits: dict[int, Permit] = {}
        self.link = Link(self._receive, self._ended)
        self._does: dict[type, Callable[..., None]] = {
            Hello: self._hello,
            Route: self._route,
            Cancel: self._cancel,
            Started: self._started,
            Release: self._release,
            Adopt: self._adopt,
            Enter: self._enter,
            Spend: self._spend,
            Charge: self._charge,
            Leave: self._leave,
            Hold: self._hold,
            Suspect: self._suspect,
            Report: self._report,
        }

    def _receive(self, data: bytes) -> None:
        message: FromGateway = protocol.from_gateway(data)
        try:
            self._does[type(message)](message)
        except RequestError as error:
            self.link.send(protocol.encode(protocol.refusal(getattr(message, "call", 0), error)))
        except ProtocolError:
            raise
        except Exception:
            log.exception("a message of gateway %s failed", self.hello)
            self.link.send(protocol.encode(protocol.refusal(getattr(message, "call", 0), RequestError(FAILED))))

    def _ended(self) -> None:
        self._server.gateways.pop(self, None)
        self._server.count_members()
        for placed in list(self._waiting.values()):
            placed.cancel()
        self._waiting = {}
        for lease in self.leases.values():
            self._service.release_at_once(lease, Outcome.CANCELLED)
        for permit in self._permits.values():
            permit.leave()
        self.leases, self._permits = {}, {}

    def _hello(self, hello: Hello) -> None:
        self.hello = hello
        self._server.gateways[self] = None
        self._server.look()
        self._server.count_members()
        self.link.send(self._server.teller.frame)

    def _route(self, asked: Route) -> None:
        stages = Stages(time.perf_counter_ns)
        request = RouteRequest(
            model=asked.model,
            hashes=GivenHashes(asked.chains, self._server.teller.kinds) if asked.chains else NO_HASHES,
            prompt_lengths=asked.prompt_lengths,
            size_hint=asked.size_hint,
            reads_cache=asked.reads_cache,
            is_comparable=asked.is_comparable,
            rendered_at=asked.rendered_at,
            excluded=frozenset(asked.excluded),
            stages=stages,
            request_id=asked.request_id[:MAX_ID],
            tells_start=asked.tells_start,
            session=asked.session,
            part=asked.part,
            takes_hint=asked.takes_hint,
        )
        origin = Origin(asked.request_id, asked.path, asked.salt)
        placed = self._service.place(request, origin, Claim(asked.tenant, asked.urgency, asked.deadline))
        if isinstance(placed, Decision):
            self._routed(asked.call, placed, stages)
            return
        self._waiting[asked.call] = placed
        placed.add_done_callback(lambda done: self._has_waited(asked.call, done, stages))

    def _has_waited(self, call: int, placed: "asyncio.Future[Decision]", stages: Stages) -> None:
        is_wanted = self._waiting.pop(call, None) is not None
        if placed.cancelled():
            return
        error = placed.exception()
        if error is None:
            if is_wanted:
                self._routed(call, placed.result(), stages)
            else:  # it was cancelled in the moment in which its turn came
                self._service.release_at_once(placed.result().lease, Outcome.CANCELLED)
        elif isinstance(error, RequestError):
            self._send(protocol.refusal(call, error))
        else:
            log.error("a request that waited failed", exc_info=error)
            self._send(protocol.refusal(call, RequestError(FAILED)))

    def _routed(self, call: int, decision: Decision, stages: Stages) -> None:
        self.leases[call] = decision.lease
        self._answers[call] = answer = _Arrived(self.link, call)
        self._service.follow(decision, answer)
        if not self._server.teller.knows(decision):
            self._server.look()
        spent = stages.spent()
        self._send(
            Routed(
                call,
                decision.replica.id,
                decision.cached_tokens,
                decision.held_tokens,
                decision.is_predicted,
                decision.is_comparable,
                spent.get(Stage.QUEUE, 0),
                spent.get(Stage.MATCH, 0),
                spent.get(Stage.CHOOSE, 0),
                decision.policy,
                decision.is_split,
                decision.hint,
            )
        )

    def _cancel(self, cancel: Cancel) -> None:
        placed = self._waiting.pop(cancel.call, None)
        if placed is not None:
            placed.cancel()
        self._end(cancel.call, Release(cancel.call, Outcome.CANCELLED, None, None))

    def _started(self, started: Started) -> None:
        lease = self.leases.get(started.call)
        if lease is not None:
            self._service.started(lease)

    def _release(self, release: Release) -> None:
        self._end(release.call, release)

    def _end(self, call: int, release: Release) -> None:
        self._answers.pop(call, None)
        lease = self.leases.pop(call, None)
        if lease is not None:
            self._service.release_at_once(lease, release.outcome, release.truth, release.failure)

    def _adopt(self, adopt: Adopt) -> None:
        answer = _Arrived(self.link, adopt.call)
        lease = self._service.adopt(adopt.replica, adopt.queued_tokens, answer)
        if lease is not None:
            self.leases[adopt.call], self._answers[adopt.call] = lease, answer

    def _enter(self, enter: Enter) -> None:
        self._permits[enter.call] = self._service.limiter.enter(enter.name, enter.tenant, enter.rates, enter.now)
        self._send(Done(enter.call))

    def _hold(self, hold: Hold) -> None:
        self._permits[hold.permit] = self._service.limiter.hold(hold.name, hold.tenant, hold.rates, hold.now)

    def _spend(self, spend: Spend) -> None:
        permit = self._permits.get(spend.permit)
        if permit is not None:
            permit.spend(spend.tokens, spend.now)
        self._send(Done(spend.call))

    def _charge(self, charge: Charge) -> None:
        permit = self._permits.get(charge.permit)
        if permit is not None:
            permit.charge(charge.tokens)

    def _leave(self, leave: Leave) -> None:
        permit = self._permits.pop(leave.permit, None)
        if permit is not None:
            permit.leave()

    def _suspect(self, suspect: Suspect) -> None:
        if suspect.has_answered:
            self._service.broke_off(suspect.endpoint)
        else:
            self._service.unreachable(suspect.endpoint)
            self._server.teller.tell_again()  # for this gateway has taken it out by itself
            self._server.look()

    def _report(self, report: Report) -> None:
        self._server.report(report)
        for call, arrived in report.arrived.items():
            answer = self._answers.get(call)
            if answer is not None:
                answer.arrived = arrived

    def _send(self, message: FromBrain) -> None:
        self.link.send(protocol.encode(message))
