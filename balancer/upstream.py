"""Connections to the replicas: one pool for requests, questions and probes.

Knows aiohttp's client, its limits and its quirks. Never knows which replica is meant or why. Nothing is queued here: as many
connections are open as there are requests under way.
"""

import io
import ssl
from typing import Final

import aiohttp

from balancer.timeouts import TimeoutSettings

KEEPALIVE_SECONDS: Final = 4.0
"""Less than the 5 s after which vLLM (0.32, ``VLLM_HTTP_TIMEOUT_KEEP_ALIVE``) closes an idle connection: a request that is sent
into a closing one fails."""

MAX_ANSWER: Final = 64 * 1024 * 1024
"""Longest answer in bytes to a question of our own. A million token ids are seven of these 64 MiB."""

_LARGE: Final = 1 << 20


def open_session(settings: TimeoutSettings, tls: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """A client that adds no header of its own, follows nothing and decodes nothing. Call it in the running loop."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=10, keepalive_timeout=KEEPALIVE_SECONDS, ssl=tls or True),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=settings.connect_seconds, sock_read=settings.first_byte_seconds
        ),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    )


def payload(body: bytes) -> bytes | io.BytesIO:
    """The body as aiohttp sends it without holding up the loop (it warns of more than 1 MiB in one piece)."""
    return body if len(body) <= _LARGE else io.BytesIO(body)


async def whole(response: aiohttp.ClientResponse) -> bytes:
    """The answer's body.

    Raises:
        ClientPayloadError: it is longer than ``MAX_ANSWER``; the connection is closed.
    """
    pieces = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > MAX_ANSWER:
            response.close()
            raise aiohttp.ClientPayloadError(f"its answer is longer than {MAX_ANSWER >> 20} MiB")
        pieces.append(piece)
    return b"".join(pieces)
