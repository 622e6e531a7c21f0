"""What has come of requests, counted where they are answered.

Knows numbers by their labels. Never knows where they are told: in the same process, or in another one that adds them up.
Between calls: whatever ``take`` has given is counted here no more, so that nothing is counted twice.
"""

from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import Final

import msgspec

from balancer.core import Decision, Outcome, Truth
from balancer.disaggregation.counts import LegCounts, LegsCounted
from balancer.errors import RateLimited, RequestError
from indexer.index import ReplicaId

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Bounds of a time to the first byte."""


class Histogram(msgspec.Struct):
    """How often each range of values has come, and their sum. Changes."""

    bounds: tuple[float, ...]
    counts: list[int] = []
    sum: float = 0.0

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """It has come once more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, other: "Histogram") -> None:
        """All that another one with the same bounds has seen."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, how many are no greater), as Prometheus wants them."""
        bounds = [*map(_bound, self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


def _bound(bound: float) -> str:
    return repr(float(bound))


class OfPolicy(msgspec.Struct):
    """What has come of the requests that one policy has decided. Changes.

    ``prompt_tokens`` and ``predicted_tokens`` are of attempts whose tokens were known, ``reported_prompt_tokens`` and
    ``reported_cached_tokens`` of answers that say how much of them was cached. ``first_tokens`` are seconds from a request's
    arrival to its first token.
    """

    attempts: dict[Outcome, int] = {}
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    reported_prompt_tokens: int = 0
    reported_cached_tokens: int = 0
    first_tokens: Histogram = msgspec.field(default_factory=lambda: Histogram(SECONDS))

    def add(self, other: "OfPolicy") -> None:
        """All that another one has counted."""
        for outcome, count in other.attempts.items():
            self.attempts[outcome] = self.attempts.get(outcome, 0) + count
        self.prompt_tokens += other.prompt_tokens
        self.predicted_tokens += other.predicted_tokens
        self.reported_prompt_tokens += other.reported_prompt_tokens
        self.reported_cached_tokens += other.reported_cached_tokens
        self.first_tokens.add(other.first_tokens)


class Counted(msgspec.Struct):
    """Numbers of requests by their labels. Changes."""

    attempts: dict[tuple[str, str, Outcome], int] = {}
    """By model, path and how they ended."""
    refused: dict[tuple[str, str], int] = {}
    """By path and status."""
    limited: dict[str, int] = {}
    prompt_tokens: dict[tuple[str, ReplicaId], int] = {}
    cached_tokens: dict[tuple[str, ReplicaId], int] = {}
    first_bytes: dict[str, Histogram] = {}
    fallbacks: int = 0
    """Decisions that a gateway made because the brain was away."""
    policies: dict[str, OfPolicy] = {}
    legs: LegsCounted = msgspec.field(default_factory=LegsCounted)


class RequestCounts:
    """Counts. Changes with every call but the questions."""

    def __init__(self) -> None:
        self.attempts: Counter[tuple[str, str, Outcome]] = Counter()
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.limited: Counter[str] = Counter()
        self.prompt_tokens: Counter[tuple[str, ReplicaId]] = Counter()
        self.cached_tokens: Counter[tuple[str, ReplicaId]] = Counter()
        self.first_bytes: dict[str, Histogram] = {}
        self.fallbacks = 0
        self.policies: dict[str, OfPolicy] = {}
        self.legs = LegCounts()

    def __repr__(self) -> str:
        return f"<RequestCounts of {self.attempts.total()} attempts>"

    def finished(self, model: str, path: str, decision: Decision, outcome: Outcome, truth: Truth | None = None) -> None:
        """An attempt at a replica has ended; ``truth`` is what the engine said of it."""
        self.attempts[model, path, outcome] += 1
        policy = self._of_policy(decision.policy)
        policy.attempts[outcome] = policy.attempts.get(outcome, 0) + 1
        if decision.is_split:  # its prompt is counted where it was computed
            return
        self._prompt(model, decision, outcome, truth)

    def prefilled(self, model: str, decision: Decision, outcome: Outcome, truth: Truth | None) -> None:
        """A replica has computed the prompt of a split request, or has not."""
        self._prompt(model, decision, outcome, truth)

    def _prompt(self, model: str, decision: Decision, outcome: Outcome, truth: Truth | None) -> None:
        policy = self._of_policy(decision.policy)
        if decision.knows_tokens and outcome is not Outcome.UNREACHABLE:
            of = (model, decision.replica.id)
            self.prompt_tokens[of] += decision.prompt_tokens
            self.cached_tokens[of] += decision.cached_tokens
            policy.prompt_tokens += decision.prompt_tokens
            policy.predicted_tokens += decision.cached_tokens
        if truth is not None and truth.cached_tokens is not None and truth.prompt_tokens is not None:
            policy.reported_prompt_tokens += truth.prompt_tokens
            policy.reported_cached_tokens += truth.cached_tokens

    def refused(self, path: str, error: RequestError) -> None:
        """A request was answered with an error of our own."""
        self.refusals[path, str(error.status)] += 1
        if isinstance(error, RateLimited):
            self.limited[error.limit] += 1

    def first_byte(self, model: str, seconds: float, policy: str) -> None:
        """The first byte of an answer's body has come so long after its request, which this policy had sent there."""
        self._of_policy(policy).first_tokens.observe(seconds)
        observed = self.first_bytes.get(model)
        if observed is None:
            observed = self.first_bytes[model] = Histogram(SECONDS)
        observed.observe(seconds)

    def fell_back(self) -> None:
        """A replica was chosen without the brain."""
        self.fallbacks += 1

    def take(self) -> Counted:
        """All that was counted since the last time; it is for the caller now."""
        taken = Counted(
            dict(self.attempts),
            dict(self.refusals),
            dict(self.limited),
            dict(self.prompt_tokens),
            dict(self.cached_tokens),
            self.first_bytes,
            self.fallbacks,
            self.policies,
            self.legs.take(),
        )
        for counts in (self.attempts, self.refusals, self.limited, self.prompt_tokens, self.cached_tokens):
            counts.clear()
        self.first_bytes, self.fallbacks, self.policies = {}, 0, {}
        return taken

    def add(self, counted: Counted) -> None:
        """Another process has counted this."""
        self.attempts.update(counted.attempts)
        self.refusals.update(counted.refused)
        self.limited.update(counted.limited)
        self.prompt_tokens.update(counted.prompt_tokens)
        self.cached_tokens.update(counted.cached_tokens)
        self.fallbacks += counted.fallbacks
        self.legs.add(counted.legs)
        for model, theirs in counted.first_bytes.items():
            self.first_bytes.setdefault(model, Histogram(SECONDS)).add(theirs)
        for name, counted_there in counted.policies.items():
            self._of_policy(name).add(counted_there)

    def _of_policy(self, name: str) -> OfPolicy:
        found = self.policies.get(name)
        if found is None:
            found = self.policies[name] = OfPolicy()
        return found

    def forget(self, model: str, replica: ReplicaId) -> None:
        """The replica is gone: they may be thousands in the end."""
        self.prompt_tokens.pop((model, replica), None)
        self.cached_tokens.pop((model, replica), None)
