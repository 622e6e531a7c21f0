"""As SGLang's cache-aware router decides, for comparison.

Source: sglang-router 0.3.2 with its defaults. It has a tree of what it sent where, so what is expected counts as held; the tree
names one worker for the longest match, however busy it and others are that match as much.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import calmest, policy


@policy("like_sglang")
class LikeSglang(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The longest match if it is more than ``cache_threshold`` of the prompt (of equals the first by name), else the fewest
    requests in flight.

    The fewest in flight, too, while the fleet is out of balance: the busiest has more than ``balance_abs_threshold`` requests
    more than the least busy, and more than ``balance_rel_threshold`` times as many.
    """

    cache_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.3
    balance_abs_threshold: Annotated[int, msgspec.Meta(ge=0)] = 64
    balance_rel_threshold: Annotated[float, msgspec.Meta(ge=1)] = 1.5
    counts_expected: bool = True

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        flights = [each.in_flight for each in candidates]
        most, fewest = max(flights), min(flights)
        is_uneven = most - fewest > self.balance_abs_threshold and most > self.balance_rel_threshold * fewest
        longest = max([each.cached_tokens for each in candidates])
        if not is_uneven and longest > self.cache_threshold * candidates[0].prompt_tokens:
            return min([each for each in candidates if each.cached_tokens == longest], key=lambda each: each.replica)
        return calmest(candidates, flights, draw)
