"""A request's body: read within the limit, and unpacked.

Knows the limit, the encodings that are unpacked and the errors of a body that ends too early. Never looks into what it holds.
Memory is bounded by the limit, whatever a small packed body claims to be.
"""

import asyncio
import zlib
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from balancer.errors import BadRequest, BodyTooLarge, UnknownEncoding

_SMALL: Final = 64 * 1024
"""Packed bodies up to here are unpacked at once, longer ones in a thread: a 64 MiB body takes a fifth of a second."""

_AUTO: Final = zlib.MAX_WBITS | 32  # gzip or zlib, by their first bytes
_RAW: Final = -zlib.MAX_WBITS


async def read(request: web.Request, limit: int) -> bytes:
    """The body, unpacked, of at most ``limit`` bytes before and after.

    Raises:
        BodyTooLarge: it is longer; the rest has not been read.
        UnknownEncoding: it is packed in a way that is not known here.
        BadRequest: it ends too early, or is not packed as it says.
    """
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
        raise UnknownEncoding(f"Content-Encoding: '{encoding}' is not read here; send gzip, deflate or none")
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(limit) from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise BadRequest("the body cannot be read: it is cut short, or not framed as its headers say") from error
    if encoding in {"", "identity"}:
        return body
    if len(body) <= _SMALL:
        return unpack(body, limit)
    return await asyncio.to_thread(unpack, body, limit)


def unpack(body: bytes, limit: int) -> bytes:
    """What a gzip, zlib or raw deflate body holds; several gzip members are one body.

    Raises:
        BodyTooLarge: that is more than ``limit`` bytes; no more than these were unpacked.
        BadRequest: it is cut short, or in none of these formats.
    """
    unpacked = b""
    wbits = _AUTO if body[:1] == b"\x1f" or (body and body[0] & 0x0F == 8) else _RAW
    while True:
        inflate = zlib.decompressobj(wbits)
        try:
            unpacked += inflate.decompress(body, limit + 1 - len(unpacked))
        except zlib.error as error:
            raise BadRequest("the body is not packed as its Content-Encoding says") from error
        if len(unpacked) > limit:
            raise _too_large(limit)
        if not inflate.eof:
            raise BadRequest("the packed body is cut short")
        if not inflate.unused_data:
            return unpacked
        body = inflate.unused_data


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {limit:,} bytes; the limit is server.max_body_bytes")
