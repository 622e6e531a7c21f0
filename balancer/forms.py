"""multipart/form-data (RFC 7578) -> the values of its small parts.

Knows the grammar, and refuses whatever two readers could take for different things: what is checked here has to be what the
engine reads afterwards. Never looks into files, and goes forward only, so that no form takes longer than its length.
"""

import re
from collections.abc import Iterator
from typing import Final

from balancer.errors import BadRequest

MAX_PARTS: Final = 64
"""Parts of one form; vLLM's have some twenty fields."""

MAX_PART_HEAD: Final = 4096
"""Longest headers of a part, in bytes."""

MAX_VALUE: Final = 4096
"""Longest value that is read, in bytes; longer ones are known by their name alone."""

_BOUNDARY: Final = re.compile(r';\s*boundary=(?:"([^"\\]+)"|([^\s;",\\]+))\s*(?:;|$)', re.IGNORECASE)
_CHARSET: Final = re.compile(r';\s*charset\s*=\s*"?utf-?8"?\s*(?:;|$)', re.IGNORECASE)
_PARAMETER: Final = re.compile(rb';[ \t]*([A-Za-z*0-9_-]+)=("[^"\\]*"|[^\s";,\\]+)[ \t]*')


def is_form(content_type: str) -> bool:
    return content_type.lstrip().lower().startswith("multipart/")


def read(content_type: str, body: bytes) -> dict[str, bytes | None]:
    """The parts by name; None for a value that is longer than ``MAX_VALUE``. Of several with one name the last one counts.

    Raises:
        BadRequest: it is no form, or one that can be read in several ways.
    """
    values: dict[str, bytes | None] = {}
    for head, start, end in _parts(body, _boundary(content_type)):
        name = _name(head)
        if name is not None:
            values[name] = body[start:end] if end - start <= MAX_VALUE else None
    return values


def _boundary(content_type: str) -> bytes:
    lowered = content_type.lower()
    found = _BOUNDARY.search(content_type)
    if found is None or lowered.count("boundary") > 1:
        raise _refused("its Content-Type must name one boundary")
    if "charset" in lowered and (lowered.count("charset") > 1 or not _CHARSET.search(content_type)):
        raise _refused("names and values are read as UTF-8; leave charset out of its Content-Type")
    return b"--" + (found[1] or found[2]).encode(errors="surrogateescape")


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The headers, the start and the end of each part."""
    at = 0 if body.startswith(boundary) else body.find(b"\r\n" + boundary) + 2
    for _ in range(MAX_PARTS):
        at += len(boundary)
        if body[at : at + 2] == b"--":
            return
        start = body.find(b"\r\n\r\n", at, at + MAX_PART_HEAD) + 4
        end = body.find(b"\r\n" + boundary, max(at, start - 2))
        # A boundary right behind the blank line is one for some readers, and the part's value for others.
        if body[at : at + 2] != b"\r\n" or start < 4 or end < start:
            raise _refused("a part has no end, no blank line after its headers, or something behind its boundary")
        yield body[at + 2 : start - 4], start, end
        at = end + 2
    raise _refused(f"it has more than {MAX_PARTS} parts")


def _name(head: bytes) -> str | None:
    """The name in the part's Content-Disposition; None without one, which no engine takes."""
    lines = head.split(b"\r\n") if head else []
    if any(not re.fullmatch(rb"[A-Za-z-]+:[^\r\n\0]*", line) for line in lines):
        raise _refused("a part has a header that is none")
    told = [line.partition(b":")[2].strip() for line in lines if line.lower().startswith(b"content-disposition:")]
    if not told:
        return None
    kind, parameters = re.match(rb"([a-z-]*)[ \t]*", told[0]), []
    at = kind.end() if kind else 0
    while found := _PARAMETER.match(told[0], at):
        parameters.append((found[1], found[2].strip(b'"')))
        at = found.end()
    names = [value for key, value in parameters if key.lower().rstrip(b"*0123456789") == b"name"]
    if len(told) > 1 or at < len(told[0]) or len(names) > 1 or (names and (b"name", names[0]) not in parameters):
        raise _refused('write the names of its parts as Content-Disposition: form-data; name="..."')
    return names[0].decode(errors="replace") if names else None


def _refused(why: str) -> BadRequest:
    return BadRequest(f"the body is not a form that can be read in one way only: {why}")
