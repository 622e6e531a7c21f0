"""The account of predictions: what kvlb said before, what vLLM said afterwards, for each kind of request.

Knows rows; never judges: tests do.
"""

from collections.abc import Iterator

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
        """Lines for people: one for each phase and kind, the sum of each phase, and every difference."""
        yield f"{'':46} {'requests':>9} {'compared':>9} {'exact':>7} {'over':>6} {'under':>6} {'hits':>6} {'share':>8}"
        for phase in dict.fromkeys(row.phase for row in self.rows):
            rows = [row for row in self.rows if row.phase == phase]
            kinds = sorted({row.kind for row in rows})
            for kind in kinds if len(kinds) > 1 else []:
                yield _line(f"{phase}: {kind}", [row for row in rows if row.kind == kind])
            yield _line(f"{phase}: ALL" if len(kinds) > 1 else phase, rows)
        for row in self.rows:
            if row.error:
                yield (
                    f"{row.phase}: {row.kind} at {row.replica}: predicted {row.predicted}, was {row.cached} "
                    f"of {row.prompt} tokens {f'({row.note})' if row.note else ''}"
                )


def _line(name: str, rows: list[Row]) -> str:
    compared = [row for row in rows if row.is_compared]
    exact, over, under = (sum(map(test, compared)) for test in (_is_exact, _is_over, _is_under))
    hits = sum(bool(row.cached) for row in compared)
    share = f"{exact / len(compared):8.2%}" if compared else f"{'-':>8}"
    return f"{name:46} {len(rows):9} {len(compared):9} {exact:7} {over:6} {under:6} {hits:6} {share}"


def _is_exact(row: Row) -> bool:
    return row.error == 0


def _is_over(row: Row) -> bool:
    return row.error > 0


def _is_under(row: Row) -> bool:
    return row.error < 0
