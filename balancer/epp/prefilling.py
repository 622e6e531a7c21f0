"""The replica that computes a split request's prompt, and its lease, while the sidecar of another one asks it.

Knows whether there is one. Never knows how blocks get from one to the other: that is the sidecar's. The lease ends
exactly once.
"""

import msgspec

from balancer.core import Decision, Outcome, RouteRequest
from balancer.disaggregation import bodies
from balancer.disaggregation.counts import Alone, Ending, Leg
from balancer.epp.means import Means
from balancer.errors import Contended, NoReplica, Saturated, UnknownModel
from balancer.gateway.asking import Asking
from balancer.gateway.legs import for_prefill
from balancer.gateway.placing import place
from balancer.records import Tried
from balancer.strip import members


class _Open(msgspec.Struct, frozen=True):
    decision: Decision
    noted: Tried


class Prefilling:
    """Of one request, split or not; ``find`` it at most once."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._asking: Asking
        self._open: _Open | None = None  # while its lease is

    @property
    def decision(self) -> Decision | None:
        """Who computes the prompt; None where nobody else does, or does not any more."""
        return None if self._open is None else self._open.decision

    async def find(self, asking: Asking, wanted: RouteRequest) -> bool:
        """Whether another replica can compute the prompt, and is to."""
        means, self._asking = self._means, asking
        path, reason = asking.origin.path, Alone.BODY
        if bodies.can_split(path, members(asking.asked.body), shares=means.connector.shares):
            reason = Alone.NOBODY
            try:
                chosen = await place(means.service, for_prefill(wanted, wanted.excluded), asking)
            except (NoReplica, Contended, Saturated, UnknownModel):
                pass
            else:
                self._open = _Open(chosen, means.observer.tried(asking.record, chosen))
                if await means.places.of(chosen.replica.endpoint) is not None:
                    return True
                self.end(Outcome.CANCELLED)
        means.counts.legs.alone[reason] += 1
        return False

    def end(self, outcome: Outcome) -> None:
        """The prompt has been computed, or nobody waits for it any more."""
        if self._open is None:
            return
        (ended, self._open), means = (self._open, None), self._means
        ended.noted.outcome, ended.noted.end = outcome, self._asking.record.stages.now()
        means.counts.legs.ended(Leg.PREFILL, Ending.OK if outcome is Outcome.OK else Ending.CANCELLED, None)
        means.counts.prefilled(self._asking.asked.request.model, ended.decision, outcome, None)
        means.service.release_at_once(ended.decision.lease, outcome)
