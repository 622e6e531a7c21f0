"""Consistent hashing: what begins alike goes to the same replica, whatever is cached there.

Source of the bound: Mirrokni, Thorup, Zadimoghaddam, Consistent Hashing with Bounded Loads, SODA 2018. The hash is rendezvous
hashing (``balancer.leaning``), so a replica that comes or goes moves its own requests only.
"""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec

from balancer import leaning
from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import lowest, policy


@policy("consistent_hash")
class ConsistentHash(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the conversation (``by = "session"``) or the first ``prefix_tokens`` of the prompt (``by = "prefix"``) lean to
    most.

    With a ``load_factor`` nobody gets more requests in flight than that many times the mean, rounded up (by share): the next
    best is taken. Of what neither is known, the fewest in flight decide.
    """

    by: Literal["session", "prefix"] = "prefix"
    prefix_tokens: Annotated[int, msgspec.Meta(ge=1)] = 2048
    load_factor: Annotated[float, msgspec.Meta(ge=1)] | None = None
    reads_prompt: ClassVar[bool] = True

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        name = asked.session if self.by == "session" else asked.beginning(self.prefix_tokens)
        if not name:
            return lowest(candidates, lambda each: each.in_flight / each.share, draw)
        if self.load_factor is not None:
            mean = (sum([each.in_flight for each in candidates]) + 1) / len(candidates)
            most = math.ceil(self.load_factor * mean)
            candidates = [each for each in candidates if each.in_flight / each.share < most] or candidates
        mixed = leaning.mixed(name)
        return max(candidates, key=lambda each: leaning.lean(mixed, each.replica))
