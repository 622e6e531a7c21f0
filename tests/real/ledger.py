"""The account of predictions: what kvlb said before, what vLLM said afterwards, for each kind of request.

Knows rows; never judges: tests do.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from tests.real.traffic import Answer, Ask


class Row(msgspec.Struct, frozen=True):
    """One request. ``phase`` is what the fleet was going through; ``note`` explains a difference that had to be."""

    phase: str
    kind: str
    replica: str
    predicted: int
    cached: int | None
    prompt: int | None
    is_compared: bool
    note: str = ""

    @property
    def error(self) -> int:
        """Predicted minus actual, in tokens; 0 where there is nothing to compare."""
        return self.predicted - self.cached if self.is_compared and self.cached is not None else 0


class Ledger:
    """All rows of a run; only grows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def note(self, phase: str, ask: Ask, answer: Answer, note: str = "") -> Row:
        row = Row(
            phase,
            ask.kind,
            answer.replica,
            answer.predicted,
            answer.cached,
            answer.prompt,
            answer.is_predicted and answer.cached is not None,
            note,
        )
        self.rows.append(row)
        return row

    def table(self) -> Iterator[str]:
        """Lines for people: one for each phase, one for each kind of request, the sum, and every difference."""
        yield _HEAD.format("by phase")
        for phase in dict.fromkeys(row.phase for row in self.rows):
            yield _line(phase, [row for row in self.rows if row.phase == phase])
        yield _HEAD.format("by kind")
        for kind in sorted({row.kind for row in self.rows}):
            yield _line(kind, [row for row in self.rows if row.kind == kind])
        yield _line("all", self.rows)
        for row in self.rows:
            if row.error:
                yield (
                    f"{row.phase}: {row.kind} at {row.replica}: predicted {row.predicted}, was {row.cached} "
                    f"of {row.prompt} tokens {f'({row.note})' if row.note else ''}"
                )


_HEAD: Final = "{:36}  requests  compared    exact   over  under    hits    share"


def _line(name: str, rows: list[Row]) -> str:
    compared = [row for row in rows if row.is_compared]
    exact, over, under = (sum(map(test, compared)) for test in (_is_exact, _is_over, _is_under))
    hits = sum(bool(row.cached) for row in compared)
    share = f"{exact / len(compared):8.2%}" if compared else f"{'-':>8}"
    return f"{name:36} {len(rows):9} {len(compared):9} {exact:8} {over:6} {under:6} {hits:7} {share}"


def _is_exact(row: Row) -> bool:
    return row.error == 0


def _is_over(row: Row) -> bool:
    return row.error > 0


def _is_under(row: Row) -> bool:
    return row.error < 0
