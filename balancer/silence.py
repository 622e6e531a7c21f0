"""Replicas that compute and tell nothing of it: the fault that nobody notices, because every request succeeds.

Knows how many requests a replica has answered that must have filled a block, and whether any event has come since. Never knows
sockets: why it is silent is guessed from how its subscription stands, in words.
"""

from collections.abc import Sequence
from typing import Final

from balancer.core import Decision, Truth
from indexer.index import ReplicaId

SILENT_AFTER: Final = 50
"""Requests in a row, each with a block that was not cached, before it is news that no event has come."""


class Silence:
    """Counts for each replica. Changes with every call but the questions."""

    def __init__(self) -> None:
        self._unheard: dict[ReplicaId, int] = {}
        self._open: dict[int, Decision] = {}  # leases of requests that must fill a block

    def heard(self, replica: ReplicaId) -> None:
        """A batch of its events has come."""
        self._unheard.pop(replica, None)

    def forget(self, replica: ReplicaId) -> None:
        """The replica is gone."""
        self._unheard.pop(replica, None)

    def unheard(self, replica: ReplicaId) -> int:
        """Requests that must have filled a block since the last event."""
        return self._unheard.get(replica, 0)

    def sent(self, decision: Decision, prompt_lengths: Sequence[int], block_size: int) -> None:
        """A request with prompts of so many tokens goes to a replica that is subscribed to."""
        new = max(prompt_lengths, default=0) - decision.cached_tokens
        if new >= block_size:
            self._open[decision.lease] = decision

    def ended(self, lease: int, *, is_good: bool, truth: Truth | None) -> ReplicaId | None:
        """It has ended; the replica, once, when it has been silent for too long."""
        decision = self._open.pop(lease, None)
        if decision is None or not is_good:
            return None
        if truth is not None and truth.cached_tokens is not None and truth.cached_tokens > decision.cached_tokens:
            return None  # it held more than we knew, and announces only what is new
        replica = decision.replica.id
        self._unheard[replica] = self.unheard(replica) + 1
        return replica if self._unheard[replica] == SILENT_AFTER else None


def likely_causes(events: str, topic: str, *, is_dialling: bool, is_connected: bool) -> str:
    """What may be wrong with the subscription to ``events``, and what to look at."""
    if not is_connected:
        who = "nothing connects to" if is_dialling else "nobody answers at"
        return f"{who} {events}: check host, port and firewall, and the endpoint in --kv-events-config"
    causes = ["the port may be another engine's (rank r is at the first port + r)"]
    if topic:
        causes.append(f"its topic may not begin with '{topic}' (replicas.topic)")
    causes.append("prefix caching or the events may be off there (--enable-prefix-caching, --kv-events-config)")
    return f"{events} is connected, but {', or '.join(causes)}"
