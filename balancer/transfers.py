"""How long it takes to have a prompt computed by one replica for another one, against computing it where it is answered.

Knows how fast replicas compute, what is sent to them, and links and weights (``balancer.economics``). Never knows the policy or
what lies where; time is an argument (seconds, any monotonic clock). A replica receives one prompt after the other, as they were
sent: how long a transfer really takes nobody tells, so it is what was expected.

Seconds of a request are counted until its first token. Where a replica computes a prompt beside answers, these come to a halt
in the meantime: each of them loses ``answer_weight`` of those seconds, which is why fleets split at all.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from balancer.core import Candidate
from balancer.disaggregation.choosing import Worth
from balancer.disaggregation.estimate import Estimate
from balancer.economics.economy import Economy
from balancer.economics.shape import CacheShape
from balancer.fleet import LiveReplica
from indexer.index import ReplicaId

NO_ESTIMATES: Final[Mapping[ReplicaId, Estimate]] = {}

ANSWER_WEIGHT: Final = 1.0
"""A second that an answer loses counts as much as a second until the first token."""


class Transfers:
    """Changes with ``sent`` and ``forget``."""

    def __init__(self, economy: Economy, answer_weight: float = ANSWER_WEIGHT) -> None:
        self._economy = economy
        self._answer_weight = answer_weight
        self._busy_until: dict[ReplicaId, float] = {}

    def __repr__(self) -> str:
        return f"<Transfers {self._economy!r}, {len(self._busy_until)} replicas>"

    @property
    def knows_any(self) -> bool:
        """Whether any link from one replica to another is known."""
        return self._economy.has_transfers

    def knows(self, live: LiveReplica) -> bool:
        """Whether it is known what prompts weigh that this replica is sent."""
        return self._shape(live) is not None

    def estimate(
        self, live: LiveReplica, candidate: Candidate, prefill: LiveReplica, chosen: Candidate, now: float
    ) -> Estimate | None:
        """Both ways of a request, at a decode replica and with the prefill replica that would compute its prompt.

        ``candidate`` and ``chosen`` are the two as a policy sees them. None where the link between them or the model's weight
        is not known.
        """
        shape, link = self._shape(live), self._economy.transfer(prefill.replica.endpoint, live.replica.endpoint)
        if shape is None or link is None:
            return None
        length, wait = candidate.prompt_tokens, candidate.wait
        computes, alone = _compute(prefill, chosen), _compute(live, candidate)
        there = chosen.wait + chosen.load_seconds + computes
        ready = max(there, wait)
        takes = link.seconds(shape.moved(candidate.cached_tokens, length, length))
        begins = max(ready, self._busy_until.get(live.replica.id, 0.0) - now)
        last = live.prefill.seconds(1, length, live.answering)
        return Estimate(
            alone=wait + candidate.load_seconds + alone + self._lost(live, alone),
            split=begins + takes + last + self._lost(prefill, computes),
            transfer_seconds=takes,
            prefill_seconds=there,
            delay=begins + takes - wait,
        )

    def priced(self, candidate: Candidate, estimate: Estimate | None, worth: Worth) -> Candidate:
        """The candidate as a policy is to see it: of a request that would be split there, nothing is computed there.

        What it lacks comes as a load does, that takes as long as the prompt is awaited behind what the replica has to do.
        """
        if estimate is None or not worth(candidate, estimate):
            return candidate
        lacks = candidate.uncached_tokens
        return msgspec.structs.replace(candidate, load_tokens=lacks, load_seconds=estimate.delay)

    def sent(self, replica: ReplicaId, estimate: Estimate, now: float) -> None:
        """The replica is to receive a prompt of which this was expected."""
        self._busy_until[replica] = max(now, self._busy_until.get(replica, 0.0)) + estimate.transfer_seconds

    def forget(self, replica: ReplicaId) -> None:
        """It is gone."""
        self._busy_until.pop(replica, None)

    def _shape(self, live: LiveReplica) -> CacheShape | None:
        return self._economy.shape((*live.replica.base_models, live.replica.root or ""))

    def _lost(self, live: LiveReplica, seconds: float) -> float:
        """What the answers under way there lose while a prompt is computed for so long."""
        return self._answer_weight * live.answering * seconds


def _compute(live: LiveReplica, candidate: Candidate) -> float:
    """Seconds for what is neither there nor loaded; the last token is always computed."""
    tokens = max(1, candidate.computed_tokens)
    return live.prefill.seconds(tokens, candidate.prompt_tokens - tokens / 2, live.answering)
