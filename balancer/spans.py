"""One finished request as spans: itself, its stages before a replica was asked, and each attempt at one.

Knows what OpenTelemetry's conventions for HTTP and for generative AI call things; names of our own begin with ``kvlb.``. Never
knows how spans are delivered. Never tells prompts, salts, keys or header values.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from balancer.core import Outcome
from balancer.records import MAX_TEXT, Record, Tried
from balancer.stages import Stage

Attributes = dict[str, str | int | float | bool]


class Span(msgspec.Struct, frozen=True):
    """One of them; ``begin`` and ``end`` are in nanoseconds since 1970, ``parent`` is that span's id."""

    name: str
    span_id: int
    parent: int | None
    begin: int
    end: int
    attributes: Attributes = {}
    is_server: bool = False
    is_client: bool = False
    has_failed: bool = False


def spans_of(record: Record, new_id: Callable[[], int]) -> list[Span]:
    """What there is to tell of a request that is part of a trace; ``new_id`` names spans that nobody knows yet."""
    own = record.span
    assert own is not None
    since_1970 = int(record.at * 1e9) - record.stages.began
    truth = record.truth
    attributes = {
        "http.request.method": record.method,
        "http.route": record.path,
        "http.response.status_code": record.status or None,
        "error.type": str(record.status) if record.status >= 400 else None,
        "kvlb.error": record.error[:MAX_TEXT] or None,
        "client.address": record.client or None,
        "gen_ai.request.model": record.model[:MAX_TEXT] or None,
        "gen_ai.usage.input_tokens": truth.prompt_tokens,
        "gen_ai.usage.output_tokens": truth.completion_tokens,
        "kvlb.request_id": record.request_id[:MAX_TEXT],
        "kvlb.tenant": record.tenant or None,
        "kvlb.attempts": len(record.attempts),
        **{f"kvlb.{stage}_ms": ns / 1e6 for stage, ns in record.stages.spent().items()},
    }
    whole = Span(
        f"{record.method} {record.path}",
        own.span_id,
        None if record.parent is None else record.parent.span_id,
        record.stages.began + since_1970,
        record.end + since_1970,
        _known(attributes),
        is_server=True,
        has_failed=record.status >= 500 or record.outcome is Outcome.ERROR,
    )
    stages = [
        Span(lap.stage, new_id(), own.span_id, lap.begin + since_1970, lap.end + since_1970)
        for lap in record.stages.laps
        if lap.stage in {Stage.READ, Stage.TOKENIZE}
    ]
    return [whole, *stages, *(_attempt(record, each, since_1970) for each in record.attempts if each.span is not None)]


def _attempt(record: Record, attempt: Tried, since_1970: int) -> Span:
    assert attempt.span is not None
    assert record.span is not None
    decision = attempt.decision
    laps = [lap for lap in record.stages.laps if attempt.begin <= lap.begin and lap.end <= attempt.end]
    attributes = {
        "server.address": decision.replica.endpoint,
        "kvlb.replica": decision.replica.id,
        "kvlb.policy": decision.policy,
        "kvlb.outcome": attempt.outcome,
        "kvlb.prompt_tokens": decision.prompt_tokens if decision.knows_tokens else None,
        "kvlb.predicted_cached_tokens": decision.cached_tokens,
        "kvlb.cached_tokens": attempt.truth.cached_tokens if attempt.truth else None,
        **{f"kvlb.{lap.stage}_ms": (lap.end - lap.begin) / 1e6 for lap in laps},
    }
    return Span(
        "attempt",
        attempt.span.span_id,
        record.span.span_id,
        attempt.begin + since_1970,
        attempt.end + since_1970,
        _known(attributes),
        is_client=True,
        has_failed=attempt.outcome in {Outcome.ERROR, Outcome.UNREACHABLE},
    )


def _known(attributes: dict[str, Any]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
