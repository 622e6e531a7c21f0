"""The control plane: every path that is answered by kvlb itself, and the refusal of those that nobody answers.

Knows the paths that are served here. Never sees a request for inference: those go by ``gateway.front``.
"""

import logging
import time
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import web

from balancer.errors import NoReplica, RequestError, UnknownModel, UnknownPath
from balancer.gateway import audit, debug, index_api, load, recording, replicas, snapshot
from balancer.gateway.access import Access
from balancer.gateway.refusals import error_response
from balancer.http.parsing import MAX_HEAD_BYTES
from balancer.knowledge import View
from balancer.metrics import Metrics
from balancer.service import RouterService

log = logging.getLogger(__name__)


def build_app(service: RouterService, metrics: Metrics, access: Access) -> web.Application:
    """The application round a service that has been, or will be, started by the caller.

    Whether somebody may ask for a path has been judged before (``gateway.front``).
    """
    control = _Control(service, metrics, access)
    app = web.Application(client_max_size=service.settings.server.max_body_bytes, middlewares=[_translate_errors])
    app.router.add_get("/health", control.health)
    app.router.add_get("/ping", control.health)
    app.router.add_get("/ready", control.ready)
    app.router.add_get("/metrics", control.metrics)
    app.router.add_get("/v1/models", control.models)
    app.router.add_get("/v1/models/{model:.+}", control.model)
    app.router.add_get("/kvlb/status", control.status)
    debug.add_routes(app, service, access)
    recording.add_routes(app, service)
    audit.add_routes(app, service)
    snapshot.add_routes(app, service.warm)
    load.add_routes(app, service.siblings.exchange)
    index_api.add_routes(app, service)
    replicas.add_routes(app, service)
    return app


def control_runner(service: RouterService, metrics: Metrics, access: Access) -> web.AppRunner:
    """What serves the application, for ``gateway.front`` alone."""
    return web.AppRunner(
        build_app(service, metrics, access),
        handler_cancellation=True,
        auto_decompress=False,  # gateway.body does it, within the limit and with an answer for what it cannot read
        shutdown_timeout=10,
        access_log=None,
        max_line_size=MAX_HEAD_BYTES,  # what the front lets through, it has measured
        max_field_size=MAX_HEAD_BYTES,
    )


@web.middleware
async def _translate_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Errors of ours and of the framework, in the one shape that clients know."""
    try:
        response: web.StreamResponse = await handler(request)
    except RequestError as error:
        return error_response(error)
    except web.HTTPNotFound:
        return error_response(
            UnknownPath(f"there is no {request.path} here; the paths that are forwarded are listed in docs/api.md")
        )
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        refused = error_response(UnknownPath(f"{request.method} {request.path} is not served; use {allowed}"))
        refused.set_status(405)
        refused.headers["Allow"] = allowed
        return refused
    except web.HTTPException:
        raise
    except Exception:
        if request.writer.output_size:  # the answer has begun: all that is left is to break it off
            raise
        log.exception("%s %r failed", request.method, request.path)
        return error_response(RequestError("kvlb itself has failed; its log says where"))
    return response


def _knowledge(view: View, now: float) -> dict[str, Any]:
    return {"state": view.state, "reason": view.reason, "for_seconds": now - view.since}


class _Control:
    """The paths that are answered here."""

    def __init__(self, service: RouterService, metrics: Metrics, access: Access) -> None:
        self._service = service
        self._metrics = metrics
        self._begun = time.monotonic()
        self._access = access

    async def health(self, request: web.Request) -> web.Response:
        """Alive: the loop turns."""
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        """Whether a request would find a replica."""
        if self._service.is_draining:
            return error_response(NoReplica("kvlb is shutting down", retry_after=2))
        if not self._service.is_ready:
            told = (
                f": {self._service.problems()}" if self._access.keys is None else ""
            )  # addresses are not for everybody then
            return error_response(NoReplica(f"no replica can be used{told}", retry_after=2))
        return web.json_response({"status": "ready"})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.page(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self._models(request)})

    async def model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        found = next((entry for entry in self._models(request) if entry["id"] == name), None)
        if found is None:
            raise UnknownModel(f"the model '{name}' is not served here", param="model")
        return web.json_response(found)

    def _models(self, request: web.Request) -> list[dict[str, object]]:
        """Those that the sender may use."""
        if self._access.is_open(request.path):
            return self._service.models()
        caller = self._access.caller(request.raw_headers)
        return [entry for entry in self._service.models() if caller.may_use(str(entry["id"]))]

    async def status(self, request: web.Request) -> web.Response:
        """What is known of each endpoint and replica, for people and for tests."""
        router = self._service.router
        publishers = self._service.publishers()
        now, monotonic = time.time(), time.monotonic()
        found = [
            {
                "replica": live.replica.id,
                "endpoint": live.replica.endpoint,
                "status": router.status(live),
                "signs": self._service.signs(live),
                "models": live.replica.models,
                "role": live.replica.role,
                "kv_connectors": live.replica.connectors,
                "recipe": router.caches.recognitions[live.replica.id].recipe,
                "in_flight": live.in_flight,
                "queued_tokens": live.queued_tokens,
                "others_in_flight": live.others.requests(live.in_flight),
                "others_queued_tokens": live.others.queued(live.queued_tokens),
                "blocks": router.caches.index.gpu.blocks(live.replica.id),
                "copies": router.caches.index.gpu.copies(live.replica.id),
                "knowledge": _knowledge(router.caches.view(live.replica.id, monotonic), monotonic),
                "losses": router.caches.losses[live.replica.id],
                "events": publishers.get(live.replica.id),
                "predictions": router.caches.audit.counts(live.replica.id),
            }
            for live in router.fleet
        ]
        body = {
            "kvlb": version("kvlb"),
            "time": now,
            "uptime_seconds": time.monotonic() - self._begun,
            "policy": router.policy_name,
            "ab": None if (second := router.arms.second) is None else {"policy": second.name, "share": second.share},
            "shadow": None if router.shadow is None else router.shadow.arm.name,
            "open_leases": router.fleet.open_leases,
            "endpoints": {url: watcher.problem or "ok" for url, watcher in self._service.watchers.items()},
            "discovery": {
                "name": self._service.settings.discovery.name,
                "problem": self._service.follower.problem,
                "found": self._service.follower.reason,
                "unused": self._service.follower.unused,
                "lives": self._service.follower.lives,
            },
            "snapshot": self._service.warm.told(),
            "siblings": {"problem": self._service.siblings.problem, "addresses": self._service.siblings.told()},
            "processes": {"brain": self._service.census.brain, "gateways": self._service.census.gateways},
            "stores": self._service.stores.status(),
            "replicas": found,
        }
        text = msgspec.json.format(msgspec.json.encode(_rounded(msgspec.to_builtins(body))))
        return web.Response(body=text, content_type="application/json")


def _rounded(value: Any) -> Any:
    """The same with three digits after the point, which is all that people read."""
    match value:
        case float():
            return round(value, 3)
        case dict():
            return {name: _rounded(each) for name, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
    return value
