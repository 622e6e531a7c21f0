"""A trace's ids as the keys of an engine's blocks.

Knows ids, lengths and both block sizes. Never knows hashes: a key is an id and a place within its block.
Equal prefixes have equal keys, and others different ones.
"""

from collections.abc import Sequence
from typing import Final

from simulations.traces.trace import NO_SESSION, Trace

_PLACES: Final = 20
"""Bits of a place within a block of the trace."""

_OWN: Final = 1 << 43
"""From here on, ids are made up: of requests that nothing is known of."""


class TraceKeys:
    """Only to be read."""

    def __init__(self, trace: Trace, block_size: int) -> None:
        self._trace = trace
        self._size = block_size
        self._following = following(trace)

    def of(self, request: int) -> list[int]:
        """The keys of all full blocks of its prompt, and of its answer's as far as the session's next prompt tells them."""
        trace, size = self._trace, self._size
        tokens = trace.inputs[request]
        end = tokens
        ids: Sequence[int] = trace.blocks[request]
        following = self._following[request]
        if following is not None:
            # What comes behind the prompt is the answer, and then what the next turn asks.
            end = min(tokens + trace.outputs[request], trace.inputs[following])
            ids = trace.blocks[following]
        keys = _keys(ids, trace.block_size, size, end // size)
        own = (_OWN + request) << _PLACES
        keys += range(own + len(keys) + 1, own + tokens // size + 1)
        return keys


def _keys(ids: Sequence[int], whole: int, size: int, count: int) -> list[int]:
    """Of the first ``count`` blocks of ``size`` tokens, of a prompt whose ids cover ``whole`` each, as far as these tell."""
    keys: list[int] = []
    begin = 0  # of the trace's block, in tokens
    for each in ids[: -(-count * size // whole)]:
        first = size - begin % size if begin % size else size
        name = each << _PLACES
        keys += range(name + first, name + whole + 1, size)
        begin += whole
    return keys[:count]


def following(trace: Trace) -> list[int | None]:
    """By request, the next one of its session, if that goes on where it ended."""
    found: list[int | None] = [None] * len(trace)
    last: dict[int, int] = {}
    for request, session in enumerate(trace.sessions):
        if session == NO_SESSION:
            continue
        before = last.get(session)
        last[session] = request
        if before is None or trace.inputs[request] < trace.inputs[before] + trace.outputs[before]:
            continue
        full = trace.inputs[before] // trace.block_size
        if full and trace.blocks[request][full - 1 : full] == trace.blocks[before][full - 1 : full]:
            found[before] = request
    return found
