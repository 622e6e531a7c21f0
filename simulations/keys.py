"""A trace's ids as the keys of an engine's blocks.

Knows ids, lengths and both block sizes. Never knows hashes: a key is an id and a place within its block, mixed, so that
whatever reads keys finds numbers like a hash's. Equal prefixes have equal keys, and others different ones.
"""

from collections.abc import Sequence
from typing import Final

from simulations.traces.trace import NO_SESSION, Trace

_MIX: Final = 0x9E3779B97F4A7C15
_64_BITS: Final = 2**64 - 1
_OWN: Final = 1 << 44
"""From here on, ids are made up: of requests that nothing is known of."""


class TraceKeys:
    """Only to be read."""

    def __init__(self, trace: Trace, block_size: int) -> None:
        self._trace = trace
        self._size = block_size
        self._following = _following(trace)

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
        first = len(keys)
        return keys + [_mix(_OWN + request, at) for at in range(first, tokens // size)]


def _keys(ids: Sequence[int], whole: int, size: int, count: int) -> list[int]:
    """Of the first ``count`` blocks of ``size`` tokens, of a prompt whose ids cover ``whole`` each, as far as these tell."""
    count = min(count, len(ids) * whole // size)
    ends = range(size, count * size + 1, size)
    return [_mix(ids[(end - 1) // whole], end - (end - 1) // whole * whole) for end in ends]


def _mix(name: int, place: int) -> int:
    mixed = ((name << 20) + place + 1) * _MIX & _64_BITS
    return (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9 & _64_BITS


def _following(trace: Trace) -> list[int | None]:
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
