"""What is noted of one request while it is answered, for whoever tells of it afterwards.

Knows values that others have found out. Never knows prompts, salts, keys or headers, decides nothing and writes nothing: a
request costs one small object, and one more for each attempt.
"""

from typing import Final

import msgspec

from balancer.core import Decision, Outcome, Truth
from balancer.stages import Stage, Stages
from balancer.trace_context import TRACEPARENT, TRACESTATE, TraceContext

MAX_TEXT: Final = 256
"""Longest id, name or reason that is told, in characters: clients choose them."""


_NOTHING: Final = frozenset[bytes]()
_OF_ITS_PARENT: Final = frozenset({TRACEPARENT})
_OF_ANOTHER_TRACE: Final = frozenset({TRACEPARENT, TRACESTATE})


class Tried(msgspec.Struct):
    """One replica that was tried; times in nanoseconds on the clock of the record's stages."""

    decision: Decision
    begin: int
    span: TraceContext | None = None
    """What the replica was told to be within."""
    end: int = 0
    outcome: Outcome | None = None
    truth: Truth | None = None


class AccessLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request for the access log; what there is nothing to say of is left out. Times are seconds but for ``stages``."""

    time: str
    request_id: str
    method: str
    path: str
    status: int
    seconds: float
    client: str = ""
    tenant: str = ""
    trace_id: str = ""
    model: str = ""
    replica: str = ""
    prefill: str = ""
    attempts: int = 0
    outcome: str = ""
    error: str = ""
    prompt_tokens: int = 0
    predicted_cached_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    stages: dict[str, float] = {}
    """Milliseconds."""


class Record(msgspec.Struct):
    """One request. ``at`` is its arrival in seconds since 1970, ``span`` kvlb's own part of a trace if it is recorded."""

    request_id: str
    method: str
    path: str
    at: float
    stages: Stages
    client: str = ""
    parent: TraceContext | None = None
    span: TraceContext | None = None
    tenant: str = ""
    model: str = ""
    status: int = 0
    """What the client was answered; 0 when it was gone before anything was."""
    error: str = ""
    """Our own reason to refuse it."""
    attempts: list[Tried] = []
    end: int = 0

    @property
    def replaced_headers(self) -> frozenset[bytes]:
        """What the client says of a trace and its replica shall not hear: the replica works within a span of ours."""
        return _NOTHING if self.span is None else _OF_ANOTHER_TRACE if self.parent is None else _OF_ITS_PARENT

    @property
    def seconds(self) -> float:
        """From its arrival to its end."""
        return (self.end - self.stages.began) / 1e9

    @property
    def truth(self) -> Truth:
        """What the replica that was tried last said of it."""
        return (self.attempts[-1].truth if self.attempts else None) or Truth()

    @property
    def outcome(self) -> Outcome | None:
        """How the last attempt ended; None when there was none, or it has not."""
        return self.attempts[-1].outcome if self.attempts else None

    @property
    def prefill(self) -> Tried | None:
        """Who computed the prompt of the last attempt, if that was another replica."""
        is_split = len(self.attempts) > 1 and self.attempts[-1].decision.is_split
        return self.attempts[-2] if is_split else None

    def line(self, time: str) -> AccessLine:
        """The same for the access log; ``time`` is ``at``, written down."""
        last = self.attempts[-1] if self.attempts else None
        truth, prefill = self.truth, self.prefill
        found = prefill or last  # whose cache the prompt was looked up in, as the client is told
        spent = self.stages.spent()
        return AccessLine(
            time=time,
            request_id=self.request_id[:MAX_TEXT],
            method=self.method,
            path=self.path,
            status=self.status,
            seconds=round(self.seconds, 6),
            client=self.client,
            tenant=self.tenant[:MAX_TEXT],
            trace_id="" if self.span is None else f"{self.span.trace_id:032x}",
            model=self.model[:MAX_TEXT],
            replica="" if last is None else last.decision.replica.id,
            prefill="" if prefill is None else prefill.decision.replica.id,
            attempts=len(self.attempts),
            outcome=self.outcome or "",
            error=self.error[:MAX_TEXT],
            prompt_tokens=truth.prompt_tokens
            or (last.decision.prompt_tokens if last and last.decision.knows_tokens else 0),
            predicted_cached_tokens=0 if found is None else found.decision.cached_tokens,
            cached_tokens=(truth if prefill is None else prefill.truth or Truth()).cached_tokens or 0,
            completion_tokens=truth.completion_tokens or 0,
            finish_reason=(truth.finish_reason or "")[:MAX_TEXT],
            stages={stage: round(spent[stage] / 1e6, 3) for stage in Stage if stage in spent},
        )
