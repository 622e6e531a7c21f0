"""Whether a prompt is to be computed by another replica than the one that answers.

Knows the replica that would answer, as the policy saw it. Never knows who else there is: whether anybody could do it is asked
before.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from balancer.core import Candidate

Worth: TypeAlias = Callable[[Candidate], bool]
"""Whether what this replica lacks of the prompt is worth a second leg."""


class Threshold(msgspec.Struct, frozen=True):
    """A ``Worth``: it must lack so many ``tokens``; 0 is every prompt. Blocks would not do: tiny prompts have none.

    What it can load by itself, from a tier of its own or from a store, it does not lack.
    """

    tokens: int

    def __call__(self, candidate: Candidate, /) -> bool:
        return candidate.uncached_tokens - candidate.loadable_tokens >= self.tokens
