"""What a request names instead of sending it: media that an engine has cached, answers that it has stored.

Knows where vLLM 0.32 takes such names from a body. An engine asks nobody whose they are: a picture that one tenant has sent is
given to every other one that has its ``uuid``, or its hash in ``features``.
"""

import re
from typing import Final

import msgspec

from balancer.strip import members

FIELDS: Final = ("features", "previous_response_id", "previous_input_messages")
"""At the top of a body."""

WITHOUT_PARTS: Final = frozenset({"tools", "response_format", "structured_outputs", "chat_template_kwargs", "metadata"})
"""Fields with words of the client's own, which may well be called ``uuid``, and in which nothing is looked for."""

WITHOUT_MEDIA: Final = frozenset({"/v1/messages"})
"""Paths whose content has no ``uuid`` of media, and whose tools' arguments are no text."""

# A quote within a JSON text has a backslash before it, so where a bare one is followed by a colon a name has ended.
_NAME: Final = re.compile(rb'"((?:[uid]|\\u00[0-9a-fA-F]{2}){4})"\s*:')

_MARKS: Final = (b"uuid", b"\\u", *(name.encode() for name in FIELDS))
"""One of them is in every body with such a name: it is written plainly, or with escapes."""

_NULL: Final = msgspec.Raw(b"null")


def named(path: str, body: bytes) -> str | None:
    """The first field of a JSON object that names something at an engine; None where nothing does.

    Raises:
        BadRequest: as ``strip.members``.
    """
    if not any(mark in body for mark in _MARKS):
        return None
    fields = members(body)
    for name in FIELDS:
        if fields.get(name, _NULL) != _NULL:
            return name
    if path in WITHOUT_MEDIA:
        return None
    has_uuid = any(_has_uuid(bytes(raw)) for name, raw in fields.items() if name not in WITHOUT_PARTS)
    return "uuid" if has_uuid else None


def _has_uuid(data: bytes) -> bool:
    if b'"uuid"' not in data and b"\\u00" not in data:
        return False
    return any(msgspec.json.decode(b'"%s"' % found[1]) == "uuid" for found in _NAME.finditer(data))
