"""What has come of decode legs: counted, held against what was to be, and told in the log once for each kind.

Knows the two replicas and what the second one's engine has said. Never sends anything.
"""

import logging

from balancer.core import Decision, Outcome
from balancer.disaggregation.counts import Alone, Ending, Leg, LegCounts
from balancer.disaggregation.plan import Answered
from balancer.disaggregation.proof import prove
from balancer.gateway.attempt import Attempt

log = logging.getLogger(__name__)

MAX_TOLD = 1_000
"""Different warnings that are told at most."""


class LegLedger:
    """Changes with every call."""

    def __init__(self, counts: LegCounts, *, tells_loaded: bool, chunk_tokens: int) -> None:
        """``tells_loaded`` and ``chunk_tokens`` as the connector's."""
        self._counts = counts
        self._tells_loaded = tells_loaded
        self._chunk_tokens = chunk_tokens
        self._told: set[tuple[str, ...]] = set()

    def ended(self, attempt: Attempt, decision: Decision, prefill: Decision, answered: Answered | None) -> None:
        """A decode leg has ended, however it did; ``answered`` is what the other one has said, if it has."""
        seconds = None
        if attempt.first_output_at is not None and attempt.sent_at is not None:
            seconds = attempt.first_output_at - attempt.sent_at
        self._counts.ended(Leg.DECODE, _ending(attempt), seconds)
        if attempt.has_lost_transfer:
            self._counts.alone[Alone.TRANSFER] += 1
            self.warn(
                prefill,
                f"{decision.replica.id} could not fetch what it has computed, or has failed otherwise; see its log",
            )
        elif attempt.outcome is Outcome.OK and self._tells_loaded and decision.knows_tokens:
            self._prove(attempt, decision, prefill, answered)

    def _prove(self, attempt: Attempt, decision: Decision, prefill: Decision, answered: Answered | None) -> None:
        cached = None if attempt.truth is None else attempt.truth.cached_tokens
        if cached is None:
            return
        tokens = None if answered is None else answered.prompt_tokens
        proof = prove(
            prefill.replica,
            decision.replica,
            decision.prompt_tokens,
            decision.cached_tokens,
            cached,
            tokens,
            self._chunk_tokens,
        )
        self._counts.proved(proof.expected, proof.fetched, proof.miss)
        if proof.miss is not None:
            told = (
                f"{decision.replica.id} has fetched {proof.fetched} of {proof.expected} tokens ({proof.miss}), and computed "
                "the rest again"
            )
            self.warn(prefill, told, proof.miss)

    def warn(self, decision: Decision, told: str, *kind: str) -> None:
        """Once for each replica and kind, or text."""
        which = (decision.replica.id, *(kind or (told,)))
        if which not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(which)
            log.warning("%s: %s", decision.replica.id, told)


def _ending(attempt: Attempt) -> Ending:
    if attempt.has_lost_transfer:
        return Ending.TRANSFER
    match attempt.outcome:
        case Outcome.OK:
            return Ending.OK
        case Outcome.CANCELLED:
            return Ending.CANCELLED
    return Ending.REFUSED if attempt.truth is not None and 400 <= (attempt.truth.status or 0) < 500 else Ending.FAILED
