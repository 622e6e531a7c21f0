"""Header fields as they stand on the wire: names and values in bytes, in their order, repeated or not.

Knows which of them concern one connection only (RFC 9110, section 7.6.1). Never knows what a field is for.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

Fields: TypeAlias = Sequence[tuple[bytes, bytes]]
"""(name, value) as they came."""

HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
"""Names in lower case."""


Named: TypeAlias = Mapping[bytes, bytes]
"""The first value of each name, in lower case."""


def named(fields: Fields) -> Named:
    """The fields by their names."""
    found: dict[bytes, bytes] = {}
    for name, value in fields:
        found.setdefault(name.lower(), value)
    return found


def end_to_end(fields: Fields, dropped: frozenset[bytes] = HOP_BY_HOP) -> list[tuple[bytes, bytes]]:
    """The fields that go on to the other side: none of ``dropped``, and none that ``Connection`` names."""
    kept = []
    named: set[bytes] = set()
    for field in fields:
        name = field[0].lower()
        if name == b"connection":
            named.update(each.strip() for each in field[1].lower().split(b","))
        if name not in dropped:
            kept.append(field)
    if named <= _PLAIN:
        return kept
    return [field for field in kept if field[0].lower() not in named]


_PLAIN: Final = frozenset({b"close", b"keep-alive", b""})


_AS_LINE: Final = b": ".join
"""Of name and value; a third of the time that formatting takes."""


def lines(fields: Fields) -> bytes:
    """The fields as lines of a head."""
    if not fields:
        return b""
    return b"\r\n".join(map(_AS_LINE, fields)) + b"\r\n"
