"""One answer to one question, and the phrases that answers are made of.

Knows cells and how people read them. Never knows what is concluded.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

import msgspec

from simulations.report.comparison import HIT_TIES, Cell, Spread, differ
from simulations.report.figures import count, duration, seconds

COSTLY: Final = 0.01
"""A loss of less than a point of prompt tokens is not worth acting upon."""

REFUSED: Final = 0.001
"""Shares of refused requests that differ by no more are equal."""


NOTICED: Final = 1.1
"""A ratio of times below this is a small one."""


MORE_SEEDS: Final = "Play more of them (--seeds 5)."
"""Where those that were played cannot tell."""


NOT_KNOWN: Final = "Not known"
"""A verdict that says by itself how sure it is."""


class Certainty(Enum):
    """What a finding rests on: runs that were compared, a calculation from them, or too little."""

    MEASURED = "measured"
    ESTIMATE = "estimate"
    UNKNOWN = "unknown"

    @property
    def words(self) -> str:
        """For people."""
        return "not known" if self is Certainty.UNKNOWN else self.value


class Finding(msgspec.Struct, frozen=True):
    """A question; its answer in a word or two, and in a sentence or two; the numbers it rests on; and how sure it is."""

    topic: str
    question: str
    verdict: str
    answer: str
    because: list[str]
    certainty: Certainty


def of_a_hundred(share: float) -> str:
    """Of a hundred."""
    value = 100 * share
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}" if value >= 0.05 else "less than 0.1"


def replicas(replicas: int) -> str:
    return f"{replicas} replica{'' if replicas == 1 else 's'}"


def _with(figure: Spread, show: Callable[[float], str]) -> str:
    half = (figure.high - figure.low) / 2
    return f"{show(figure.mean)} ± {show(half)}" if half > 0 else show(figure.mean)


def mean(cell: Cell) -> str:
    return duration(cell.ttft_mean.mean)


def p95(cell: Cell) -> str:
    return duration(cell.ttft_p95.mean)


def holds(cell: Cell, target: float) -> bool:
    """Whether 95 % of first tokens come within ``target`` seconds there; who refuses anybody, but for chance, holds nothing."""
    return cell.served and cell.refused <= REFUSED and cell.ttft_p95.mean <= target


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def against(one: Cell, other: Cell) -> str:
    hits = f"hit {_with(one.hit, _points)} % and {_with(other.hit, _points)} %"
    if not differ(one.hit, other.hit, least=HIT_TIES):
        hits += ", which is no difference of hits"
    return (
        f"{one.policy} and {other.policy}: mean time to the first token {_with(one.ttft_mean, seconds)} s and "
        f"{_with(other.ttft_mean, seconds)} s, 95th percentile {p95(one)} and {p95(other)}, {hits}."
    )


def sureness(some: Sequence[Cell]) -> str:
    seeds = min(cell.seeds for cell in some)
    if seeds < 2:
        return "One seed, so nothing is known of chance; times less than 3 % apart are taken for equal."
    if all(cell.is_certain for cell in some):
        return f"{seeds} seeds brought the same: none of it was left to chance. The trace is one, and another day is another."
    return f"{seeds} seeds; ± is the 95 % interval of the mean. The trace is one, and another day is another."


def of_size(cell: Cell) -> str:
    return f"{count(cell.fleet.cache_tokens or 0)} tokens hit {_with(cell.hit, _points)} %, {mean(cell)} to the first token"


def of_replicas(cell: Cell) -> str:
    return f"{p95(cell)} with {cell.fleet.replicas}"
