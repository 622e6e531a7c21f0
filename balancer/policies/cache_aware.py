"""Cache-aware: the replica that has the fewest tokens to compute before it can answer this request."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import lowest, policy


@policy("cache_aware")
class CacheAware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lowest ``uncached + (queue_weight * queued + request_weight * in flight) / share``; ties by where
    the prompt leans, else by chance.

    The sum is the prefill work between this request and its first token, in tokens: its own and that of the requests
    before it. Of the cached tokens of a replica whose cache is known as partial or blind, the share ``doubt`` is not believed.
    ``request_weight`` stands for what a running decode takes from each step; it also spreads requests that
    have nothing to compute, so that one warm replica does not get all of them.
    """

    queue_weight: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    request_weight: Annotated[float, msgspec.Meta(ge=0)] = 16.0
    doubt: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        return lowest(candidates, self._cost, draw)

    def costs(self, candidates: Sequence[Candidate], asked: Asked = NOTHING_ASKED, /) -> list[float]:
        return [self._cost(candidate) for candidate in candidates]

    def _cost(self, candidate: Candidate) -> float:
        believed: float = candidate.cached_tokens
        if believed and not candidate.knowledge.is_promise:
            believed *= 1 - self.doubt
        return (
            candidate.prompt_tokens
            - believed
            + (self.queue_weight * candidate.queued_tokens + self.request_weight * candidate.in_flight)
            / candidate.share
        )
