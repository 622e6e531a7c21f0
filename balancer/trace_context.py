"""Where a request stands in somebody's trace, as W3C Trace Context has it on the wire.

Knows the header ``traceparent`` (Trace Context, section 3.2; version 00, and later ones as far as they must stay readable).
Never draws an id and records nothing. ``tracestate`` is others' and passes as it is.
"""

import re
from typing import Final

import msgspec

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"

_HEADER: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 0x01
_RANDOM: Final = 0x02
"""The trace id was drawn as level 2 asks for; whoever goes on with it must say so, too."""


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """One span: its trace and itself, as numbers that are never 0. ``flags`` are as they came, but for unknown ones."""

    trace_id: int
    span_id: int
    flags: int = 0

    @property
    def is_sampled(self) -> bool:
        """Whether whoever began the trace wants it recorded."""
        return bool(self.flags & _SAMPLED)

    def child(self, span_id: int) -> "TraceContext":
        """Another span of the same trace."""
        return TraceContext(self.trace_id, span_id, self.flags)

    def header(self) -> bytes:
        """The value of ``traceparent`` for who is asked by this span."""
        return b"00-%032x-%016x-%02x" % (self.trace_id, self.span_id, self.flags)


def begin(trace_id: int, span_id: int, *, is_sampled: bool) -> TraceContext:
    """The first span of a trace; the trace's id is random in all its 128 bits."""
    return TraceContext(trace_id, span_id, _RANDOM | is_sampled)


def read(value: bytes | None) -> TraceContext | None:
    """The caller's span; None where there is none, or none that may be used: then a new trace begins."""
    match = None if value is None else _HEADER.fullmatch(value.strip())
    if match is None or match[1] == b"ff" or (match[1] == b"00" and match[5] is not None):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, int(match[4], 16) & (_SAMPLED | _RANDOM))
