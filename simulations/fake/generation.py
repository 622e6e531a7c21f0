"""The paths that ask the model: from a body through the engine to an answer, whole or streamed.

Knows the way; bodies are read and answers written by one module an API. Never keeps a request's samples running once its client
has gone.
"""

import json
import time
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from simulations.fake.asks import DONE, Answer, Api, Ask, Refused, decode, error_body, sse
from simulations.fake.chat import Chat
from simulations.fake.completions import Completions
from simulations.fake.generate import Generate
from simulations.fake.messages import Messages
from simulations.fake.paths import Current, check_model, check_scale_out, request_id, respond
from simulations.fake.responses import Responses
from simulations.fake.server import TOKENIZER, EngineProcess

APIS: Final[dict[str, Api]] = {
    "/v1/completions": Completions(),
    "/v1/chat/completions": Chat(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
}


class AbortBody(msgspec.Struct):
    request_ids: list[str] = []


class Generation:
    """The handlers; without state of their own."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def routes(self) -> list[web.RouteDef]:
        return [
            *(web.post(path, partial(self.generate, api)) for path, api in APIS.items()),
            web.post("/inference/v1/generate", self.generate_tokens),
            web.post("/inference/v1/abort_requests", self.abort_requests),
            web.get("/query", self.bootstrap),
        ]

    async def generate_tokens(self, request: web.Request) -> web.StreamResponse:
        engine = self._current()
        check_scale_out(engine, is_there=engine.config.release.has_generate)
        return await self.generate(Generate(), request)

    async def abort_requests(self, request: web.Request) -> web.Response:
        engine = self._current()
        check_scale_out(engine, is_there=engine.config.release.has_generate)
        engine.abort_external(decode(await request.read(), AbortBody).request_ids)
        return web.Response()

    async def generate(self, api: Api, request: web.Request) -> web.StreamResponse:
        engine = self._current()
        config = engine.config
        ask = api.read(await request.read(), TOKENIZER)
        name = api.id_prefix + request_id(request, ask.request_id)
        try:
            model = check_model(engine, ask.model)
            loading = await engine.transfers.begin(ask, name)
        except Refused:
            self._reject(api, engine, ask, name)
            raise
        answer = Answer(
            ask,
            name=name,
            model=model,
            created=int(time.time()),
            version=config.vllm_version,
            tokenizer=TOKENIZER,
            has_details=config.has_usage_details,
        )
        if config.connector in {"shared", "offloading"}:
            answer.loaded_tokens = loading.tokens
        try:
            pinned = _rank(request) if config.release.has_rank_header else None
            answer.samples = engine.start(ask, answer.id, pinned, loading)
        except Refused:
            self._reject(api, engine, ask, name)
            raise
        try:
            if ask.is_streamed:
                return await self._stream(api, answer, request, engine)
            await self._wait(answer)
            if engine.is_dead:
                raise engine.dead()
            where = [(sample.rank or 0, sample.id) for sample in answer.samples]
            reason = answer.samples[0].finish_reason
            answer.transfer = engine.transfers.ended(ask, name, where, reason, loading)
            return respond(api.whole(answer), headers=_load_report(api, engine, request))
        finally:
            engine.abort(answer.samples)

    def _reject(self, api: Api, engine: EngineProcess, ask: Ask, name: str) -> None:
        if not isinstance(api, Generate):  # vLLM 0.32 has no such care on this path
            engine.transfers.rejected(ask, name)

    async def bootstrap(self, request: web.Request) -> web.Response:
        """What Mooncake's bootstrap server answers, which listens elsewhere in a real engine."""
        transfers = self._current().transfers
        if transfers.connector != "mooncake":
            raise web.HTTPNotFound
        return respond({"0": {"engine_id": transfers.engine_id, "worker_addr": {"0": {"0": "127.0.0.1:1"}}}})

    async def _wait(self, answer: Answer) -> None:
        mailbox = answer.samples[0].mailbox
        while any(sample.finish_reason is None for sample in answer.samples):
            await mailbox.get()

    async def _stream(
        self, api: Api, answer: Answer, request: web.Request, engine: EngineProcess
    ) -> web.StreamResponse:
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
            if engine.is_dead:
                events = [sse(error_body(engine.dead())), DONE]
            elif not num_open:
                events += api.closing(answer)
            await response.write(b"".join(events))
        await response.write_eof()
        return response


def _rank(request: web.Request) -> int | None:
    text = request.headers.get("X-data-parallel-rank", "")
    return int(text) if text.removeprefix("-").isdecimal() else None  # vLLM ignores what is no number


def _load_report(api: Api, engine: EngineProcess, request: web.Request) -> dict[str, str] | None:
    """The header that vLLM adds to whole answers of two of its APIs for clients that name a format."""
    form = request.headers.get("endpoint-load-metrics-format", "").upper()
    if not form or not isinstance(api, Completions | Chat):
        return None
    figures = engine.figures()
    named = {
        "num_requests_waiting": float(sum(each.num_waiting for each in figures)),
        "kv_cache_usage_perc": max(each.kv_cache_usage for each in figures),
    }
    if form == "JSON":
        return {"endpoint-load-metrics": "JSON " + json.dumps({"named_metrics": named})}
    if form == "TEXT":
        return {"endpoint-load-metrics": "TEXT " + ", ".join(f"named_metrics.{k}={v}" for k, v in named.items())}
    return None
