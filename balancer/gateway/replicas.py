"""Orders about replicas: take one out of use, and put it back.

Knows two paths under /kvlb/replicas. What drains ends the requests that it has; kvlb never ends them.
"""

import msgspec
from aiohttp import web

from balancer.errors import UnknownInstance
from balancer.fleet import Drain
from balancer.service import RouterService


def add_routes(app: web.Application, service: RouterService) -> None:
    """Make the paths known to ``app``."""

    async def order(request: web.Request) -> web.Response:
        name = request.match_info["replica"]
        why = Drain.ASKED if request.match_info["order"] == "drain" else None
        meant = service.drain(name, why)
        if not meant:
            known = ", ".join(live.replica.id for live in service.router.fleet) or "none yet"
            raise UnknownInstance(
                f"there is no replica {name[:200]!r}; give an id or a URL of these, with # and / percent-encoded: {known}"
            )
        told = {
            live.replica.id: {"status": service.router.status(live), "in_flight": live.in_flight}
            for live in service.router.fleet
            if live.replica.id in meant
        }
        return web.Response(body=msgspec.json.encode({"replicas": told}), content_type="application/json")

    app.router.add_post("/kvlb/replicas/{replica:.+}/{order:drain|undrain}", order)
