"""Least load: the replica with the fewest requests under way, whatever it holds."""

from collections.abc import Sequence
from typing import Final

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import lowest, policy

TOKEN: Final = 1e-9
"""What a queued token weighs against a request in flight: less than one request, however many there are."""


@policy("least_load")
class LeastLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fewest requests in flight by share; among those, fewest prompt tokens still to be computed; then where
    the prompt leans, or chance.
    """

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        return lowest(candidates, _cost, draw)

    def costs(self, candidates: Sequence[Candidate], asked: Asked = NOTHING_ASKED, /) -> list[float]:
        return [_cost(candidate) for candidate in candidates]


def _cost(candidate: Candidate) -> float:
    return (candidate.in_flight + TOKEN * candidate.queued_tokens) / candidate.share
