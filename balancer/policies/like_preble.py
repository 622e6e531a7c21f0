"""As Preble places, for comparison.

Source: Srivatsa et al., Preble: Efficient Distributed Prompt Scheduling for LLM Serving, ICLR 2025: exploit what is cached
where it is more than half of the prompt, else explore by load.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import calmest, policy


@policy("like_preble")
class LikePreble(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of those that hold most, if that is more than ``share`` of the prompt, the shortest wait; else the lowest wait plus
    prefill.
    """

    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    counts_expected: bool = False

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        most = max([each.cached_tokens for each in candidates])
        if most > self.share * candidates[0].prompt_tokens:
            candidates = [each for each in candidates if each.cached_tokens == most]
        return calmest(candidates, [each.wait + each.uncached_tokens / each.speed for each in candidates], draw)
