"""Mooncake's traces, and what others have made of the format: times, lengths and block ids, one JSON object a line.

Knows ``timestamp``, ``input_length``, ``output_length`` and ``hash_ids``, and for conversations ``session_id`` and ``delay``
(from the answer before to this request, in the unit of times). Ids are of 512 tokens and name whole prefixes, times are in
milliseconds, unless the options say otherwise. vLLM's ``timed_trace`` is this format with 16 tokens, seconds, and ids that
name what is in one block.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from simulations.traces.formats.base import Desk, formats, message_of
from simulations.traces.formats.ids import RowDecoder
from simulations.traces.times import UNITS, Clock
from simulations.traces.trace import TraceBuilder, TraceError

BLOCK_SIZE: Final = 512

SUSPICIOUS_RATE: Final = 1_000.0
"""Requests a second; a trace has more only if its times are in another unit."""


@formats.register("mooncake")
class Mooncake(msgspec.Struct, frozen=True):
    def recognises(self, first: bytes, fields: Mapping[str, Any] | None) -> bool:
        return fields is not None and "input_length" in fields and not fields.keys() & {"chat_id", "kvlb_recording"}

    def read(self, desk: Desk) -> TraceBuilder:
        options = desk.options
        unit = options.time_unit or "ms"
        clock, scale = Clock(unit), UNITS[unit]
        builder = desk.builder(BLOCK_SIZE, is_chained=True)
        lasts: dict[int | str, float] = {}  # arrivals, where only a session's first turn has one
        row_of, add, seconds = RowDecoder(options.columns).row, builder.add, clock.seconds
        for number, line in desk.records():
            try:
                row = row_of(line)
                session, pause = row.session_id, row.delay
                if pause is not None:
                    pause *= scale
                if row.timestamp is not None:
                    arrival = seconds(row.timestamp)
                elif session is not None and pause is not None and session in lasts:
                    arrival = lasts[session] + pause
                else:
                    raise TraceError(
                        "timestamp", "is missing; a request needs one, or session_id and delay behind one that has"
                    )
                if session is not None:
                    lasts[session] = arrival
                add(arrival, row.input_length, row.output_length, row.hash_ids, session=session, pause=pause)
            except TraceError as error:
                desk.skip(number, options.column(error.field), message_of(error))
        if options.time_unit is None:
            desk.note(f"times are taken for milliseconds{_doubt(builder)}")
        if options.block_size is None:
            desk.note(f"an id is taken for {BLOCK_SIZE} tokens")
        return builder


def _doubt(builder: TraceBuilder) -> str:
    """What speaks against it."""
    if len(builder) < 100 or builder.seconds == 0 or len(builder) / builder.seconds < SUSPICIOUS_RATE:
        return ""
    return f", though that makes {len(builder) / builder.seconds:,.0f} requests a second; --time-unit s if they are seconds"
