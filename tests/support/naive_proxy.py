"""The proxy that anybody writes first: aiohttp, replicas in turns, the whole body read, the answer passed on piece by piece.

Knows nothing of caches, load or failures. ``python -m tests.support.naive_proxy PORT URL ...`` to hold kvlb's cost against it.
"""

import asyncio
import itertools
import sys
from collections.abc import Sequence
from typing import Final

import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

HOP_BY_HOP: Final = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


def application(urls: Sequence[str]) -> web.Application:
    turns = itertools.cycle(urls)

    async def forward(request: web.Request) -> web.StreamResponse:
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP]
        url, body = next(turns) + request.path_qs, await request.read()
        async with request.app[SESSION].request(request.method, url, headers=headers, data=body) as found:
            kept = [(name, value) for name, value in found.headers.items() if name.lower() not in HOP_BY_HOP]
            answer = web.StreamResponse(status=found.status, headers=dict(kept))
            if found.content_length is not None:
                answer.content_length = found.content_length
            await answer.prepare(request)
            async for piece in found.content.iter_any():
                await answer.write(piece)
            await answer.write_eof()
            return answer

    async def session(app: web.Application):  # type: ignore[no-untyped-def]
        async with ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(None)) as app[SESSION]:
            yield

    app = web.Application(client_max_size=2**30)
    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{path:.*}", forward)
    return app


SESSION: Final = web.AppKey("session", ClientSession)

if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    web.run_app(application(sys.argv[2:]), host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
