"""Predicted time to first token: the replica that will answer soonest, with a price on what it has to compute."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import calmest, policy


@policy("predicted_ttft")
class PredictedTtft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lowest ``(wait + price * uncached / speed) / share``, in seconds; of equals the fewest requests in flight.

    ``wait + uncached / speed`` is the predicted time to the first token. ``price`` is more than 1 because those who come
    after this request wait for its computation too: without a number, it is ``1 / (1 - utilisation)`` of the fleet, the
    factor by which work becomes waiting in a queue, up to ``max_price``. Of what a partial or blind replica is thought to
    hold, the share ``doubt`` is not believed. ``counts_expected``: blocks of requests that were sent somewhere and are not
    computed yet count as held there; without it, siblings that come at once are scattered.
    """

    price: Annotated[float, msgspec.Meta(ge=0)] | None = None
    max_price: Annotated[float, msgspec.Meta(ge=1)] = 10.0
    doubt: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    counts_expected: bool = True

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        return calmest(candidates, self._costs(candidates, self._price(asked)), draw)

    def costs(self, candidates: Sequence[Candidate], asked: Asked = NOTHING_ASKED, /) -> list[float]:
        return self._costs(candidates, self._price(asked))

    def _price(self, asked: Asked) -> float:
        if self.price is not None:
            return self.price
        idle = 1 - asked.utilisation
        return min(self.max_price, 1 / idle) if idle > 0 else self.max_price

    def _costs(self, candidates: Sequence[Candidate], price: float) -> list[float]:
        costs = []
        for each in candidates:
            believed: float = each.cached_tokens
            if believed and not each.knowledge.is_promise:
                believed *= 1 - self.doubt
            costs.append((each.wait + price * (each.prompt_tokens - believed) / each.speed) / each.share)
        return costs
