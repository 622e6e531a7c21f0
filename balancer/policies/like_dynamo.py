"""As the router of NVIDIA Dynamo scores, for comparison.

Source: Dynamo 1.6, "KV cache routing": ``overlap weight x prefill blocks + decode blocks``, the lowest wins.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import calmest, policy


@policy("like_dynamo")
class LikeDynamo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lowest ``overlap_weight * (queued + own uncached) + active + own``, in tokens; active are those of requests in flight."""

    overlap_weight: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    counts_expected: bool = False

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        return calmest(candidates, self.costs(candidates), draw)

    def costs(self, candidates: Sequence[Candidate], asked: Asked = NOTHING_ASKED, /) -> list[float]:
        weight = self.overlap_weight
        return [
            weight * (each.queued_tokens + each.uncached_tokens) + each.active_tokens + each.prompt_tokens
            for each in candidates
        ]
