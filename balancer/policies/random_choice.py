"""Random: any replica, whatever it holds or does."""

from collections.abc import Sequence

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import policy


@policy("random")
class RandomChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each with the same chance, one that starts slowly with less, by its share."""

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        at = draw * sum([candidate.share for candidate in candidates])
        for candidate in candidates:
            at -= candidate.share
            if at < 0:
                return candidate
        return candidates[-1]
