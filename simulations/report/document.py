"""Everything that a report says, as one value: the table, the page and the plots are made of it, and ``--json`` writes it.

Knows results, bounds and findings, and their order. Never knows when or where it was made: equal inputs give equal bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from simulations.bounds import Bounds, Rule
from simulations.report.comparison import BLIND, STICKY, cells
from simulations.report.finding import Finding
from simulations.report.findings import find
from simulations.report.fleets import Baseline, baseline
from simulations.report.result import Result
from simulations.traces.trace import Trace

SCHEMA: Final = 1
"""Grows when what is there changes its meaning or goes; what is added does not count."""


class TraceFacts(msgspec.Struct, frozen=True):
    """What a trace is made of. ``seconds`` from the first arrival to the last, as it was recorded."""

    name: str
    requests: int
    seconds: float
    block_size: int
    input_tokens: int
    output_tokens: int
    distinct_blocks: int
    sessions: int
    has_blocks: bool


class PoolFacts(msgspec.Struct, frozen=True):
    """One cache as large as the fleet's together; hits are shares of prompt tokens. See ``simulations.bounds.Pool``."""

    tokens: int
    lru: float
    belady: float


class BoundFacts(msgspec.Struct, frozen=True):
    """What caches can save of the trace; hits are shares of prompt tokens. See ``simulations.bounds.Bounds``."""

    rule: Rule
    infinite: float
    infinite_blocks: float
    pools: list[PoolFacts]
    curve_tokens: list[int]
    curve_hits: list[float]

    def pool_of(self, tokens: int | None) -> PoolFacts | None:
        """That of this size, give or take what whole blocks make (a hundredth)."""
        near = [each for each in self.pools if tokens is not None and abs(each.tokens - tokens) <= tokens / 100]
        return min(near, key=lambda each: abs(each.tokens - (tokens or 0)), default=None)


class Document(msgspec.Struct, frozen=True):
    """One report. ``schema`` says how to read it; ``inputs`` are the caller's words for what was run.

    ``baseline`` is the fleet that others are compared with, where there are others.
    """

    kind: Literal["kvlb simulate"]
    schema: int
    versions: dict[str, str]
    inputs: dict[str, str | int | float | bool | None]
    trace: TraceFacts
    bounds: BoundFacts | None
    results: list[Result]
    findings: list[Finding]
    baseline: Baseline | None = None


def document(
    trace: Trace,
    results: Sequence[Result],
    bounds: Bounds | None,
    *,
    versions: Mapping[str, str],
    inputs: Mapping[str, str | int | float | bool | None] | None = None,
    ttft_target: float | None = None,
    blind: frozenset[str] = BLIND,
    sticky: frozenset[str] = STICKY,
) -> Document:
    """The report of runs of one trace.

    ``bounds`` with pools of the sizes that the fleets have together; without them nothing is said of what could be had.
    ``ttft_target`` in seconds is what the 95th percentile of the time to the first token is to stay below. ``blind`` and
    ``sticky`` name policies that look at load alone, and those that keep what belongs together in one place, knowing no cache.
    """
    facts = facts_of(trace)
    limits = None if bounds is None else bound_facts(bounds, trace.block_size)
    return Document(
        kind="kvlb simulate",
        schema=SCHEMA,
        versions=dict(versions),
        inputs=dict(inputs or {}),
        trace=facts,
        bounds=limits,
        results=list(results),
        findings=find(facts.has_blocks, limits, results, ttft_target=ttft_target, blind=blind, sticky=sticky),
        baseline=baseline(cells(results)),
    )


def facts_of(trace: Trace) -> TraceFacts:
    return TraceFacts(
        name=trace.name,
        requests=len(trace),
        seconds=trace.seconds,
        block_size=trace.block_size,
        input_tokens=trace.input_tokens,
        output_tokens=sum(trace.outputs),
        distinct_blocks=len(trace.parents),
        sessions=len({each for each in trace.sessions if each >= 0}),
        has_blocks=trace.has_blocks,
    )


def bound_facts(bounds: Bounds, block_size: int) -> BoundFacts:
    return BoundFacts(
        rule=bounds.rule,
        infinite=bounds.infinite.tokens,
        infinite_blocks=bounds.infinite.blocks,
        pools=[PoolFacts(pool.blocks * block_size, pool.lru.tokens, pool.belady.tokens) for pool in bounds.pools],
        curve_tokens=[size * block_size for size in bounds.curve_blocks],
        curve_hits=bounds.curve_hits,
    )


def encode(report: Document) -> bytes:
    """As JSON, indented, with a line's end; equal documents give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def decode(data: bytes) -> Document:
    """Back from JSON.

    Raises:
        msgspec.ValidationError: it is none, or of another schema.
    """
    report = msgspec.json.decode(data, type=Document)
    if report.schema != SCHEMA:
        raise msgspec.ValidationError(f"schema {report.schema} is not {SCHEMA}, the one that this version reads")
    return report
