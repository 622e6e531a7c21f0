"""Predicted cached tokens against what the engine then reported, and where each difference came from.

Knows decisions and the engine's figures. Never corrects anything (``balancer.healing`` does); it counts, and keeps the last
differences for whoever asks.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from balancer.core import Decision
from indexer.index import ReplicaId

KEPT: Final = 200
"""Differences kept for ``/debug/audit``."""

RECENT: Final = 1_000
"""Comparisons that the running share is taken over, for each replica and model."""

ERROR_BOUNDS: Final = (0, 16, 64, 256, 1_024, 4_096, 16_384, 65_536)
"""Upper bounds of the histogram of errors, in tokens; one more bucket lies above the last."""


class Cause(StrEnum):
    """Where a difference came from."""

    INDEX = "index"  # the index was wrong about what the replica held
    ROUTING = "routing"  # it was right when it was asked; the cache had changed by the time the request was computed
    WORKLOAD = "workload"  # the engine computed another prompt than the one that was routed


class Tally(msgspec.Struct):
    """One replica's and model's sums. Changes.

    ``over`` counts predictions that were too high, ``under`` too low. ``other_tokens`` counts requests whose prompt had another
    length for the engine than for us: it was not the same prompt, and nothing else is compared. ``estimates`` counts
    comparisons that were no promise, because the replica's cache was known as partial or blind; ``estimates_exact`` those of
    them that were right.
    """

    exact: int = 0
    over: int = 0
    under: int = 0
    other_tokens: int = 0
    estimates: int = 0
    estimates_exact: int = 0
    predicted_tokens: int = 0
    actual_tokens: int = 0
    prompt_tokens: int = 0
    errors: list[int] = msgspec.field(default_factory=lambda: [0] * (len(ERROR_BOUNDS) + 1))
    error_tokens: int = 0
    causes: dict[Cause, int] = msgspec.field(default_factory=lambda: dict.fromkeys(Cause, 0))
    recent: deque[bool] = msgspec.field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def compared(self) -> int:
        return self.exact + self.over + self.under

    @property
    def exact_share(self) -> float | None:
        """The share of promises that were exact; None before the first."""
        return self.exact / self.compared if self.compared else None

    @property
    def recent_exact_share(self) -> float | None:
        """The same over the last ``RECENT`` of them."""
        return sum(self.recent) / len(self.recent) if self.recent else None


class Difference(msgspec.Struct, frozen=True):
    """A prediction that was not exact, in tokens, with its cause and what is known of it in words.

    ``was_promised`` is false for an estimate (partial or blind replica). ``time`` is on the caller's clock, in seconds.
    """

    request_id: str

    replica: ReplicaId
    model: str
    prompt_tokens: int
    predicted: int
    actual: int
    cause: Cause
    reason: str
    was_promised: bool = True
    time: float = 0.0


class Audit:
    """The tallies of all replicas and models. Changes with ``compare``, ``explain`` and ``remove``."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[ReplicaId, str], Tally] = {}
        self.differences: deque[Difference] = deque(maxlen=KEPT)

    @property
    def tallies(self) -> Mapping[tuple[ReplicaId, str], Tally]:
        return self._tallies

    def counts(self, replica: ReplicaId) -> dict[str, int]:
        """One replica's promises over all its models: how many were exact, over and under."""
        mine = [tally for (owner, _), tally in self._tallies.items() if owner == replica]
        return {
            name: sum(getattr(tally, name) for tally in mine) for name in ("exact", "over", "under", "other_tokens")
        }

    def remove(self, replica: ReplicaId) -> None:
        """The replica is gone: so are its sums."""
        for key in [key for key in self._tallies if key[0] == replica]:
            del self._tallies[key]

    def compare(self, decision: Decision, actual: int) -> bool:
        """Count one comparison of the same prompt; returns whether the prediction was exact."""
        tally, predicted = self._tally(decision), decision.cached_tokens
        is_exact = decision.expected_tokens == actual
        if not decision.is_predicted:
            tally.estimates += 1
            tally.estimates_exact += is_exact
            return is_exact
        tally.predicted_tokens += predicted
        tally.actual_tokens += actual
        tally.prompt_tokens += decision.prompt_tokens
        tally.exact += is_exact
        tally.over += predicted > actual
        tally.under += predicted < actual
        error = abs(predicted - actual)
        tally.errors[bisect_left(ERROR_BOUNDS, error)] += 1
        tally.error_tokens += error
        tally.recent.append(is_exact)
        return is_exact

    def explain(
        self, decision: Decision, actual: int, cause: Cause, reason: str, now: float, *, is_compared: bool = False
    ) -> None:
        """Say where a difference came from; one that ``is_compared`` has been counted already."""
        tally = self._tally(decision)
        tally.other_tokens += cause is Cause.WORKLOAD and not is_compared
        if decision.is_predicted:
            tally.causes[cause] += 1
        self.differences.append(
            Difference(
                request_id=decision.request_id,
                replica=decision.replica.id,
                model=decision.model,
                prompt_tokens=decision.prompt_tokens,
                predicted=decision.cached_tokens,
                actual=actual,
                cause=cause,
                reason=reason,
                was_promised=decision.is_predicted,
                time=now,
            )
        )

    def _tally(self, decision: Decision) -> Tally:
        key = (decision.replica.id, decision.model)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally()
        return tally
