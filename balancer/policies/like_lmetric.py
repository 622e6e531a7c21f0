"""As LMetric scores, for comparison.

Source: LMetric (Alibaba, with the Qwen-Bailian traces): new prefill tokens times batch size, the lowest product wins.
"""

from collections.abc import Sequence

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import calmest, policy


@policy("like_lmetric")
class LikeLmetric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lowest ``(queued + own uncached tokens) * (requests in flight + 1)``."""

    counts_expected: bool = False

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        return calmest(candidates, self.costs(candidates), draw)

    def costs(self, candidates: Sequence[Candidate], asked: Asked = NOTHING_ASKED, /) -> list[float]:
        return [(each.queued_tokens + each.uncached_tokens) * (each.in_flight + 1) for each in candidates]
