"""``GET /kvlb/snapshot``: the index for another gateway.

Knows how a stream of bytes is given over HTTP, and for how long a slow reader is waited for. Never knows what is in it.
"""

import asyncio
import contextlib
import logging
from typing import Final

from aiohttp import web

from balancer.errors import Conflict, NoReplica
from balancer.warm import ASKER, CONTENT_TYPE, PATH, WarmStart

log = logging.getLogger(__name__)

GIVE_SECONDS: Final = 60.0
"""Whoever reads slower keeps others waiting, and a copy of the index in memory."""


def add_routes(app: web.Application, warm: WarmStart) -> None:
    async def snapshot(request: web.Request) -> web.StreamResponse:
        if request.headers.get(ASKER) == warm.name:
            raise Conflict("this is the gateway that asks; name another one with --sibling")
        if not warm.is_loaded:
            raise NoReplica("kvlb is taking over an index itself; try again", retry_after=5)
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        await response.prepare(request)
        try:
            async with asyncio.timeout(GIVE_SECONDS), contextlib.aclosing(warm.pieces()) as pieces:
                async for piece in pieces:
                    await response.write(piece)
        except TimeoutError:
            log.warning("a snapshot was not taken within %.0f s by who asked for it", GIVE_SECONDS)
            if request.transport is not None:  # an end without its end: nobody takes that for a whole one
                request.transport.abort()
        else:
            await response.write_eof()
        return response

    app.router.add_get(PATH, snapshot, allow_head=False)
