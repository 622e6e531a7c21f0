"""JSON bodies of kvlb's own paths -> values, or one sentence about the field that is wrong.

Knows msgspec's messages and turns them round. Never knows what the fields mean.
"""

import difflib
import re
from typing import Final, TypeVar

import msgspec

from balancer.errors import BadRequest

T = TypeVar("T")

MAX_LIST_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a list of token ids or hashes that is looked at: over a million tokens, more than any context, in some 0.2 s."""

MAX_SHOWN: Final = 40
"""Letters of an unknown field's name that are repeated."""


def decode(decoder: "msgspec.json.Decoder[T]", body: bytes, document: str) -> T:
    """The body, as the decoder's type; ``document`` says where the fields are explained.

    Raises:
        BadRequest: it cannot be read; the message names the field.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _refused(str(error), document, decoder.type) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}; {document} has examples") from error


def as_text(given: str | int | None) -> str | None:
    """A name that some clients write as a number; None for an empty one."""
    return None if given in {None, ""} else str(given)


def check_list(field: str, length: int) -> None:
    """Refuse a list whose reading would keep everybody else waiting; ``length`` in bytes.

    Raises:
        BadRequest: it is too long.
    """
    if length > MAX_LIST_BYTES:
        raise BadRequest(
            f"{field}: {length:,} bytes; at most {MAX_LIST_BYTES:,} are looked at, which no model's context reaches: "
            "ask for its beginning",
            param=field,
        )


def cut_list(body: bytes, field: bytes) -> tuple[bytes, bytes] | None:
    """The text of a long list of numbers, and the body with ``null`` in its place; None where that cannot be done.

    A JSON parser takes a nanosecond for each byte that it only skips, which is most of the cost of a prompt that was read
    before.
    """
    found = find_list(body, field)
    if found is None:
        return None
    begin, end = found
    return body[begin:end], b"%bnull%b" % (body[:begin], body[end:])


def find_list(body: bytes, field: bytes) -> tuple[int, int] | None:
    """Where the list of numbers of this field begins and ends, if there is one.

    What looks like the field's name can be nothing else, for a quote within a string has a backslash before it; where there are
    several, or where it stands deeper down, the body that is left without it says so when it is read. A list of numbers ends
    at the first bracket; of another list what is left is no JSON.
    """
    found = re.search(rb'"%b"[ \t\r\n]*:[ \t\r\n]*\[' % field, body)
    end = -1 if found is None else body.find(b"]", found.end())
    return None if found is None or end < 0 else (found.end() - 1, end + 1)


_WORDS: Final = {"str": "a text", "int": "a number", "bool": "true or false", "array": "a list", "object": "an object"}
"""msgspec's names of types, in words."""


def _in_words(kinds: str) -> str:
    """``int | str`` as a sentence has it."""
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds.split(" | "))


def _refused(message: str, document: str, kind: object) -> BadRequest:
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", message, re.DOTALL)
    if unknown and isinstance(kind, type) and issubclass(kind, msgspec.Struct):  # only whole bodies refuse fields
        return _unknown(unknown[1], kind.__struct_fields__, document)
    what, _, where = message.partition(" - at `$")
    field = where.rstrip("`").lstrip(".")
    missing = re.search(r"missing required field `(\w+)`", what)
    if missing:
        return BadRequest(f"{missing[1]}: missing; {document} says what it is", param=missing[1])
    wrong = re.sub(r"`([^`]*)`", lambda found: _in_words(found[1]), f"{what[:1].lower()}{what[1:]}")
    if not field:
        return BadRequest(f"the body: {wrong}; it has to be a JSON object with the fields of {document}")
    return BadRequest(f"{field}: {wrong}; see {document}", param=re.split(r"[\[.]", field)[0])


def _unknown(name: str, known: tuple[str, ...], document: str) -> BadRequest:
    near = difflib.get_close_matches(name[:MAX_SHOWN], known, 1)
    remedy = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
    return BadRequest(f"{shown(name)}: unknown field; {remedy} See {document}", param=shown(name))


def shown(name: str) -> str:
    """A field's name as it can be repeated to whoever has sent it."""
    return name if name.isprintable() and len(name) <= MAX_SHOWN else ascii(name[:MAX_SHOWN])
