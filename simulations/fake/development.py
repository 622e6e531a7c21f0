"""The paths that vLLM has with ``VLLM_SERVER_DEV_MODE=1``: resetting the cache, pausing and sleeping.

Knows query parameters and answers as vLLM 0.32.0 has them. Never knows what they do to an engine; that is the engine's.
"""

import msgspec
from aiohttp import web

from simulations.fake.asks import Refused
from simulations.fake.paths import Current, respond
from simulations.fake.server import EngineProcess


class Development:
    """The handlers; without state of their own."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/reset_prefix_cache", self.reset_prefix_cache),
            web.post("/sleep", self.sleep),
            web.post("/wake_up", self.wake_up),
            web.get("/is_sleeping", self.is_sleeping, allow_head=False),
            web.post("/pause", self.pause),
            web.post("/resume", self.resume),
            web.get("/is_paused", self.is_paused, allow_head=False),
            web.post("/abort_requests", self.abort_requests),
        ]

    def _engine(self) -> EngineProcess:
        engine = self._current()
        if not engine.config.has_dev_mode:
            raise web.HTTPNotFound
        return engine

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        done = self._engine().reset_prefix_cache(reset_running_requests=_flag(request, "reset_running_requests"))
        return respond({"success": done})

    async def sleep(self, request: web.Request) -> web.Response:
        level = request.query.get("level", "1")
        if level not in {"0", "1", "2"}:
            raise Refused("1 validation error:\n  level is 0, 1 or 2", param="query.level", kind="Bad Request")
        self._engine().sleep(int(level))
        return respond({"status": "sleeping", "level": int(level)})

    async def wake_up(self, request: web.Request) -> web.Response:
        self._engine().resume()
        return respond({"status": "awake", "tags": request.query.getall("tags", None)})

    async def is_sleeping(self, request: web.Request) -> web.Response:
        return respond({"is_sleeping": self._engine().is_sleeping})

    async def pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in {"abort", "wait", "keep"}:
            raise Refused("1 validation error:\n  mode is abort, wait or keep", param="query.mode", kind="Bad Request")
        await self._engine().pause(mode, clear=_flag(request, "clear_cache", default=True))
        return respond({"status": "paused"})

    async def resume(self, request: web.Request) -> web.Response:
        self._engine().resume()
        return respond({"status": "resumed"})

    async def is_paused(self, request: web.Request) -> web.Response:
        return respond({"is_paused": self._engine().is_paused})

    async def abort_requests(self, request: web.Request) -> web.Response:
        engine = self._engine()
        body = msgspec.json.decode(await request.read() or b"{}")
        names = body.get("request_ids") if isinstance(body, dict) else None
        if names:
            engine.abort_external(names)
            return respond({"status": "aborted", "aborted": len(names)})
        return respond({"status": "aborted", "aborted": engine.abort_all()})


def _flag(request: web.Request, name: str, *, default: bool = False) -> bool:
    text = request.query.get(name)
    return default if text is None else text.lower() in {"1", "true", "yes", "on"}
