"""Whether a prompt is to be computed by another replica than the one that answers.

Knows the replica that would answer, as the policy saw it, and what both ways cost where somebody knows that. Never knows who
else there is: whether anybody could do it is asked before.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from balancer.core import Candidate
from balancer.disaggregation.estimate import Estimate

Worth: TypeAlias = Callable[[Candidate, Estimate | None], bool]
"""Whether what this replica lacks of the prompt is worth a second leg; of what nobody knows there is no estimate."""


class Threshold(msgspec.Struct, frozen=True):
    """A ``Worth``: it must lack so many ``tokens``; 0 is every prompt. Blocks would not do: tiny prompts have none.

    What it can load by itself, from a tier of its own or from a store, it does not lack.
    """

    tokens: int

    def __call__(self, candidate: Candidate, estimate: Estimate | None = None, /) -> bool:
        return candidate.uncached_tokens - candidate.loadable_tokens >= self.tokens


class Quicker(msgspec.Struct, frozen=True):
    """A ``Worth``: the quicker way of both, and ``otherwise`` where nobody knows which one that is."""

    otherwise: Threshold

    def __call__(self, candidate: Candidate, estimate: Estimate | None = None, /) -> bool:
        return self.otherwise(candidate) if estimate is None else estimate.splits
