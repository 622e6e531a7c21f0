"""Least load: the replica with the fewest requests under way, whatever it holds."""

from collections.abc import Sequence

import msgspec

from balancer.core import Candidate
from balancer.policies.base import lowest, policy


@policy("least_load")
class LeastLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fewest requests in flight; among those, fewest prompt tokens still to be computed; then chance."""

    def choose(self, candidates: Sequence[Candidate], draw: float) -> Candidate:
        fewest = min(candidate.in_flight for candidate in candidates)
        idlest = [candidate for candidate in candidates if candidate.in_flight == fewest]
        return lowest(idlest, lambda candidate: candidate.queued_tokens, draw)
