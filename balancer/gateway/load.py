"""``GET /kvlb/load``: what this gateway has under way, for its siblings.

Knows the question's form. What is told, and what is made of it, is ``balancer.siblings``' to say.
"""

import time

from aiohttp import web

from balancer.errors import BadRequest
from balancer.siblings.exchange import Exchange
from balancer.siblings.report import PATH, After, encode


def add_routes(app: web.Application, exchange: Exchange) -> None:
    async def load(request: web.Request) -> web.Response:
        after = request.query.get("after", "0")
        if not (after.isascii() and after.isdecimal() and len(after) < 19):
            raise BadRequest(
                "after: expected the mark of an earlier report, a number; leave it out at first", param="after"
            )
        report = exchange.report(time.monotonic(), After(request.query.get("gateway", ""), int(after)))
        return web.Response(body=encode(report), content_type="application/json")

    app.router.add_get(PATH, load, allow_head=False)
