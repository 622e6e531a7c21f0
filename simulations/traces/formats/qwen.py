"""Usage traces of Qwen on Alibaba's Bailian: chats by ``chat_id`` and ``parent_chat_id``, one JSON object a line.

Knows that times are in seconds, and that ids are of 16 tokens and name what is in one block, whatever comes before it: they
are chained here, for a cache holds prefixes (matched as they are, hits are counted that no engine has). A chat whose parent is
-1, or is not in the file before it, begins a conversation.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from simulations.traces.formats.base import Desk, formats, message_of
from simulations.traces.formats.ids import RowDecoder
from simulations.traces.times import Clock
from simulations.traces.trace import TraceBuilder, TraceError

BLOCK_SIZE: Final = 16


@formats.register("qwen")
class Qwen(msgspec.Struct, frozen=True):
    def recognises(self, first: bytes, fields: Mapping[str, Any] | None) -> bool:
        return fields is not None and {"chat_id", "input_length"} <= fields.keys() and "kvlb_recording" not in fields

    def read(self, desk: Desk) -> TraceBuilder:
        options = desk.options
        clock = Clock(options.time_unit or "s")
        builder = desk.builder(BLOCK_SIZE, is_chained=False)
        sessions: dict[int | str, int] = {}
        decoder = RowDecoder(options.columns)
        for number, line in desk.records():
            try:
                row = decoder.row(line)
                if row.timestamp is None:
                    raise TraceError("timestamp", "is missing; it must be a number of seconds")
                session = sessions.get(row.parent_chat_id) if row.parent_chat_id is not None else None
                if session is None:
                    session = number
                builder.add(
                    clock.seconds(row.timestamp), row.input_length, row.output_length, row.hash_ids, session=session
                )
                if row.chat_id is not None:
                    sessions[row.chat_id] = session
            except TraceError as error:
                desk.skip(number, options.column(error.field), message_of(error))
        if not options.chained:
            desk.note("ids are taken for what is in one block, and are chained")
        if options.block_size is None:
            desk.note(f"an id is taken for {BLOCK_SIZE} tokens")
        return builder
