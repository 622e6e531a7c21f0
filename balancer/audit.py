"""Predicted cached tokens against what the engine then reported.

Knows decisions and truths. Never corrects anything; it counts, and keeps the last differences for whoever asks.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from balancer.core import Decision, Truth
from indexer.index import ReplicaId

KEPT: Final = 100


class Tally(msgspec.Struct):
    """One replica's sums; ``over`` counts predictions that were too high, ``under`` too low.

    ``other_tokens`` counts requests whose prompt had another length for the engine than for us: it was not the same prompt, and
    nothing else is compared.
    """

    exact: int = 0
    over: int = 0
    under: int = 0
    other_tokens: int = 0
    predicted_tokens: int = 0
    actual_tokens: int = 0
    prompt_tokens: int = 0

    @property
    def compared(self) -> int:
        return self.exact + self.over + self.under

    @property
    def exact_share(self) -> float | None:
        """The share of predictions that were exact; None before the first."""
        return self.exact / self.compared if self.compared else None


class Difference(msgspec.Struct, frozen=True):
    """A prediction that was not exact, in tokens."""

    replica: ReplicaId
    prompt_tokens: int
    predicted: int
    actual: int


class Audit:
    """The tallies of all replicas. Changes with ``record``."""

    def __init__(self) -> None:
        self._tallies: dict[ReplicaId, Tally] = {}
        self.differences: deque[Difference] = deque(maxlen=KEPT)

    @property
    def tallies(self) -> Mapping[ReplicaId, Tally]:
        return self._tallies

    def record(self, decision: Decision, truth: Truth) -> None:
        """Compare, if both sides have said something."""
        actual = truth.cached_tokens
        if actual is None or not decision.is_predicted:
            return
        replica, predicted = decision.replica.id, decision.cached_tokens
        tally = self._tallies.setdefault(replica, Tally())
        if truth.prompt_tokens is not None and truth.prompt_tokens != decision.prompt_tokens:
            tally.other_tokens += 1
            return
        tally.predicted_tokens += predicted
        tally.actual_tokens += actual
        tally.prompt_tokens += decision.prompt_tokens
        if predicted == actual:
            tally.exact += 1
            return
        if predicted > actual:
            tally.over += 1
        else:
            tally.under += 1
        self.differences.append(Difference(replica, decision.prompt_tokens, predicted, actual))
