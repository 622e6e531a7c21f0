"""As the endpoint picker of llm-d scores with its precise prefix plug-in, for comparison.

Source: llm-d inference scheduler, weighted scorers precise-prefix-cache 2, queue 1, kv-cache-utilization 1: each between 0
and 1, the highest sum wins.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import calmest, policy


@policy("like_llm_d")
class LikeLlmD(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Highest ``prefix * cached share + queue * (longest queue - own) / (longest - shortest) + usage * (1 - cache in use)``."""

    prefix: Annotated[float, msgspec.Meta(ge=0)] = 2.0
    queue: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    usage: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    counts_expected: bool = False

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        return calmest(candidates, self.costs(candidates), draw)

    def costs(self, candidates: Sequence[Candidate], asked: Asked = NOTHING_ASKED, /) -> list[float]:
        queues = [each.waiting for each in candidates]
        longest, shortest = max(queues), min(queues)
        span = longest - shortest
        return [
            -(
                self.prefix * each.cached_tokens / max(1, each.prompt_tokens)
                + self.queue * ((longest - each.waiting) / span if span else 1.0)
                + self.usage * (1 - min(1.0, each.active_tokens / each.room_tokens) if each.room_tokens else 1.0)
            )
            for each in candidates
        ]
