"""As DualMap places, for comparison.

Source: DualMap: two hashes of a prompt's beginning name two replicas, and the one that will answer sooner gets it. Here they
are the two highest of rendezvous hashing, so that they are never the same one.
"""

import heapq
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from balancer import leaning
from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import calmest, policy


@policy("like_dualmap")
class LikeDualmap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the two that the first ``prefix_tokens`` lean to, the lowest wait plus prefill; of all, of what is unknown."""

    prefix_tokens: Annotated[int, msgspec.Meta(ge=1)] = 2048
    counts_expected: bool = False
    reads_prompt: ClassVar[bool] = True

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        name = asked.beginning(self.prefix_tokens)
        if name:
            mixed = leaning.mixed(name)
            candidates = heapq.nlargest(2, candidates, key=lambda each: leaning.lean(mixed, each.replica))
        return calmest(candidates, [each.wait + each.uncached_tokens / each.speed for each in candidates], draw)
