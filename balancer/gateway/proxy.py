"""One inference request, from its bytes to the end of its answer.

Knows the order of things: who asks, read, wait, route, try. Another replica is tried only while the client has had no byte of
an answer; after that the answer, good or bad, is the client's.
"""

import asyncio

from balancer.brain import Brain
from balancer.errors import Contended, NoReplica, RequestError, Saturated
from balancer.gateway import headers
from balancer.gateway.access import STRANGER, Access
from balancer.gateway.asking import Asking, Means, ending
from balancer.gateway.attempt import Attempt
from balancer.gateway.intake import Intake
from balancer.gateway.legs import Computing, Legs
from balancer.gateway.placing import Again, attempted, place
from balancer.gateway.refusals import refuse
from balancer.header_names import REQUEST_ID
from balancer.http.client import HttpClient
from balancer.http.messages import Request
from balancer.http.reply import Reply
from balancer.limits import NO_PERMIT
from balancer.observer import Observer
from balancer.request_counts import RequestCounts


class Proxy:
    """Forwards inference requests. Holds no state of its own between them. Make it in a running loop."""

    def __init__(
        self, service: Brain, counts: RequestCounts, client: HttpClient, access: Access, observer: Observer
    ) -> None:
        self._service = service
        self._counts = counts
        self._access = access
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        settings = service.settings
        self._means = Means(service, counts, client, observer, self._loop, settings.server.expose_decisions)
        self._legs = Legs(self._means)
        self._intake = Intake(service, access, self._legs.connector, self._loop.time)

    async def handle(self, request: Request, path: str, reply: Reply) -> None:
        """Answer a request to ``path``, one of ``openai.PATHS``."""
        started = self._loop.time()
        request_id = headers.request_id(request.named)
        record = self._observer.begin(request, path, request_id, reply.peer)
        visit, permit = STRANGER, NO_PERMIT
        try:
            visit = self._access.visit(request.headers)
            record.tenant = visit.caller.tenant
            permit = await self._service.enter(visit.caller, started)
            asking = await self._intake.read(request, path, visit, permit, record, started)
            await self._forward(asking, reply)
        except asyncio.CancelledError:
            if not (reply.is_lost or reply.has_begun):
                reply.send(refuse(ending(), (REQUEST_ID.decode(), request_id), path=path))
            raise
        except RequestError as error:
            self._counts.refused(path, error)
            record.error = error.message
            told = self._access.told(visit.caller, error)
            reply.send(refuse(told, (REQUEST_ID.decode(), request_id), path=path))
        finally:
            permit.leave()
            self._observer.finished(record, reply.status)

    async def _forward(self, asking: Asking, reply: Reply) -> None:
        service = self._service
        service.retries.requested(asking.started)
        wanted = asking.asked.request
        told: RequestError | None = None
        state = Computing()
        tried = 0
        try:
            while True:
                try:
                    decision = await place(service, wanted, asking)
                except (NoReplica, Contended, Saturated):
                    if told is not None:
                        raise told from None
                    raise
                tried += 1
                try:
                    if decision.is_split:
                        return await self._legs.run(asking, wanted, decision, tried, reply, state)
                    return await attempted(Attempt(self._means, asking, wanted, decision, tried, reply))
                except Again as again:
                    wanted, told = again.wanted, again.told or told
        finally:
            self._legs.let_go(state)
