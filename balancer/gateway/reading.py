"""A request's bytes -> what the router is asked.

Knows the order of things: parse, name the model, tokenise, hash. Never knows what comes of it: the same reading serves
requests that are sent and questions about requests that are not.
"""

from collections.abc import Callable, Mapping
from typing import Final

import aiohttp
import msgspec

from balancer import forms, openai
from balancer.brain import Brain
from balancer.core import NO_HASHES, Prompt, RouteRequest
from balancer.decisions import MAX_ID
from balancer.disaggregation.roles import Part
from balancer.errors import BadRequest
from balancer.gateway.access import Access, Admitted, Visit
from balancer.limits import check_prompt
from balancer.nesting import is_deeper
from balancer.openai import Inbound
from balancer.stages import UNTIMED, Stage, Stages
from balancer.tokens import Prompts

BYTES_PER_TOKEN: Final = 4
"""For requests whose tokens nobody knows: English text in today's vocabularies; only ever compared with itself."""


class Asked(msgspec.Struct, frozen=True):
    """What a body asks of the router.

    ``body`` is what a replica shall get of it, ``salt`` its ``cache_salt``, ``priority`` the one that it asks for (vLLM: lower
    is earlier).
    """

    request: RouteRequest
    salt: str | None
    body: bytes
    priority: int = 0


class Parsed(msgspec.Struct, frozen=True):
    """What a body says by itself; ``is_text`` while somebody has to tokenise it."""

    inbound: Inbound
    model: str
    admitted: Admitted
    prompts: Prompts
    is_text: bool


async def read_request(
    service: Brain,
    access: Access,
    visit: Visit,
    path: str,
    content_type: str,
    body: bytes,
    request_id: str = "",
    stages: Stages = UNTIMED,
    conversation_of: Callable[[Parsed], int] = lambda parsed: 0,
) -> Asked:
    """What a body for ``path`` (one of ``openai.PATHS``) asks of the router; ``stages`` is told what has been done.

    ``conversation_of`` numbers the conversation that it belongs to.

    Raises:
        BadRequest, Forbidden, UnknownModel, NoReplica: as ``parse``.
        PromptTooLong: as ``conclude``.
    """
    parsed = parse(service, access, visit, path, content_type, body, stages)
    prompts = await tokenise(service, visit, path, parsed, stages) if parsed.is_text else parsed.prompts
    return conclude(service, parsed, prompts, request_id, stages, conversation_of(parsed))


def parse(
    service: Brain, access: Access, visit: Visit, path: str, content_type: str, body: bytes, stages: Stages
) -> Parsed:
    """The first step: all that can be read off the body, which takes no other's time.

    Raises:
        BadRequest: the body cannot be read, is nested too deeply, or names no model where several are served.
        Forbidden, UnknownModel: it asks for what is not for the caller.
        NoReplica: it names no model, and no endpoint has answered yet.
    """
    limits = service.settings.limits
    inbound = openai.read(path, content_type, body, service.read_ids)
    if not (path in openai.FORMS and forms.is_form(content_type)) and is_deeper(body, limits.max_nesting):
        raise BadRequest(
            f"the body has lists and objects more than {limits.max_nesting} deep within each other (limits.max_nesting); "
            "send a flatter one"
        )
    model = inbound.model if inbound.model is not None else service.default_model(visit.caller.may_use)
    access.check_model(visit.caller, model)
    admitted = access.admit(visit, path, inbound, body)
    stages.passed(Stage.READ)
    prompts: Prompts = ()
    if inbound.token_ids:
        prompts = tuple([Prompt(ids, inbound.media) for ids in inbound.token_ids])
    is_text = inbound.has_text and not prompts and service.settings.tokenizer.enabled
    return Parsed(inbound, model, admitted, prompts, is_text)


async def tokenise(service: Brain, visit: Visit, path: str, parsed: Parsed, stages: Stages) -> Prompts:
    """The second step, of a text alone: its tokens, as a replica makes them."""
    prompts = await _tokens(service, path, parsed.inbound, parsed.model, parsed.admitted.body, visit.questions)
    stages.passed(Stage.TOKENIZE)
    return prompts


def conclude(
    service: Brain,
    parsed: Parsed,
    prompts: Prompts,
    request_id: str,
    stages: Stages,
    session: int = 0,
    part: Part = Part.WHOLE,
) -> Asked:
    """The last step; ``session`` is the number of its conversation, ``part`` whether it may be split.

    Raises:
        PromptTooLong: the tokens are more than the settings allow.
    """
    inbound, model, admitted = parsed.inbound, parsed.model, parsed.admitted
    limits = service.settings.limits
    if prompts:
        check_prompt(sum([len(each.tokens) for each in prompts]), limits)
        if _is_taken_by_none(prompts, service.max_model_len(model)):
            prompts = ()  # nobody need hash a million tokens to say where it would go
    request = RouteRequest(
        model=model,
        hashes=service.hashes(prompts, admitted.salt, stages) if prompts else NO_HASHES,
        prompt_lengths=tuple([len(each.tokens) for each in prompts]) if prompts else (),
        size_hint=len(admitted.body) // BYTES_PER_TOKEN,
        reads_cache=inbound.reads_cache,
        is_comparable=inbound.is_comparable and len(prompts) == 1 and prompts[0].media.known_tokens is None,
        request_id=request_id[:MAX_ID],
        stages=stages,
        rendered_at=prompts[0].rendered_at if prompts else None,
        tells_start=inbound.is_streamed,
        session=session,
        part=part,
        takes_hint=not admitted.has_params,
    )
    return Asked(request, admitted.salt, admitted.body, admitted.priority or 0)


def _is_taken_by_none(prompts: Prompts, longest: int | None) -> bool:
    """Whether the engines refuse it: ``longest`` is the longest sequence that any of them takes, where all say so."""
    if len(prompts) > openai.MAX_PROMPTS:
        return True
    return longest is not None and any(len(each.tokens) > longest for each in prompts)


async def _tokens(
    service: Brain, path: str, inbound: Inbound, model: str, body: bytes, questions: Mapping[str, str]
) -> Prompts:
    """The tokens of a text request. An endpoint where nobody listens is lost, and another one is asked."""
    for _ in range(service.settings.retries.attempts):
        endpoint = service.tokenizing_endpoint(model)
        if endpoint is None:
            break
        try:
            return await service.tokenizer.token_ids(endpoint, path, inbound, body, questions)
        except aiohttp.ClientConnectorError:
            service.unreachable(endpoint)
    return ()
