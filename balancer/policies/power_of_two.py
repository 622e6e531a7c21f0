"""Power of two choices: of two replicas drawn at random, the one with fewer requests under way.

Source: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12 (2001).
"""

from collections.abc import Sequence

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import policy


@policy("power_of_two")
class PowerOfTwo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two different ones, each pair with the same chance; fewer in flight by share wins, the first drawn of equals."""

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        count = len(candidates)
        if count == 1:
            return candidates[0]
        pair = int(draw * count * (count - 1))
        first, other = divmod(pair, count - 1)
        one, two = candidates[first], candidates[other + (other >= first)]
        return two if two.in_flight / two.share < one.in_flight / one.share else one
