"""Takes fields out of a client's body, and puts others in.

Knows JSON and nothing of what the fields mean. All other values keep their bytes, unknown fields and long numbers included; of
a key that is there twice the last one counts, as it does for the engine.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from balancer.errors import BadRequest

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def without(body: bytes, places: Collection[Sequence[str]]) -> bytes:
    """The object without the fields at these paths; the very same bytes where there are none.

    Raises:
        BadRequest: as ``members``.
    """
    fields = members(body)
    is_changed = False
    for name, *rest in places:
        raw = fields.get(name)
        if raw is None:
            continue
        if not rest:
            del fields[name]
            is_changed = True
        elif (inner := without(bytes(raw), [rest])) != bytes(raw):
            fields[name] = msgspec.Raw(inner)
            is_changed = True
    return msgspec.json.encode(fields) if is_changed else body


def with_field(body: bytes, name: str, value: str | int | Mapping[str, Any]) -> bytes:
    """The JSON object ``body`` with this as its last field."""
    head = body.rstrip(b" \t\r\n")[:-1]
    comma = b"" if head.rstrip(b" \t\r\n").endswith(b"{") else b","
    return b'%b%b"%b":%b}' % (head, comma, name.encode(), msgspec.json.encode(value))


def members(data: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object; of what is none, none.

    Raises:
        BadRequest: it is no UTF-8. Engines may read it (Python's decoder takes surrogates), and see what is not seen here.
    """
    try:
        return _object.decode(data)
    except msgspec.ValidationError:
        return {}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from error
