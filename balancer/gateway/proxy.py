"""One inference request, from its bytes to the end of its answer.

Knows the order of things: read, route, forward, watch, release. Whatever happens, each lease is released exactly once. Another
replica is tried only while no byte of an answer has come; after that the answer, good or bad, is the client's.
"""

import asyncio
import logging

import msgspec

from balancer.admission import Claim, Urgency
from balancer.core import Decision, Failure, Fault, Outcome, RouteRequest, Truth
from balancer.decisions import MAX_ID, Origin
from balancer.errors import Contended, NoReplica, RequestError, Saturated, UpstreamFailed, UpstreamTimeout
from balancer.gateway import headers
from balancer.gateway.access import Access, Visit
from balancer.gateway.body import unpacked
from balancer.gateway.passing import GivenUp, Passing
from balancer.gateway.reading import Asked, read_request
from balancer.gateway.refusals import refuse
from balancer.http.client import HttpClient
from balancer.http.exchange import ExchangeFailed, Limits, NotConnected, TimedOut
from balancer.http.messages import Outgoing, Request
from balancer.http.reply import Reply
from balancer.limits import NO_PERMIT, Permit
from balancer.metrics import Metrics
from balancer.retries import Verdict
from balancer.service import RouterService
from balancer.timeouts import Timeouts

log = logging.getLogger(__name__)


class Proxy:
    """Forwards inference requests. Holds no state of its own between them."""

    def __init__(self, service: RouterService, metrics: Metrics, client: HttpClient, access: Access) -> None:
        self._service = service
        self._metrics = metrics
        self._client = client
        self._settings = service.settings
        self._access = access

    async def handle(self, request: Request, path: str, reply: Reply) -> None:
        """Answer a request to ``path``, one of ``openai.PATHS``."""
        started = asyncio.get_running_loop().time()
        request_id = headers.request_id(request.headers)
        visit, permit = Visit(), NO_PERMIT
        try:
            visit = self._access.visit(request.headers)
            caller = visit.caller
            permit = self._service.limiter.enter(caller.name, caller.tenant, caller.rates, started)
            asked = await self._read(request, path, visit)
            permit.spend(sum(asked.request.prompt_lengths), asyncio.get_running_loop().time())
            timeouts = self._settings.timeouts.of(path)
            patience = min(self._settings.admission.max_wait_seconds, headers.max_wait(request.headers), timeouts.total)
            claim = Claim(caller.tenant, Urgency.of(asked.priority), started + patience)
            origin = Origin(request_id, path, asked.salt)
            await self._forward(_Asking(request, visit, asked, origin, claim, permit, started, timeouts), reply)
        except asyncio.CancelledError:
            if not (reply.is_lost or reply.has_begun):
                reply.send(refuse(_ending(), (headers.REQUEST_ID.decode(), request_id)))
            raise
        except RequestError as error:
            self._metrics.refused(path, error)
            reply.send(refuse(self._access.told(visit.caller, error), (headers.REQUEST_ID.decode(), request_id)))
        finally:
            permit.leave()

    async def _read(self, request: Request, path: str, visit: Visit) -> Asked:
        fields = request.headers
        encoding, content_type = headers.text(fields, b"content-encoding"), headers.text(fields, b"content-type")
        body = await unpacked(request.body, encoding, self._settings.server.max_body_bytes)
        return await read_request(self._service, self._access, visit, path, content_type, body)

    async def _forward(self, asking: "_Asking", reply: Reply) -> None:
        self._service.care.retries.requested(asking.started)
        wanted = msgspec.structs.replace(asking.wanted, request_id=asking.origin.request_id[:MAX_ID])
        told: RequestError | None = None
        tried = 0
        while True:
            try:
                decision = await self._service.route(wanted, asking.origin, asking.claim)
            except (NoReplica, Contended, Saturated):
                if told is not None:
                    raise told from None
                raise
            tried += 1
            attempt = _Attempt(self._service, self._metrics, self._client, decision, asking, wanted, tried)
            try:
                await attempt.run(reply)
            except _Failed as failed:
                if not failed.may_retry:
                    raise failed.told from None
                wanted, told = attempt.without(failed.failure), failed.told
            else:
                return


class _Asking(msgspec.Struct, frozen=True):
    """One request, its sender, what is made of it, and what it may have; ``started`` is the loop's time when it came."""

    request: Request
    visit: Visit
    asked: Asked
    origin: Origin
    claim: Claim
    permit: Permit
    started: float
    timeouts: Timeouts

    @property
    def wanted(self) -> RouteRequest:
        return self.asked.request

    @property
    def deadline(self) -> float:
        return self.started + self.timeouts.total


class _Failed(Exception):
    """An attempt has failed, and the client has had nothing; ``told`` is what to tell it if this was the last one."""

    def __init__(self, failure: Failure, told: RequestError, *, may_retry: bool) -> None:
        super().__init__(told.message)
        self.failure = failure
        self.told = told
        self.may_retry = may_retry


class _Attempt:
    """One request at one replica, from its lease to its release; ``number`` counts them from 1."""

    def __init__(
        self,
        service: RouterService,
        metrics: Metrics,
        client: HttpClient,
        decision: Decision,
        asking: _Asking,
        wanted: RouteRequest,
        number: int,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._client = client
        self._decision = decision
        self._asking = asking
        self._wanted = wanted
        self._number = number
        self._outcome = Outcome.ERROR
        self._failure: Failure | None = None

    async def run(self, reply: Reply) -> None:
        """Give the replica's answer to the client.

        Raises:
            _Failed: there is none, and nothing has been given.
            UpstreamTimeout: the time of the whole request is over, and nothing has been given.
        """
        expose = self._service.settings.server.expose_decisions
        passing = Passing(reply, self._decision, self._asking.origin, self._computed, self._may_retry, expose=expose)
        self._service.follow(self._decision, passing)
        try:
            await self._exchange(passing)
        except asyncio.CancelledError:
            self._outcome = Outcome.CANCELLED
            if reply.has_begun and not reply.is_lost:
                passing.break_off(_ending())
            raise
        finally:
            origin = self._asking.origin
            self._charge(passing.truth)
            self._metrics.finished(self._wanted.model, origin.path, self._decision, self._outcome)
            failure = self._failure or passing.failure
            await self._service.release(self._decision.lease, self._outcome, passing.truth, failure)

    def without(self, failure: Failure) -> RouteRequest:
        """The same request, to be sent to nobody who has failed in this way."""
        replica = self._decision.replica
        gone = frozenset({replica.id})
        if failure.fault.is_of_endpoint:
            fleet = self._service.router.fleet
            gone |= {live.replica.id for live in fleet if live.replica.endpoint == replica.endpoint}
        return msgspec.structs.replace(self._wanted, excluded=self._wanted.excluded | gone)

    def _may_retry(self, failure: Failure) -> bool:
        now = asyncio.get_running_loop().time()
        has_other = self._service.can_route(self.without(failure))
        retries = self._service.care.retries
        verdict = retries.judge(failure, self._number, now, self._asking.deadline, has_other=has_other)
        return verdict is Verdict.RETRY

    async def _exchange(self, passing: Passing) -> None:
        replica, origin, timeouts = self._decision.replica, self._asking.origin, self._asking.timeouts
        query = self._asking.request.query
        visit = self._asking.visit
        outgoing = Outgoing(
            b"POST",
            (f"{origin.path}?{query}" if query else origin.path).encode("latin-1"),
            headers.to_replica(
                self._asking.request.headers, self._decision, origin.request_id, visit.kept_back, visit.key
            ),
            self._asking.asked.body,
        )
        left = self._asking.deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise self._too_late()
        limits = Limits(min(timeouts.connect, left), timeouts.first_byte, timeouts.idle, left)
        try:
            await self._client.exchange(replica.endpoint, outgoing, passing, limits)
        except GivenUp as given:
            self._failure = given.failure
            told = UpstreamFailed(f"replica {replica.id} {given}", retry_after=2)
            raise _Failed(given.failure, told, may_retry=True) from None
        except ExchangeFailed as error:
            self._failed(passing, error)
        else:
            self._outcome = Outcome.OK if passing.is_good else Outcome.ERROR

    def _charge(self, truth: Truth | None) -> None:
        if truth is not None:
            unknown = 0 if self._decision.knows_tokens else truth.prompt_tokens or 0
            self._asking.permit.charge(unknown + (truth.completion_tokens or 0))

    def _failed(self, passing: Passing, error: ExchangeFailed) -> None:
        """The exchange has not come to its end.

        Raises:
            _Failed, UpstreamTimeout: as ``run``.
        """
        replica, has_begun = self._decision.replica, passing.reply.has_begun
        failure = Failure(fault_of(error, has_begun=has_begun))
        if not (isinstance(error, TimedOut) and asyncio.get_running_loop().time() >= self._asking.deadline):
            self._failure = failure
        match failure.fault:
            case Fault.CONNECT:
                self._service.unreachable(replica.endpoint)
            case Fault.RESET | Fault.BROKE_OFF:  # somebody is there; whether it answers others is for a probe to say
                self._service.broke_off(replica.endpoint)
        if has_begun:
            log.warning("%s: broke off in the middle of an answer: %s", replica.id, error)
            passing.break_off(UpstreamFailed(f"replica {replica.id} broke off in the middle of the answer"))
            return
        if self._failure is None:
            raise self._too_late() from error
        if isinstance(error, TimedOut):
            told: RequestError = UpstreamTimeout(f"replica {replica.id} sent nothing for {error.seconds:g} s")
        else:
            self._outcome = Outcome.UNREACHABLE
            told = UpstreamFailed(f"replica {replica.id} cannot be reached: {error}", retry_after=2)
        raise _Failed(failure, told, may_retry=self._may_retry(failure)) from error

    def _too_late(self) -> UpstreamTimeout:
        seconds = self._asking.timeouts.total
        return UpstreamTimeout(f"the request has not been answered within {seconds:g} s, which is all the time it has")

    def _computed(self) -> None:
        """The replica has computed the prompt."""
        self._service.started(self._decision.lease)
        elapsed = asyncio.get_running_loop().time() - self._asking.started
        self._metrics.first_byte(self._wanted.model, elapsed)


def _ending() -> NoReplica:
    return NoReplica(
        "kvlb is shutting down, and the answer has not come to its end; send the request again", retry_after=1
    )


def fault_of(error: ExchangeFailed, *, has_begun: bool) -> Fault:
    """What the replica did; ``has_begun`` when the client has had a byte of its answer."""
    if isinstance(error, NotConnected):
        return Fault.CONNECT
    if isinstance(error, TimedOut):
        return Fault.STALLED if has_begun else Fault.NO_ANSWER
    return Fault.BROKE_OFF if has_begun else Fault.RESET
