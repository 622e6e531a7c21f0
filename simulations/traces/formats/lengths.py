"""Tables of times and lengths: the Azure and BurstGPT traces, and any other CSV whose columns are known or named.

Knows columns. Nothing is known of what prompts share, so that no cache can be simulated for them, unless a column has ids.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from balancer.errors import ConfigError
from simulations.traces.formats.base import FIELDS, Desk, formats, message_of
from simulations.traces.formats.ids import ids_of, whole
from simulations.traces.times import UNITS, Clock
from simulations.traces.trace import TraceBuilder, TraceError

BLOCK_SIZE: Final = 512

KNOWN: Final[Mapping[str, Sequence[str]]] = {
    "timestamp": ("timestamp", "time", "arrival", "arrived_at", "arrival_time", "arrival_timestamp"),
    "input_length": (
        "contexttokens", "request_tokens", "input_length", "input_tokens", "prompt_tokens", "num_prefill_tokens", "input_len",
        "prompt_len",
    ),
    "output_length": (
        "generatedtokens", "response_tokens", "output_length", "output_tokens", "completion_tokens", "num_decode_tokens",
        "output_len",
    ),
    "hash_ids": ("hash_ids", "block_hash_ids", "block_ids"),
    "session_id": ("session_id", "conversation_id"),
    "delay": ("delay",),
}  # fmt: skip
"""Names of columns, in small letters and with _ for spaces, by what they hold. Azure, BurstGPT and Vidur are among them."""

_DELIMITERS: Final = (b",", b"\t", b";")
_MAX_JOINED: Final = 1_000
"""Lines of one quoted field."""


@formats.register("lengths")
class Lengths(msgspec.Struct, frozen=True):
    def recognises(self, first: bytes, fields: Mapping[str, Any] | None) -> bool:
        if fields is not None or not any(each in first for each in _DELIMITERS) or first.lstrip()[:1] in (b"[", b"{"):
            return False
        try:
            names = {_plain(name) for name in _cells(first, _delimiter(first))}
        except (TraceError, csv.Error):
            return False
        return any(name in names for name in KNOWN["input_length"]) and any(
            name in names for name in KNOWN["timestamp"]
        )

    def read(self, desk: Desk) -> TraceBuilder:
        options = desk.options
        rows = _rows(desk)
        number, header = next(rows, (1, []))
        places = _places(desk, header)
        clock = Clock(options.time_unit)
        builder = desk.builder(BLOCK_SIZE, is_chained=True)
        unanswered = 0
        for number, cells in rows:
            try:
                if len(cells) <= max(places.values()):
                    raise TraceError("", f"has {len(cells)} fields; the first line names {len(header)}")
                told = {field: cells[at].strip() for field, at in places.items()}
                outputs = whole(told["output_length"], "output_length") if told.get("output_length") else 0
                delay = _delay(told.get("delay"))
                builder.add(
                    clock.seconds(told["timestamp"]),
                    whole(_unfraction(told["input_length"]), "input_length"),
                    outputs,
                    _ids(told.get("hash_ids")),
                    session=told.get("session_id") or None,
                    pause=None if delay is None else delay * UNITS[clock.unit or "s"],
                )
                unanswered += outputs == 0
            except TraceError as error:
                field = error.field
                desk.skip(number, header[places[field]].strip() if field in places else field, message_of(error))
        if not clock.was_told and clock.unit is not None:
            desk.note(f"times are taken for {_NAMES[clock.unit]}; --time-unit says otherwise")
        if unanswered:
            desk.note(f"{unanswered:,} requests have no answer; one token is taken for each")
        if "hash_ids" not in places:
            desk.note("nothing is known of what prompts have in common, so no request finds anything cached")
        return builder


_NAMES: Final = {"s": "seconds, or are dates", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def _rows(desk: Desk) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row, with its first line's number."""
    delimiter = b","
    joined: list[bytes] = []
    begin = 0
    for number, line in desk.records():
        if not begin:
            delimiter = _delimiter(line)
        is_open = bool(joined) != bool(line.count(b'"') % 2)  # a quoted field goes on in the next line
        if not joined:
            begin = number
        joined.append(line)
        if is_open:
            if len(joined) == _MAX_JOINED:
                desk.skip(begin, "", f'has a " that is not closed within {_MAX_JOINED} lines')
                joined = []
            continue
        whole_line, joined = b"\n".join(joined), []
        try:
            yield begin, _cells(whole_line, delimiter)
        except (TraceError, csv.Error) as error:
            desk.skip(begin, "", str(error).removeprefix(": "))
    if joined:
        desk.skip(begin, "", 'has a " that is not closed')


def _cells(line: bytes, delimiter: bytes) -> list[str]:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise TraceError("", f"is no UTF-8 at byte {error.start}; write it as UTF-8") from None
    if '"' not in text:
        return text.split(delimiter.decode())
    return next(csv.reader([text], delimiter=delimiter.decode(), strict=False), [])


def _delimiter(line: bytes) -> bytes:
    return max(_DELIMITERS, key=line.count)


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _places(desk: Desk, header: Sequence[str]) -> dict[str, int]:
    """In which columns the fields are.

    Raises:
        ConfigError: one that must be there is not.
    """
    names = [_plain(name) for name in header]
    places = {}
    for field in FIELDS:
        own = desk.options.columns.get(field)
        wanted = KNOWN[field] if own is None else (_plain(own),)
        found = next((names.index(name) for name in wanted if name in names), None)
        if found is not None:
            places[field] = found
        elif own is not None or field in {"timestamp", "input_length"}:
            there = ", ".join([repr(name.strip()[:40]) for name in header[:30]])
            raise ConfigError(
                f"{desk.source.name}: no column for {field}; name it with --column {field}=NAME; there are: {there}"
            )
    return places


def _unfraction(text: str) -> str:
    return text.removesuffix(".0")


def _delay(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise TraceError("delay", "must be a number, got a text") from None


def _ids(text: str | None) -> list[int]:
    if not text:
        return []
    try:
        return ids_of(json.loads(text if text.startswith("[") else f"[{text.replace(' ', ',')}]"))
    except (ValueError, RecursionError):
        raise TraceError("hash_ids", "must be a list such as [1, 2, 3], got something else") from None
