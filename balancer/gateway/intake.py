"""From a request that has come whole to what is asked of the brain.

Knows the order of things: unpack, read, tokenise, count its tokens, and how long it may take. The gateway and the endpoint
picker take requests in here; neither knows more of a body than the other.
"""

from collections.abc import Callable

from balancer import openai
from balancer.admission import Claim, Urgency
from balancer.brain import Brain
from balancer.conversations import Conversations
from balancer.decisions import Origin
from balancer.disaggregation import bodies
from balancer.disaggregation.plan import Connector
from balancer.disaggregation.roles import Part
from balancer.gateway import headers
from balancer.gateway.access import Access, Visit
from balancer.gateway.asking import Asking
from balancer.gateway.body import unpacked
from balancer.gateway.reading import Asked, conclude, parse, tokenise
from balancer.http.messages import Request
from balancer.limits import NO_PERMIT, Permit
from balancer.openai import Inbound
from balancer.records import Record
from balancer.timeouts import Timeouts


class Intake:
    """Holds no state between requests. ``connector`` is how a prompt's cache gets from one engine to another."""

    def __init__(self, service: Brain, access: Access, connector: Connector, clock: Callable[[], float]) -> None:
        """``clock`` is the loop's."""
        self._service = service
        self._access = access
        self._clock = clock
        self._shares = connector.shares
        settings = service.settings
        self._timeouts = {path: settings.timeouts.of(path) for path in openai.PATHS}
        self._conversations = Conversations(settings.sessions)
        self._max_wait = settings.admission.max_wait_seconds
        self._max_body_bytes = settings.server.max_body_bytes

    async def read(
        self, request: Request, path: str, visit: Visit, permit: Permit, record: Record, started: float
    ) -> Asking:
        """What a request to ``path`` (one of ``openai.PATHS``) asks; times are the loop's, ``started`` is when it came.

        Raises:
            RequestError: it cannot be read, is not for its sender, or is more than that one may ask.
        """
        named, body, service, caller = request.named, request.body, self._service, visit.caller
        if b"content-encoding" in named:
            body = await unpacked(body, headers.text(named, b"content-encoding"), self._max_body_bytes)
        content_type = headers.text(named, b"content-type")
        parsed = parse(service, self._access, visit, path, content_type, body, record.stages)
        prompts = parsed.prompts
        if parsed.is_text:
            prompts = await tokenise(service, visit, path, parsed, record.stages)
        session = self._conversations.number(named, parsed.inbound.conversation, caller.tenant)
        part = self._part(path, parsed.inbound, len(prompts))
        asked = conclude(service, parsed, prompts, record.request_id, record.stages, session, part)
        record.model = asked.request.model
        if permit is not NO_PERMIT:
            await service.spend(permit, sum(asked.request.prompt_lengths), self._clock())
        return self.asking(request, path, visit, asked, permit, record, started)

    def asking(
        self, request: Request, path: str, visit: Visit, asked: Asked, permit: Permit, record: Record, started: float
    ) -> Asking:
        """What has been made of it, and how long it may take.

        Raises:
            BadRequest: its headers say something else than a number of seconds.
        """
        origin = Origin(record.request_id, path, asked.salt)
        timeouts = self.timeouts(path)
        patience = min(self._max_wait, headers.max_wait(request.named), timeouts.total)
        claim = Claim(visit.caller.tenant, Urgency.of(asked.priority), started + patience)
        deadline = started + timeouts.total
        return Asking(request, visit, asked, origin, claim, permit, timeouts, started, deadline, record)

    def timeouts(self, path: str) -> Timeouts:
        """Of a request to any path."""
        found = self._timeouts.get(path)
        return self._service.settings.timeouts.of(path) if found is None else found

    def _part(self, path: str, inbound: Inbound, prompts: int) -> Part:
        """Whether a request may be split, as far as that can be told before it is routed."""
        if path not in bodies.PATHS or not inbound.reads_cache:
            return Part.ALONE
        is_one = inbound.is_comparable and prompts <= 1
        return Part.WHOLE if is_one or self._shares else Part.ALONE
