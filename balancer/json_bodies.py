"""JSON bodies of kvlb's own paths -> values, or one sentence about the field that is wrong.

Knows msgspec's messages and turns them round. Never knows what the fields mean.
"""

import re
from typing import TypeVar

import msgspec

from balancer.errors import BadRequest

T = TypeVar("T")


def decode(decoder: "msgspec.json.Decoder[T]", body: bytes, document: str) -> T:
    """The body, as the decoder's type; ``document`` says where the fields are explained.

    Raises:
        BadRequest: it cannot be read; the message names the field.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _refused(str(error), document) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}; {document} has examples") from error


def _refused(message: str, document: str) -> BadRequest:
    what, _, where = message.partition(" - at `$")
    field = where.rstrip("`").lstrip(".")
    missing = re.search(r"missing required field `(\w+)`", what)
    if missing:
        return BadRequest(f"{missing[1]}: missing; {document} says what it is", param=missing[1])
    wrong = f"{what[:1].lower()}{what[1:]}"
    if not field:
        return BadRequest(f"the body: {wrong}; it has to be a JSON object with the fields of {document}")
    return BadRequest(f"{field}: {wrong}; see {document}", param=re.split(r"[\[.]", field)[0])
