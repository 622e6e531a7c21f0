"""``GET /debug/audit``: how well the index has predicted, and where it did not.

Knows the audit's sums and its last differences. Never changes anything.
"""

import time
from typing import Any

import msgspec
from aiohttp import web

from balancer.audit import ERROR_BOUNDS, Tally
from balancer.gateway.queries import limit
from balancer.service import RouterService


def add_routes(app: web.Application, service: RouterService) -> None:
    """Serve the audit of this service's router."""

    async def audit(request: web.Request) -> web.Response:
        body = _audit(service, limit(request.query))
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    app.router.add_get("/debug/audit", audit)


def _audit(service: RouterService, at_most: int | None) -> dict[str, Any]:
    router = service.router
    differences = list(router.caches.audit.differences)
    if at_most is not None:
        differences = differences[max(0, len(differences) - at_most) :]
    epoch = time.time() - time.monotonic()
    return {
        "tallies": [
            {"replica": replica, "model": model, **_told(tally)}
            for (replica, model), tally in router.caches.audit.tallies.items()
        ],
        "corrections": router.caches.healer.corrections,
        "differences": [msgspec.structs.replace(each, time=epoch + each.time) for each in differences],
    }


def _told(tally: Tally) -> dict[str, Any]:
    told = {name: getattr(tally, name) for name in tally.__struct_fields__ if name not in {"errors", "recent"}}
    told["exact_share"] = tally.exact_share
    told["recent_exact_share"] = tally.recent_exact_share
    told["errors"] = dict(zip([*(f"<={bound}" for bound in ERROR_BOUNDS), "more"], tally.errors, strict=True))
    return told
