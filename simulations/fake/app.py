"""The HTTP side of a fake engine: the paths of a vLLM server that clients and routers use.

Knows paths, status codes and the two shapes of errors; bodies are read and answers written by one module an API. Never keeps a
request's samples running once its client has gone.
"""

import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from simulations.fake import metrics
from simulations.fake.asks import Answer, Api, Refused, decode
from simulations.fake.chat import Chat
from simulations.fake.completions import Completions
from simulations.fake.development import Development
from simulations.fake.embeddings import EmbeddingsBody
from simulations.fake.generate import Generate
from simulations.fake.messages import CountBody, Messages
from simulations.fake.render import render
from simulations.fake.responses import Responses
from simulations.fake.server import TOKENIZER, EngineProcess
from simulations.fake.tokens import Detokenize, Tokenize

_encode = msgspec.json.Encoder().encode

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BODY: Final = 64 * 1024 * 1024

NO_SCALE_OUT: Final = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."


def build_app(current: Callable[[], EngineProcess]) -> web.Application:
    """The application in front of whichever engine process lives now."""
    paths = _Paths(current)
    app = web.Application(client_max_size=MAX_BODY, middlewares=[_translate_errors])
    app.add_routes(paths.routes())
    app.add_routes(Development(current).routes())
    return app


@web.middleware
async def _translate_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as error:
        return _refusal(request, error)
    except web.HTTPRequestEntityTooLarge:
        return _refusal(request, Refused("The body is too large", status=413))
    except web.HTTPNotFound:
        return _json({"detail": "Not Found"}, 404)
    except web.HTTPMethodNotAllowed as error:
        return _json({"detail": "Method Not Allowed"}, 405, {"Allow": ", ".join(sorted(error.allowed_methods))})


def _refusal(request: web.Request, error: Refused) -> web.Response:
    if request.path.startswith("/v1/messages"):
        return _json({"type": "error", "error": {"type": error.kind, "message": error.message}}, error.status)
    body = {"message": error.message, "type": error.kind, "param": error.param, "code": error.status}
    return _json({"error": body}, error.status)


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=_encode(content), status=status, headers=headers, content_type="application/json")


class _Paths:
    """The handlers; without state of their own."""

    def __init__(self, current: Callable[[], EngineProcess]) -> None:
        self._current = current

    def routes(self) -> list[web.RouteDef]:
        apis: dict[str, Api] = {
            "/v1/completions": Completions(),
            "/v1/chat/completions": Chat(),
            "/v1/responses": Responses(),
            "/v1/messages": Messages(),
        }
        get: dict[str, _Handler] = {
            "/health": self.empty,
            "/ping": self.empty,
            "/version": self.version,
            "/load": self.load,
            "/metrics": self.metrics,
            "/v1/models": self.models,
            "/kv_event_sources": self.event_sources,
        }
        post: dict[str, _Handler] = {
            **{path: partial(self.generate, api) for path, api in apis.items()},
            **{f"{path}/render": partial(self.render, api) for path, api in apis.items()},
            "/inference/v1/generate": self.generate_tokens,
            "/inference/v1/abort_requests": self.abort_requests,
            "/v1/messages/count_tokens": self.count_tokens,
            "/v1/embeddings": self.embed,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
        }
        routes = [web.get(path, handler, allow_head=False) for path, handler in get.items()]
        return [*routes, *(web.post(path, handler) for path, handler in post.items())]

    # -- what it tells -------------------------------------------------------------------------------------------------

    async def empty(self, request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, request: web.Request) -> web.Response:
        return _json({"version": self._current().config.vllm_version})

    async def load(self, request: web.Request) -> web.Response:
        return _json({"server_load": 0})  # vLLM counts only with --enable-server-load-tracking

    async def metrics(self, request: web.Request) -> web.Response:
        engine = self._current()
        text = metrics.page(engine.config, engine.started, engine.figures())
        return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=1.0.0; charset=utf-8"})

    async def event_sources(self, request: web.Request) -> web.Response:
        engine = self._current()
        if not engine.config.release.has_event_sources:
            raise web.HTTPNotFound
        return _json(engine.event_sources())

    async def models(self, request: web.Request) -> web.Response:
        engine = self._current()
        config = engine.config
        base = _card(config.model, engine.started, root=config.model, parent=None, max_model_len=config.max_model_len)
        adapters = (
            _card(lora.name, engine.started, root=lora.path or lora.name, parent=config.model, max_model_len=None)
            for lora in config.loras
        )
        return _json({"object": "list", "data": [base, *adapters]})

    async def tokenize(self, request: web.Request) -> web.Response:
        fields = decode(await request.read(), Tokenize)
        engine = self._current()
        _check_model(engine, fields.model)
        return _json(fields.answer(TOKENIZER, engine.config.max_model_len))

    async def detokenize(self, request: web.Request) -> web.Response:
        fields = decode(await request.read(), Detokenize)
        _check_model(self._current(), fields.model)
        return _json({"prompt": TOKENIZER.decode(fields.tokens)})

    async def count_tokens(self, request: web.Request) -> web.Response:
        fields = decode(await request.read(), CountBody)
        _check_model(self._current(), fields.model)
        count = len(fields.prompt(TOKENIZER))
        return _json({"input_tokens": count, "context_management": {"original_input_tokens": count}})

    async def embed(self, request: web.Request) -> web.Response:
        fields = decode(await request.read(), EmbeddingsBody)
        engine = self._current()
        _check_model(engine, fields.model)
        name = f"embd-{_request_id(request, None)}"
        return _json(fields.answer(name, int(time.time()), fields.model or engine.config.model, TOKENIZER))

    async def render(self, api: Api, request: web.Request) -> web.Response:
        engine = self._current()
        _check_scale_out(engine, is_there=engine.config.release.has_render)
        ask = api.read(await request.read(), TOKENIZER)
        _check_model(engine, ask.model)
        name = api.id_prefix + _request_id(request, ask.request_id)
        results = render(ask, name, ask.model or engine.config.model, engine.config.max_model_len)
        return _json(results if isinstance(api, Completions) else results[0])

    # -- text ----------------------------------------------------------------------------------------------------------

    async def generate_tokens(self, request: web.Request) -> web.StreamResponse:
        engine = self._current()
        _check_scale_out(engine, is_there=engine.config.release.has_generate)
        return await self.generate(Generate(), request)

    async def abort_requests(self, request: web.Request) -> web.Response:
        engine = self._current()
        _check_scale_out(engine, is_there=engine.config.release.has_generate)
        engine.abort_external(decode(await request.read(), AbortBody).request_ids)
        return web.Response()

    async def generate(self, api: Api, request: web.Request) -> web.StreamResponse:
        engine = self._current()
        ask = api.read(await request.read(), TOKENIZER)
        name = api.id_prefix + _request_id(request, ask.request_id)
        model = ask.model or engine.config.model
        answer = Answer(
            ask,
            name,
            model,
            int(time.time()),
            engine.config.vllm_version,
            TOKENIZER,
            has_details=engine.config.has_usage_details,
        )
        answer.samples = engine.start(ask, name, _rank(request))
        try:
            if ask.is_streamed:
                return await self._stream(api, answer, request)
            return await self._whole(api, answer)
        finally:
            engine.abort(answer.samples)

    async def _whole(self, api: Api, answer: Answer) -> web.Response:
        mailbox = answer.samples[0].mailbox
        while any(sample.finish_reason is None for sample in answer.samples):
            await mailbox.get()
        return _json(api.whole(answer))

    async def _stream(self, api: Api, answer: Answer, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        mailbox = answer.samples[0].mailbox
        opened: set[int] = set()
        num_open = len(answer.samples)
        while num_open:
            events: list[bytes] = []
            for sample in await mailbox.get():
                events += api.delta(answer, sample, sample.index not in opened)
                opened.add(sample.index)
                num_open -= sample.finish_reason is not None
            if not num_open:
                events += api.closing(answer)
            await response.write(b"".join(events))
        await response.write_eof()
        return response


class AbortBody(msgspec.Struct):
    request_ids: list[str] = []


def _request_id(request: web.Request, named: str | None) -> str:
    return request.headers.get("X-Request-Id") or named or uuid.uuid4().hex[:16]


def _check_scale_out(engine: EngineProcess, *, is_there: bool) -> None:
    if not is_there:
        raise web.HTTPNotFound
    if engine.config.release.needs_scale_out and not engine.config.has_scale_out:
        raise Refused(NO_SCALE_OUT, status=403, kind="PermissionDeniedError")


def _check_model(engine: EngineProcess, model: str | None) -> None:
    if model is not None and model != engine.config.model and engine.config.lora(model) is None:
        raise engine.unknown_model(model)


def _rank(request: web.Request) -> int | None:
    text = request.headers.get("X-data-parallel-rank", "")
    return int(text) if text.removeprefix("-").isdecimal() else None  # vLLM ignores what is no number


def _card(name: str, created: float, **fields: Any) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{uuid.uuid4().hex[:16]}",
        "object": "model_permission",
        "created": int(created),
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {"id": name, "object": "model", "created": int(created), "owned_by": "vllm"}
    return {**card, **fields, "permission": [permission]}
