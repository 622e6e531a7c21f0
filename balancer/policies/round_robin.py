"""The null policy: everyone in turn, whatever they hold. The baseline that any other policy has to beat."""

from collections.abc import Sequence
from itertools import count

import msgspec

from balancer.core import Candidate
from balancer.policies.base import policy


@policy("round_robin")
class RoundRobin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes the candidates in the order of their names, one after the other."""

    _turn: "count[int]" = msgspec.field(default_factory=count, name="-")

    def choose(self, candidates: Sequence[Candidate], draw: float) -> Candidate:
        ordered = sorted(candidates, key=lambda candidate: candidate.replica)
        return ordered[next(self._turn) % len(ordered)]
