"""A policy that decides on paper: what it would have chosen is told, and nothing follows from it.

Knows what the acting policy saw, and shows its own policy the same fleet, with the cached tokens that this one counts. Never
changes a decision, nor what is known of a cache; whatever goes wrong here is a figure, and no request's failure. The fleet
that it sees is the one that the acting policy has made: its caches, its load, and where it has sent conversations.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from balancer.arms import Arm, lot
from balancer.core import Asked, Candidate, Paper, Replica, RouteRequest
from balancer.leaning import lean
from balancer.matching import Matcher
from balancer.policies.base import Policy
from indexer.index import ReplicaId

MAX_REASON: Final = 200
"""Longest reason of a failure, in characters."""


class Seen(msgspec.Struct, frozen=True):
    """What the acting policy saw of a request, and what it chose; ``replicas`` in the order of the candidates.

    ``arm`` is who acted, ``draw`` what chance said, ``beginning`` numbers how the prompt begins, and ``asked`` says what may be
    known besides, with the prompt or without it.
    """

    arm: Arm
    request: RouteRequest
    replicas: Sequence[Replica]
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    draw: float
    beginning: Callable[[], int]
    asked: Callable[[bool], Asked]


class Sums(msgspec.Struct):
    """Of requests that both policies have decided. Changes.

    Tokens are of requests whose tokens are known; ``wait`` is in seconds.
    """

    cached_tokens: int = 0
    uncached_tokens: int = 0
    wait: float = 0.0

    def add(self, cached: int, uncached: int, wait: float, *, knows_tokens: bool) -> None:
        """One more."""
        if knows_tokens:
            self.cached_tokens += cached
            self.uncached_tokens += uncached
        self.wait += wait


class Shadow:
    """One policy on paper, and how it compares. Changes with ``count``."""

    def __init__(self, arm: Arm, matcher: Matcher) -> None:
        self.arm = arm
        self._matcher = matcher
        self.results: Counter[tuple[str, str]] = Counter()
        """By who acted, and ``agree``, ``differ`` or ``failed``."""
        self.sums: dict[tuple[str, str], Sums] = {}
        """By who acted, and whose choice it is: ``acting`` or ``shadow``."""

    def __repr__(self) -> str:
        return f"<Shadow {self.arm.name}: {dict(self.results)}>"

    @property
    def policy(self) -> Policy:
        return self.arm.policy

    def decide(self, seen: Seen) -> Paper | None:
        """What the policy would have chosen; None of a request that is not sampled."""
        arm, request = self.arm, seen.request
        if lot(request, seen.draw, "shadow", by_session=False) >= arm.share:
            return None
        try:
            candidates = seen.candidates
            if arm.counts_expected is not seen.arm.counts_expected and request.prompt_lengths:
                candidates = self._recounted(seen)
            named = arm.policy.choose(candidates, seen.draw, seen.asked(arm.reads_prompt)).replica
            at = [each.replica for each in candidates].index(named)
            chosen = candidates[at]
            cached = chosen.cached_tokens
            if not arm.counts_expected and request.prompt_lengths:
                # As for the acting policy: the engine will hold what is expected, whatever the policy looks at.
                found = self._matcher.match(request, [seen.replicas[at]], touches=False)
                cached = found.get(chosen.replica, 0)
        except Exception as error:  # a policy may be anybody's
            failure = f"{type(error).__name__}: {error}"[:MAX_REASON]
            return Paper(arm.name, ReplicaId(""), 0, 0, 0.0, seen.chosen.wait, failure)
        return Paper(arm.name, chosen.replica, cached, chosen.prompt_tokens - cached, chosen.wait, seen.chosen.wait)

    def _recounted(self, seen: Seen) -> tuple[Candidate, ...]:
        """The candidates with the cached tokens that this policy counts."""
        found = self._matcher.match(seen.request, seen.replicas, expecting=self.arm.counts_expected, touches=False)
        beginning = 0 if any(found.values()) else seen.beginning()
        return tuple(
            [
                msgspec.structs.replace(
                    each.counting(found.get(each.replica, 0)),
                    lean=lean(beginning, each.replica) if beginning else 0,
                )
                for each in seen.candidates
            ]
        )

    def count(self, paper: Paper, acting: str, chosen: Candidate, *, knows_tokens: bool) -> None:
        """A request has been sent where ``acting`` has chosen."""
        if paper.failure:
            self.results[acting, "failed"] += 1
            return
        self.results[acting, "agree" if paper.replica == chosen.replica else "differ"] += 1
        for whose, cached, uncached, wait in (
            ("acting", chosen.cached_tokens, chosen.uncached_tokens, chosen.wait),
            ("shadow", paper.cached_tokens, paper.uncached_tokens, paper.wait),
        ):
            sums = self.sums.get((acting, whose))
            if sums is None:
                sums = self.sums[acting, whose] = Sums()
            sums.add(cached, uncached, wait, knows_tokens=knows_tokens)
