"""``GET /debug/recording``: the requests of this gateway from now on, one line of JSON each, for as long as somebody reads.

Knows how lines are given over HTTP. Never knows what is in them (``balancer.recording``); the secret that hides what prompts
say lives as long as the answer.
"""

import asyncio
import secrets
from typing import Final

from aiohttp import web

from balancer.errors import BadRequest, Conflict
from balancer.recording import PATH, Recorder
from balancer.service import RouterService

CONTENT_TYPE: Final = "application/jsonl"

DEFAULT_BLOCK_SIZE: Final = 64
MAX_BLOCK_SIZE: Final = 1 << 16

WRITE_SECONDS: Final = 0.5
SIGN_SECONDS: Final = 5.0
"""Between two empty lines that say that all is well when there is nothing to tell."""

AT_MOST: Final = 4
"""Recordings at a time."""


def add_routes(app: web.Application, service: RouterService) -> None:
    """Make the path known to ``app``."""

    async def recording(request: web.Request) -> web.StreamResponse:
        block_size = _block_size(request.query.get("block_size", str(DEFAULT_BLOCK_SIZE)))
        if len(service.recorders) >= AT_MOST:
            raise Conflict(f"{AT_MOST} recordings are under way, which is as many as there may be; end one of them")
        recorder = Recorder(block_size, secrets.token_bytes(32))
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
        await response.prepare(request)
        service.recorders.append(recorder)
        try:
            await _write(response, recorder)
        finally:
            service.recorders.remove(recorder)
        return response

    async def close(app: web.Application) -> None:
        for recorder in service.recorders:
            recorder.is_closed = True

    app.router.add_get(PATH, recording, allow_head=False)
    app.on_shutdown.append(close)


async def _write(response: web.StreamResponse, recorder: Recorder) -> None:
    await response.write(b"\n")  # the head alone could wait for what follows
    quiet = 0.0
    while True:
        is_last = recorder.is_closed
        lines = await asyncio.to_thread(recorder.take)
        quiet = 0.0 if lines else quiet + WRITE_SECONDS
        if lines or quiet >= SIGN_SECONDS:
            await response.write(lines or b"\n")
            quiet = 0.0
        if is_last:
            return await response.write_eof()
        await asyncio.sleep(WRITE_SECONDS)


def _block_size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MAX_BLOCK_SIZE):
        raise BadRequest(
            f"block_size: {text[:20]!r} is not a number of tokens from 1 to {MAX_BLOCK_SIZE}", param="block_size"
        )
    return int(text)
