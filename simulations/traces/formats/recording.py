"""What ``kvlb record`` has written: times, lengths and hidden block ids, one JSON object a line.

Knows ``balancer.recording.Line``. A trace has blocks of one size, that of its first request; ids of requests whose engines had
other blocks are left out, and so nothing is known of what those have in common with others.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any, Final

import msgspec

from balancer.recording import VERSION
from balancer.words import counted
from simulations.traces.formats.base import Desk, formats, message_of
from simulations.traces.formats.ids import decoded, ids_of, name_of, number, whole
from simulations.traces.times import Clock
from simulations.traces.trace import TraceBuilder, TraceError

DEFAULT_BLOCK_SIZE: Final = 64


@formats.register("recording")
class Recording(msgspec.Struct, frozen=True):
    def recognises(self, first: bytes, fields: Mapping[str, Any] | None) -> bool:
        return fields is not None and "kvlb_recording" in fields

    def read(self, desk: Desk) -> TraceBuilder:
        clock = Clock(desk.options.time_unit or "s")
        builder: TraceBuilder | None = None
        unanswered = lost = others = cut = 0
        size = 0
        unknown = count(-1, -1)  # no id of ours is below 0
        models = set()
        for line_number, line in desk.records():
            try:
                told = decoded(line)
                if told.get("kvlb_recording") != VERSION:
                    raise TraceError("kvlb_recording", f"must be {VERSION}: another kvlb has written this, or nobody")
                if "lost" in told:
                    lost += whole(told["lost"], "lost")
                    continue
                block_size = whole(told.get("block_size"), "block_size")
                ids = ids_of(told.get("hash_ids"))
                if builder is None:
                    size = desk.options.block_size or block_size
                    builder = desk.builder(size, is_chained=True)
                length = whole(told.get("input_length"), "input_length")
                if block_size != size:
                    others += bool(ids)
                    ids = []
                if ids and len(ids) < length // size:  # behind what the gateway knew the tokens of
                    cut += 1
                    ids += [next(unknown) for _ in range(length // size - len(ids))]
                answer = number(told.get("output_length"), "output_length")
                builder.add(
                    clock.seconds(told.get("timestamp", "")),
                    length,
                    1 if answer is None else whole(answer, "output_length"),
                    ids,
                )
                unanswered += answer is None
                models.add(name_of(told.get("model"), "model"))
            except TraceError as error:
                desk.skip(line_number, error.field, message_of(error))
        if unanswered:
            desk.note(
                f"{counted(unanswered, 'request')} did not say how long the answer was; one token is taken for each"
            )
        if lost:
            desk.note(f"{counted(lost, 'request')} came too fast to be recorded, and are missing")
        if others:
            desk.note(f"{counted(others, 'request')} went to engines with other blocks; what they share is not known")
        if cut:
            desk.note(f"of {counted(cut, 'prompt')} only the beginning was known; the rest is taken for nobody else's")
        if len(models) > 1:
            desk.note(f"{len(models)} models are in it; they share nothing")
        return builder or desk.builder(DEFAULT_BLOCK_SIZE, is_chained=True)
