"""One inference request, from its bytes to the end of its answer.

Knows the order of things: read, route, forward, watch, release. Whatever happens, each lease is released exactly once. Another
replica is tried only while no byte of an answer has come; after that the answer, good or bad, is the client's.
"""

import asyncio
import logging

import msgspec

from balancer.admission import Claim, Urgency
from balancer.core import Decision, Outcome, RouteRequest, Truth
from balancer.decisions import MAX_ID, Origin
from balancer.errors import NoReplica, RequestError, UpstreamFailed, UpstreamTimeout
from balancer.gateway import headers
from balancer.gateway.access import Access, Visit
from balancer.gateway.body import unpacked
from balancer.gateway.passing import Passing
from balancer.gateway.reading import Asked, read_request
from balancer.gateway.refusals import refuse
from balancer.http.client import HttpClient
from balancer.http.exchange import ExchangeFailed, Limits, NotConnected, TimedOut
from balancer.http.messages import Outgoing, Request
from balancer.http.reply import Reply
from balancer.limits import NO_PERMIT, Permit
from balancer.metrics import Metrics
from balancer.service import RouterService
from indexer.index import ReplicaId

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
            claim = Claim(
                tenant=caller.tenant,
                urgency=Urgency.of(asked.priority),
                deadline=started + min(self._settings.admission.max_wait_seconds, headers.max_wait(request.headers)),
            )
            origin = Origin(request_id, path, asked.salt)
            await self._forward(_Asking(request, visit, asked, origin, claim, permit, started), reply)
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
        wanted = msgspec.structs.replace(asking.asked.request, request_id=asking.origin.request_id[:MAX_ID])
        failure: RequestError | None = None
        for _ in range(self._settings.upstream.attempts):
            try:
                decision = await self._service.route(wanted, asking.origin, asking.claim)
            except NoReplica:
                if failure is None:
                    raise
                break
            attempt = _Attempt(self._service, self._metrics, self._client, decision, asking)
            try:
                await attempt.run(reply)
            except _Unreachable as error:
                failure = UpstreamFailed(f"replica {decision.replica.id} cannot be reached: {error}", retry_after=2)
                wanted = msgspec.structs.replace(wanted, excluded=wanted.excluded | self._siblings(decision))
            else:
                return
        assert failure is not None
        raise failure

    def _siblings(self, decision: Decision) -> frozenset[ReplicaId]:
        """All ranks behind the endpoint that could not be reached."""
        return frozenset(
            live.replica.id for live in self._service.router.fleet if live.replica.endpoint == decision.replica.endpoint
        )


class _Asking(msgspec.Struct, frozen=True):
    """One request, its sender, what is made of it, and what it may have; ``started`` is the loop's time when it came."""

    request: Request
    visit: Visit
    asked: Asked
    origin: Origin
    claim: Claim
    permit: Permit
    started: float

    @property
    def wanted(self) -> RouteRequest:
        return self.asked.request


class _Unreachable(Exception):
    """No byte of an answer came: another replica may be tried."""


class _Attempt:
    """One request at one replica, from its lease to its release."""

    def __init__(
        self, service: RouterService, metrics: Metrics, client: HttpClient, decision: Decision, asking: _Asking
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._client = client
        self._decision = decision
        self._asking = asking
        self._outcome = Outcome.ERROR

    async def run(self, reply: Reply) -> None:
        """Give the replica's answer to the client.

        Raises:
            _Unreachable: there is none, and nothing has been given.
            UpstreamTimeout: it has not come in time, and nothing has been given.
        """
        expose = self._service.settings.server.expose_decisions
        passing = Passing(reply, self._decision, self._asking.origin, self._computed, expose=expose)
        try:
            await self._exchange(passing)
        except asyncio.CancelledError:
            self._outcome = Outcome.CANCELLED
            raise
        finally:
            origin = self._asking.origin
            self._charge(passing.truth)
            self._metrics.finished(self._asking.wanted.model, origin.path, self._decision, self._outcome)
            await self._service.release(self._decision.lease, self._outcome, passing.truth)

    async def _exchange(self, passing: Passing) -> None:
        replica, origin, upstream = self._decision.replica, self._asking.origin, self._service.settings.upstream
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
        limits = Limits(
            connect=upstream.connect_timeout_seconds,
            first_byte=upstream.read_timeout_seconds,
            idle=upstream.read_timeout_seconds,
        )
        try:
            await self._client.exchange(replica.endpoint, outgoing, passing, limits)
        except NotConnected as error:
            self._service.unreachable(replica.endpoint)
            raise self._unreachable(error) from error
        except ExchangeFailed as error:
            if passing.reply.has_begun:
                self._broken_off(passing, error)
            elif isinstance(error, TimedOut):
                raise UpstreamTimeout(f"replica {replica.id} sent nothing for {error.seconds:g} s") from error
            else:  # somebody is there, and did not answer this request; whether it answers others is for a probe to say
                self._service.broke_off(replica.endpoint)
                raise self._unreachable(error) from error
        else:
            self._outcome = Outcome.OK if passing.is_good else Outcome.ERROR

    def _charge(self, truth: Truth | None) -> None:
        if truth is not None:
            unknown = 0 if self._decision.knows_tokens else truth.prompt_tokens or 0
            self._asking.permit.charge(unknown + (truth.completion_tokens or 0))

    def _unreachable(self, error: ExchangeFailed) -> _Unreachable:
        self._outcome = Outcome.UNREACHABLE
        return _Unreachable(str(error))

    def _broken_off(self, passing: Passing, error: ExchangeFailed) -> None:
        replica = self._decision.replica
        log.warning("%s: broke off in the middle of an answer: %s", replica.id, error)
        self._service.broke_off(replica.endpoint)
        passing.break_off(UpstreamFailed(f"replica {replica.id} broke off in the middle of the answer"))

    def _computed(self) -> None:
        """The replica has computed the prompt."""
        self._service.started(self._decision.lease)
        elapsed = asyncio.get_running_loop().time() - self._asking.started
        self._metrics.first_byte(self._asking.wanted.model, elapsed)
