"""The null policy: everyone in turn, whatever they hold. The baseline that any other policy has to beat."""

from collections.abc import Sequence

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import policy


@policy("round_robin")
class RoundRobin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The replica that was chosen longest ago; among those never chosen, by name.

    One that starts slowly is passed over as often as its share lacks.
    """

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        in_turn = [candidate for candidate in candidates if draw < candidate.share] or candidates
        return min(in_turn, key=lambda candidate: (candidate.last_lease, candidate.replica))
