"""What a fake engine tells of itself: health, version, models, metrics and where its KV events are.

Knows the answers as vLLM 0.32.0 has them. Never changes an engine.
"""

import uuid
from typing import Any

from aiohttp import web

from simulations.fake import metrics
from simulations.fake.paths import Current, Handler, respond
from simulations.fake.publisher import BUFFER_STEPS, HIGH_WATER_MARK
from simulations.fake.rank import Rank
from simulations.fake.server import EngineProcess


class Information:
    """The handlers; without state of their own."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def routes(self) -> list[web.RouteDef]:
        handlers: dict[str, Handler] = {
            "/health": self.health,
            "/ping": self.health,
            "/version": self.version,
            "/load": self.load,
            "/metrics": self.metrics,
            "/v1/models": self.models,
            "/kv_event_sources": self.event_sources,
        }
        return [web.get(path, handler, allow_head=False) for path, handler in handlers.items()]

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self._current().is_dead else 200)

    async def version(self, request: web.Request) -> web.Response:
        return respond({"version": self._current().config.vllm_version})

    async def load(self, request: web.Request) -> web.Response:
        return respond({"server_load": 0})  # vLLM counts only with --enable-server-load-tracking

    async def metrics(self, request: web.Request) -> web.Response:
        engine = self._current()
        text = metrics.page(
            engine.config,
            engine.started,
            engine.figures(),
            is_asleep=engine.is_sleeping,
            sleep_level=engine.sleep_level,
        )
        return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=1.0.0; charset=utf-8"})

    async def event_sources(self, request: web.Request) -> web.Response:
        engine = self._current()
        if not engine.config.release.has_event_sources:
            raise web.HTTPNotFound
        return respond({str(rank.number): _source(rank, engine) for rank in engine.ranks if rank.publisher is not None})

    async def models(self, request: web.Request) -> web.Response:
        engine = self._current()
        config = engine.config
        base = _card(config.model, engine.started, root=config.model, parent=None, max_model_len=config.max_model_len)
        adapters = (
            _card(lora.name, engine.started, root=lora.path or lora.name, parent=config.model, max_model_len=None)
            for lora in config.loras
        )
        return respond({"object": "list", "data": [base, *adapters]})


def _source(rank: Rank, engine: EngineProcess) -> dict[str, Any]:
    """As vLLM tells it: the configured address, wildcard included."""
    assert rank.publisher is not None
    replay = rank.publisher.replay
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": _wildcard(rank.publisher.events),
        "replay_endpoint": None if replay is None else _wildcard(replay),
        "buffer_steps": BUFFER_STEPS,
        "hwm": HIGH_WATER_MARK,
        "max_queue_size": HIGH_WATER_MARK,
        "topic": engine.config.topic,
    }


def _wildcard(endpoint: str) -> str:
    return f"tcp://*:{endpoint.rpartition(':')[2]}"


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
