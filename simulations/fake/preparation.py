"""The paths that work on text without asking the model: tokenising, counting, rendering, and vectors that mean nothing.

Knows which body belongs to which path. Never changes an engine.
"""

import time
from functools import partial

from aiohttp import web

from simulations.fake.asks import Api, decode
from simulations.fake.completions import Completions
from simulations.fake.embeddings import EmbeddingsBody
from simulations.fake.generation import APIS
from simulations.fake.messages import CountBody
from simulations.fake.paths import Current, check_model, check_scale_out, request_id, respond
from simulations.fake.render import render
from simulations.fake.server import TOKENIZER
from simulations.fake.tokens import Detokenize, Tokenize


class Preparation:
    """The handlers; without state of their own."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
            web.post("/v1/messages/count_tokens", self.count_tokens),
            web.post("/v1/embeddings", self.embed),
            *(web.post(f"{path}/render", partial(self.render, api)) for path, api in APIS.items()),
        ]

    async def tokenize(self, request: web.Request) -> web.Response:
        fields = decode(await request.read(), Tokenize)
        engine = self._current()
        check_model(engine, fields.model)
        return respond(fields.answer(TOKENIZER, engine.config.max_model_len))

    async def detokenize(self, request: web.Request) -> web.Response:
        fields = decode(await request.read(), Detokenize)
        check_model(self._current(), fields.model)
        return respond({"prompt": TOKENIZER.decode(fields.tokens)})

    async def count_tokens(self, request: web.Request) -> web.Response:
        fields = decode(await request.read(), CountBody)
        check_model(self._current(), fields.model)
        count = len(fields.prompt(TOKENIZER))
        return respond({"input_tokens": count, "context_management": {"original_input_tokens": count}})

    async def embed(self, request: web.Request) -> web.Response:
        fields = decode(await request.read(), EmbeddingsBody)
        engine = self._current()
        check_model(engine, fields.model)
        name = f"embd-{request_id(request, None)}"
        return respond(fields.answer(name, int(time.time()), fields.model or engine.config.model, TOKENIZER))

    async def render(self, api: Api, request: web.Request) -> web.Response:
        engine = self._current()
        check_scale_out(engine, is_there=engine.config.release.has_render)
        ask = api.read(await request.read(), TOKENIZER)
        check_model(engine, ask.model)
        name = api.id_prefix + request_id(request, ask.request_id)
        results = render(ask, name, ask.model or engine.config.model, engine.config.max_model_len)
        return respond(results if isinstance(api, Completions) else results[0])
