"""A request's body: read within the limit, and unpacked.

Knows the limit, the encodings that are unpacked and the errors of a body that ends too early. Never looks into what it holds.
Memory and time are bounded by the limit, whatever a small packed body claims to be.
"""

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from balancer.errors import BadRequest, BodyTooLarge, UnknownEncoding

_SMALL: Final = 4 * 1024
"""Packed bodies up to here are unpacked at once, longer ones in a thread: 4 KiB can hold four megabytes, which take a few
milliseconds; 64 MiB take a fifth of a second."""

_SLICE: Final = 256 * 1024
"""Fed at a time: zlib copies what is left over after each member."""

MAX_MEMBERS: Final = 64
"""gzip members of one body. Tools write one; each costs a decompressor, however little it holds."""

_threads: Final = ThreadPoolExecutor(2, thread_name_prefix="unpack")
"""Threads of their own: packed bodies must not keep name look-ups waiting, which run in the event loop's."""

_AUTO: Final = zlib.MAX_WBITS | 32  # gzip or zlib, by their first bytes
_RAW: Final = -zlib.MAX_WBITS


async def read(request: web.Request, limit: int) -> bytes:
    """The body of a request to the control plane, unpacked, of at most ``limit`` bytes before and after.

    Raises:
        BodyTooLarge: it is longer; the rest has not been read.
        UnknownEncoding: it is packed in a way that is not known here.
        BadRequest: it ends too early, or is not packed as it says.
    """
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(limit) from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise BadRequest("the body cannot be read: it is cut short, or not framed as its headers say") from error
    return await unpacked(body, request.headers.get("Content-Encoding", ""), limit)


async def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """What a body holds that came with this ``Content-Encoding``.

    Raises:
        BodyTooLarge, UnknownEncoding, BadRequest: as ``read``.
    """
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return body
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise UnknownEncoding(f"Content-Encoding: {encoding[:40]!r} is not read here; send gzip, deflate or none")
    if len(body) <= _SMALL:
        return unpack(body, limit)
    return await asyncio.get_running_loop().run_in_executor(_threads, unpack, body, limit)


def unpack(body: bytes, limit: int) -> bytes:
    """What a gzip, zlib or raw deflate body holds; several gzip members are one body.

    Raises:
        BodyTooLarge: that is more than ``limit`` bytes; no more than these were unpacked.
        BadRequest: it is cut short, in none of these formats, or in more than ``MAX_MEMBERS`` members.
    """
    wbits = _AUTO if body[:1] == b"\x1f" or (body and body[0] & 0x0F == 8) else _RAW
    view = memoryview(body)
    pieces: list[bytes] = []
    room = limit
    for _ in range(MAX_MEMBERS):
        used, found = _member(view, wbits, room)
        pieces += found
        room -= sum(map(len, found))
        if room < 0:
            raise _too_large(limit)
        view = view[used:]
        if not view:
            return b"".join(pieces)
    raise BadRequest(f"the packed body has more than {MAX_MEMBERS} members")


def _member(view: memoryview, wbits: int, room: int) -> tuple[int, list[bytes]]:
    """(bytes used, what they hold) of the first member; ends early once that is more than ``room``."""
    inflate = zlib.decompressobj(wbits)
    used, pieces = 0, []
    while not inflate.eof and room >= 0:
        fed = view[used : used + _SLICE]
        if not fed:
            raise BadRequest("the packed body is cut short")
        try:
            piece = inflate.decompress(fed, room + 1)
        except zlib.error as error:
            raise BadRequest("the body is not packed as its Content-Encoding says") from error
        pieces.append(piece)
        room -= len(piece)
        used += len(fed) - len(inflate.unused_data)
    return used, pieces


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {limit:,} bytes; the limit is server.max_body_bytes")
