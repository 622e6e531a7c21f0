"""Lines with lengths and block ids, whoever calls their fields what.

Knows how such a line is decoded: fast where it is as it should be, and by hand where it is not, so that what is wrong can be
said. Never knows a file.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from xxhash import xxh3_64_intdigest

from simulations.traces.times import kind_of
from simulations.traces.trace import TraceError

_FIELDS: Final[Sequence[Any]] = (
    ("timestamp", int | float | None, None),
    ("input_length", int),
    ("output_length", int, 0),
    ("hash_ids", list[int], msgspec.field(default_factory=list)),
    ("session_id", int | str | None, None),
    ("delay", int | float | None, None),
    ("chat_id", int | str | None, None),
    ("parent_chat_id", int | str | None, None),
)


class Row(msgspec.Struct, gc=False):
    """One request as a line has it, in the line's own units."""

    timestamp: int | float | str | None
    input_length: int
    output_length: int
    hash_ids: Sequence[int]
    session_id: int | str | None = None
    delay: float | None = None
    chat_id: int | str | None = None
    parent_chat_id: int | str | None = None


class RowDecoder:
    """Makes rows of lines; ``columns`` has other names for fields."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns
        row: Any = msgspec.defstruct("Line", _FIELDS, gc=False, kw_only=True, rename=dict(columns) or None)
        self._decode = msgspec.json.Decoder(row).decode

    def row(self, line: bytes) -> Row:
        """The request of this line.

        Raises:
            TraceError: it is none.
        """
        try:
            row: Row = self._decode(line)
            return row
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return self._by_hand(line)

    def _by_hand(self, line: bytes) -> Row:
        told = decoded(line)
        columns = self._columns

        def field(name: str) -> Any:
            return told.get(columns.get(name, name))

        return Row(
            field("timestamp"),
            whole(field("input_length"), "input_length"),
            whole(field("output_length") or 0, "output_length"),
            ids_of(field("hash_ids")),
            name_of(field("session_id"), "session_id"),
            number(field("delay"), "delay"),
            name_of(field("chat_id"), "chat_id"),
            name_of(field("parent_chat_id"), "parent_chat_id"),
        )


def decoded(line: bytes) -> dict[str, Any]:
    """The JSON object of a line, NaN and all.

    Raises:
        TraceError: it is none; what stands there is not repeated.
    """
    try:
        told = json.loads(line)
    except UnicodeDecodeError as error:
        raise TraceError("", f"is no UTF-8 at byte {error.start}; write it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise TraceError("", f"is no JSON: {error.msg} at character {error.pos}; write one object a line") from None
    except RecursionError:
        raise TraceError("", "is nested too deep; write one flat object a line") from None
    except ValueError:
        raise TraceError("", "has a number of too many digits") from None
    if not isinstance(told, dict):
        raise TraceError("", f"is {kind_of(told)}; write one JSON object a line")
    return told


def whole(value: object, field: str) -> int:
    """A number of tokens.

    Raises:
        TraceError: it is none.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().isdigit() and len(value) < 20:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TraceError(
            field,
            "is missing; it must be a number of tokens"
            if value is None
            else f"must be a whole number, got {kind_of(value)}",
        )
    return value


def number(value: object, field: str) -> float | None:
    """A number, or nothing.

    Raises:
        TraceError: something else.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TraceError(field, f"must be a number, got {kind_of(value)}")
    return value


def name_of(value: object, field: str) -> int | str | None:
    """A number or text that names something, or nothing.

    Raises:
        TraceError: something else.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
        raise TraceError(field, f"must be a number or a text, got {kind_of(value)}")
    return value


def ids_of(value: object) -> list[int]:
    """Block ids; texts are hashed.

    Raises:
        TraceError: something else.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise TraceError("hash_ids", f"must be a list of block ids, got {kind_of(value)}")
    ids = []
    for each in value:
        if isinstance(each, str):
            ids.append(xxh3_64_intdigest(each.encode(errors="surrogatepass")))
        elif isinstance(each, int) and not isinstance(each, bool):
            ids.append(each)
        else:
            raise TraceError("hash_ids", f"must hold whole numbers or texts, got {kind_of(each)}")
    return ids
