"""Questions about decisions, those of the past and those that would be made now, and the facts they rest on.

Knows three paths under /debug and their shapes. Changes nothing: what is explained is neither leased nor sent.
"""

import asyncio
import time
from typing import Final

import msgspec
from aiohttp import web

from balancer import openai
from balancer.conversations import Conversations
from balancer.errors import BadRequest
from balancer.explain import explain, not_asked, tiers
from balancer.gateway.access import Access
from balancer.gateway.body import read
from balancer.gateway.queries import limit
from balancer.gateway.reading import Parsed, read_request
from balancer.service import RouterService
from balancer.survey import survey

DEFAULT_PATH: Final = "/v1/completions"
DEFAULT_LIMIT: Final = 100

PROMPTS: Final = {
    "/v1/completions": ("prompt", "prompt_embeds"),
    "/v1/chat/completions": ("messages",),
    "/v1/responses": ("input",),
    "/v1/messages": ("messages",),
    "/inference/v1/generate": ("token_ids",),
}
"""The fields that a request has its prompt in, of which it must have one."""


def add_routes(app: web.Application, service: RouterService, access: Access) -> None:
    """Make the paths known to ``app``."""
    debug = _Debug(service, access)
    app.router.add_get("/debug/decisions", debug.decisions)
    app.router.add_post("/debug/explain", debug.explain)
    app.router.add_get("/debug/facts", debug.facts)


class _Debug:
    """The handlers; without state of their own."""

    def __init__(self, service: RouterService, access: Access) -> None:
        self._service = service
        self._access = access
        self._conversations = Conversations(service.settings.sessions)

    async def decisions(self, request: web.Request) -> web.Response:
        """The last decisions, the newest first; of one request (``request_id``), or so many (``limit``)."""
        log, arms = self._service.decisions, self._service.router.arms
        found = log.last(limit(request.query, DEFAULT_LIMIT), request.query.get("request_id"))
        # Off the loop: a thousand decisions of a large fleet take a tenth of a second to write down.
        return await asyncio.to_thread(
            lambda: _answer(
                {"decisions": [each.explained(arms.named(each.decision.policy)) for each in found], "kept": len(log)}
            )
        )

    async def explain(self, request: web.Request) -> web.Response:
        """What would be decided for this body, were it sent to ``path``."""
        path = request.query.get("path", DEFAULT_PATH)
        if path not in openai.PATHS:
            raise BadRequest(f"path: {path[:80]!r} is not forwarded; give one of docs/api.md", param="path")
        service = self._service
        body = await read(request, service.settings.server.max_body_bytes)
        visit = self._access.visit(request.raw_headers)
        content_type = request.headers.get("Content-Type", "")
        named = {name.lower(): value for name, value in request.raw_headers}

        def conversation_of(parsed: Parsed) -> int:
            return self._conversations.number(named, parsed.inbound.conversation, visit.caller.tenant)

        asked = await read_request(
            service, self._access, visit, path, content_type, body, conversation_of=conversation_of
        )
        wanted = asked.request
        _check_prompt(path, body)
        decision = service.consider(wanted)
        router, now = service.router, time.monotonic()
        return _answer(
            explain(
                decision,
                router.arms.named(decision.policy),
                request_id="",
                time=time.time(),
                path=path,
                model=wanted.model,
                views={each.replica: router.caches.view(each.replica, now) for each in decision.candidates},
                tiers=tiers(router, wanted, decision.candidates),
                not_asked=not_asked(router, wanted, decision.candidates),
            )
        )

    async def facts(self, request: web.Request) -> web.Response:
        """What ``kvlb doctor`` judges."""
        return _answer(survey(self._service))


def _check_prompt(path: str, body: bytes) -> None:
    """An engine would refuse the body; here nobody else does."""
    wanted = PROMPTS.get(path, ())
    if wanted and not msgspec.json.decode(body, type=dict[str, msgspec.Raw]).keys() & {*wanted}:
        raise BadRequest(f"{wanted[0]}: missing; give the body of a request to {path}", param=wanted[0])


def _answer(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
