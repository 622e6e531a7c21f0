"""Prompts of one's own for ``vllm bench``: ``prompt`` and ``output_tokens``, one JSON object a line.

Knows these two, and ``timestamp`` where somebody has added one. Never keeps a text.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from simulations.traces.formats.base import Desk, formats, message_of
from simulations.traces.formats.ids import decoded, whole
from simulations.traces.formats.spoken import Scribe
from simulations.traces.times import Clock
from simulations.traces.trace import TraceBuilder, TraceError


@formats.register("prompts")
class Prompts(msgspec.Struct, frozen=True):
    def recognises(self, first: bytes, fields: Mapping[str, Any] | None) -> bool:
        return (
            fields is not None and "prompt" in fields and not fields.keys() & {"model", "messages", "body", "request"}
        )

    def read(self, desk: Desk) -> TraceBuilder:
        scribe, clock, options = Scribe(desk), Clock(desk.options.time_unit), desk.options
        output, timestamp = options.columns.get("output_length", "output_tokens"), options.column("timestamp")
        for number, line in desk.records():
            try:
                told = decoded(line)
                length, ids = scribe.prompt(told.get("prompt"))
                answer = told.get(output)
                scribe.unanswered += answer is None
                at = told.get(timestamp)
                arrival = scribe.next_arrival() if at is None else clock.seconds(at)
                scribe.builder.add(arrival, length, 1 if answer is None else whole(answer, output), ids)
            except TraceError as error:
                desk.skip(number, error.field, message_of(error))
        scribe.tell(desk)
        return scribe.builder
