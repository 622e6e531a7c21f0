"""Predicted time to first token: the replica that will answer soonest, with a price on what others pay for it.

Of each replica, in seconds, the lowest wins; of equals the one with the fewest requests in flight::

    own   = computed / speed                                      what this prompt takes there, but for what is loaded
    price = 1 / (1 - utilisation), at most max_price              work becomes waiting for those who come later
          + passed                                                each of those it would pass waits for it
          + eviction * again / (1 - avoidable)                    what it pushes out is computed again, unless it was old
    cost  = (wait + load + price * own + others + memory + adapter) / share - trial - session

    again     = reuse * exp(-turnover / eviction_seconds)         of what is reused at all; the lowest of all where nobody knows
    avoidable = again - the lowest again of all, at most 0.9: what is computed again pushes out again, and so on, for as long as
                it goes where that happens although it need not; a series of which this is the sum
    others  = (request_tokens + context_share * the tokens of its prompt) / speed for each request in flight but one
    memory  = memory_seconds for 1,000 tokens that would not fit into the cache beside what runs and waits there
    trial   = trial_seconds for one that was given nothing while trial_after times as many requests as there are replicas came;
              of prompts that go on where an earlier one ended 0
    session = session_seconds where the conversation's last request went: nobody moves for less
    adapter = adapter_seconds where the LoRA adapter has to be loaded first

Speeds, waits and turnovers are learned (``balancer.speeds``, ``balancer.fleet``); nothing has to be set. Requests that wait for
the same replica go in the order of ``own + ageing * arrival``: shortest first, but nobody is passed for ever.

Sources: minimising wait plus own prefill is Mooncake's rule (FAST 2025, algorithm 1); a price above 1, blocks of requests under
way and shortest-first with ageing were found on traces (docs/policies.md).
"""

from collections.abc import Sequence
from math import exp
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from balancer.core import DEFAULT_FEED, NOTHING_ASKED, Asked, Candidate, Feed
from balancer.policies.base import calmest, policy

_MOST: Final = 1e9
"""Of any setting: what is endless, times nothing, is no number."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]


@policy("predicted_ttft")
class PredictedTtft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rule above.

    Attributes:
        price: in place of ``1 / (1 - utilisation)``.
        max_price: the most that utilisation makes of it.
        eviction, eviction_seconds: what pushing out costs, and how old unused blocks are when a third of that is left.
        request_tokens: what another request in flight counts as: it takes a part of every step, and spreads requests that have
            nothing to compute, so that a hot prefix is copied before its holder is the slowest. One does not count: it may
            have ended, and nobody is to move for it.
        context_share: what each token of its prompt counts as besides: every step reads all of it, so that two requests with
            100,000 tokens are more to do than six with 100.
        memory_seconds, adapter_seconds: as above.
        session_seconds: as above; what a conversation has there that nobody can count is worth something, and most come back.
        trial_seconds, trial_after: what a request may lose so that a replica that nobody uses is tried, and fills: one that is
            new, or was slow, would not be where the others can do all of the work. Conversations stay where they are: what they
            would take along is nobody else's.
        doubt: of what a partial or blind replica is thought to hold, the share that is not believed.
        counts_expected: blocks of requests that were sent somewhere and are not computed yet count as held there; without it,
            siblings that come at once are scattered.
        ageing: seconds by which a request passes others for each second that it came before them; ``"off"`` holds none,
            and they go as they came.
        feed_tokens, feed_seconds, small_tokens: a replica that has more than this to do, in uncached tokens and in seconds, is
            sent nothing more until it has less, but for requests of at most ``small_tokens`` uncached ones.
    """

    price: Seconds | None = None
    max_price: Annotated[float, msgspec.Meta(ge=1, le=_MOST)] = 100.0
    eviction: Annotated[float, msgspec.Meta(ge=0, le=_MOST)] = 1.0
    eviction_seconds: Annotated[float, msgspec.Meta(gt=0, le=_MOST)] = 300.0
    request_tokens: Annotated[float, msgspec.Meta(ge=0, le=_MOST)] = 100.0
    context_share: Annotated[float, msgspec.Meta(ge=0, le=_MOST)] = 0.01
    memory_seconds: Seconds = 0.05
    adapter_seconds: Seconds = 0.2
    session_seconds: Seconds = 0.05
    trial_seconds: Seconds = 0.2
    trial_after: Annotated[int, msgspec.Meta(ge=0)] = 5
    doubt: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    counts_expected: bool = True
    ageing: Seconds | Literal["off"] = 0.1
    feed_tokens: Annotated[int, msgspec.Meta(ge=0)] = DEFAULT_FEED.tokens
    feed_seconds: Seconds = DEFAULT_FEED.seconds
    small_tokens: Annotated[int, msgspec.Meta(ge=0)] = DEFAULT_FEED.small

    cost_unit: ClassVar[str] = "s"

    @property
    def feed(self) -> Feed:
        """What keeps a replica busy."""
        return Feed(tokens=self.feed_tokens, seconds=self.feed_seconds, small=self.small_tokens)

    def rank(self, seconds: float, now: float, /) -> float | None:
        return None if self.ageing == "off" else seconds + self.ageing * now

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        return calmest(candidates, self.costs(candidates, asked), draw)

    def costs(self, candidates: Sequence[Candidate], asked: Asked = NOTHING_ASKED, /) -> list[float]:
        price, others, contexts = self._price(asked), self.request_tokens, self.context_share
        eviction, lifetime = self.eviction, self.eviction_seconds
        reuse = asked.reuse
        again = [reuse * exp(-each.turnover / lifetime) if each.turnover < _FOR_EVER else 0.0 for each in candidates]
        least = min(again)
        known = [pushed for each, pushed in zip(candidates, again, strict=True) if each.room_tokens]
        if len(known) < len(again):
            least = min(known, default=0.0)
            again = [pushed if each.room_tokens else least for each, pushed in zip(candidates, again, strict=True)]
        trial, unused = 0.0 if asked.goes_on else self.trial_seconds, self.trial_after * len(candidates)
        costs = []
        for each, pushed in zip(candidates, again, strict=True):
            uncached: float = each.prompt_tokens - each.cached_tokens - each.load_tokens
            if each.cached_tokens and not each.knowledge.is_promise:
                uncached += self.doubt * each.cached_tokens
            factor = price + each.passed
            if pushed:
                needed = 1 - pushed + least  # without what is avoidable
                factor += eviction * pushed / (needed if needed > _LEAST_NEEDED else _LEAST_NEEDED)
            work = factor * uncached
            if each.in_flight > 1:
                work += (others + contexts * each.active_tokens / each.in_flight) * (each.in_flight - 1)
            cost = each.wait + each.load_seconds + work / each.speed
            if each.usage:
                lacking = each.prompt_tokens + each.queued_tokens - (1 - each.usage) * each.room_tokens
                if lacking > 0:
                    cost += self.memory_seconds * 1e-3 * lacking
            if not each.has_adapter:
                cost += self.adapter_seconds
            cost /= each.share
            if each.has_session:
                cost -= self.session_seconds
            costs.append(cost if each.skipped < unused else cost - trial)
        return costs

    def _price(self, asked: Asked) -> float:
        if self.price is not None:
            return self.price
        idle = 1 - asked.utilisation
        return min(self.max_price, 1 / idle) if idle > 0 else self.max_price


_FOR_EVER: Final = 1e9
"""Seconds."""

_LEAST_NEEDED: Final = 0.1
"""Ten times the price where a cache is emptied in no time, and not more: not all that is pushed out is asked for again."""
