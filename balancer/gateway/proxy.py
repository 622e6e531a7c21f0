"""One inference request, from its bytes to the end of its answer.

Knows the order of things: who asks, read, wait, route, try. Another replica is tried only while the client has had no byte of
an answer; after that the answer, good or bad, is the client's.
"""

import asyncio

from balancer import openai
from balancer.admission import Claim, Urgency
from balancer.brain import Brain
from balancer.conversations import Conversations
from balancer.decisions import Origin
from balancer.errors import Contended, NoReplica, RequestError, Saturated
from balancer.gateway import headers
from balancer.gateway.access import STRANGER, Access
from balancer.gateway.asking import Asking, Means, ending
from balancer.gateway.attempt import Attempt
from balancer.gateway.body import unpacked
from balancer.gateway.legs import Computing, Legs
from balancer.gateway.placing import Again, attempted, place
from balancer.gateway.reading import conclude, parse, tokenise
from balancer.gateway.refusals import refuse
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
        self._timeouts = {path: settings.timeouts.of(path) for path in openai.PATHS}
        self._legs = Legs(self._means)
        self._conversations = Conversations(settings.sessions)
        self._max_wait = settings.admission.max_wait_seconds
        self._max_body_bytes = settings.server.max_body_bytes

    async def handle(self, request: Request, path: str, reply: Reply) -> None:
        """Answer a request to ``path``, one of ``openai.PATHS``."""
        started = self._loop.time()
        named = request.named
        request_id = headers.request_id(named)
        record = self._observer.begin(request, path, request_id, reply)
        visit, permit = STRANGER, NO_PERMIT
        try:
            visit = self._access.visit(request.headers)
            caller = visit.caller
            record.tenant = caller.tenant
            permit = await self._service.enter(caller, started)
            body = request.body
            if b"content-encoding" in named:
                body = await unpacked(body, headers.text(named, b"content-encoding"), self._max_body_bytes)
            service, content_type = self._service, headers.text(named, b"content-type")
            parsed = parse(service, self._access, visit, path, content_type, body, record.stages)
            prompts = parsed.prompts
            if parsed.is_text:
                prompts = await tokenise(service, visit, path, parsed, record.stages)
            session = self._conversations.number(named, parsed.inbound.conversation, caller.tenant)
            part = self._legs.part(path, parsed.inbound, len(prompts))
            asked = conclude(service, parsed, prompts, request_id, record.stages, session, part)
            record.model = asked.request.model
            if permit is not NO_PERMIT:
                await service.spend(permit, sum(asked.request.prompt_lengths), self._loop.time())
            origin, timeouts = Origin(request_id, path, asked.salt), self._timeouts[path]
            patience = min(self._max_wait, headers.max_wait(named), timeouts.total)
            claim = Claim(caller.tenant, Urgency.of(asked.priority), started + patience)
            deadline = started + timeouts.total
            await self._forward(
                Asking(request, visit, asked, origin, claim, permit, timeouts, started, deadline, record), reply
            )
        except asyncio.CancelledError:
            if not (reply.is_lost or reply.has_begun):
                reply.send(refuse(ending(), (headers.REQUEST_ID.decode(), request_id), path=path))
            raise
        except RequestError as error:
            self._counts.refused(path, error)
            record.error = error.message
            told = self._access.told(visit.caller, error)
            reply.send(refuse(told, (headers.REQUEST_ID.decode(), request_id), path=path))
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
