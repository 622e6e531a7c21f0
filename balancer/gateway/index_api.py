"""The gateway's index for others to ask: ``/index/query``, ``/index/replicas``, ``/index/dump``.

Knows three paths. Changes nothing: what is asked is neither routed nor leased, and what is only expected is not told.
"""

import contextlib
import time

import msgspec
from aiohttp import web

from balancer.core import Replica
from balancer.dumps import Dumps
from balancer.errors import UnknownModel
from balancer.gateway.body import read
from balancer.index_tables import answer_query, answer_replicas, dump, read_query
from balancer.service import RouterService


def add_routes(app: web.Application, service: RouterService) -> None:
    """Make the paths known to ``app``."""
    index = _Index(service)
    app.router.add_post("/index/query", index.query)
    app.router.add_get("/index/replicas", index.replicas)
    app.router.add_get("/index/dump", index.dump)


class _Index:
    """The handlers."""

    def __init__(self, service: RouterService) -> None:
        self._service = service
        self._dumps = Dumps()

    async def query(self, request: web.Request) -> web.Response:
        service = self._service
        query = read_query(await read(request, service.settings.server.max_body_bytes))
        model = query.model or service.default_model()
        replicas = [live.replica for live in service.router.fleet.serving(model)]
        if not replicas:
            served = ", ".join(service.router.fleet.models()) or "none yet"
            raise UnknownModel(f"the model '{model}' is not served here; served: {served}", param="model")
        adapter = query.lora_name or model
        answer = answer_query(
            service.router.caches, replicas, query, service.memory, lambda each: each.adapter(adapter), time.monotonic()
        )
        return web.Response(body=msgspec.json.encode({"model": model, **answer}), content_type="application/json")

    async def replicas(self, request: web.Request) -> web.Response:
        answer = answer_replicas(self._service.router.caches, self._all(), self._service.publishers(), time.monotonic())
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def dump(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        lines = dump(self._service.router.caches, self._all(), time.monotonic())
        async with contextlib.aclosing(self._dumps.paced(lines)) as pieces:
            async for line in pieces:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(line)
        await response.write_eof()
        return response

    def _all(self) -> list[Replica]:
        return [live.replica for live in self._service.router.fleet]
