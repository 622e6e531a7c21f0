"""The replicas there are, whether each can be used, and what has been sent to it.

Knows replicas, their status, the work they owe, and until when one wants a rest (seconds, the caller's clock). Never knows
prompts, caches or how a status was found out. Between calls: ``in_flight``, ``waiting``, ``queued_tokens`` and
``active_tokens`` of a replica are the sums over its open leases; nothing but a lease changes them, least of all a health
check.
"""

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from balancer.core import PREFILL_SPEED, Replica
from indexer.index import ReplicaId

MEMORY_SECONDS: Final = 60.0
"""How long what has been sent counts for how busy the fleet is."""


class Status(StrEnum):
    """Whether new requests may go to a replica."""

    READY = "ready"
    DRAINING = "draining"  # ends what it has, and gets nothing new
    EJECTED = "ejected"  # answers badly, and is left out while others can serve (``balancer.ejection``)
    ASLEEP = "asleep"  # answers, but computes nothing until it is woken up
    LOST = "lost"  # does not answer


class Drain(StrEnum):
    """Why a replica drains."""

    ASKED = "asked"  # by an operator, until asked for the contrary
    LEAVING = "leaving"  # it is no longer among those that were found; removed when it has nothing to do


class LiveReplica:
    """One replica's live state. Changes with leases and with news. ``health`` is what probes say."""

    __slots__ = (
        "active_tokens",
        "clear_at",
        "drain",
        "health",
        "in_flight",
        "last_lease",
        "queue",
        "queued_tokens",
        "replica",
        "rests_until",
        "room_tokens",
        "speed",
    )

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.health = Status.READY
        self.drain: Drain | None = None
        self.rests_until = -math.inf
        self.in_flight = 0
        self.queued_tokens = 0
        self.last_lease = 0
        self.queue: dict[
            int, None
        ] = {}  # leases that wait for their first output, in the order in which they were sent
        self.active_tokens = 0
        self.room_tokens = 0
        self.speed = PREFILL_SPEED
        self.clear_at = -math.inf

    @property
    def waiting(self) -> int:
        """Requests that have not answered yet."""
        return len(self.queue)

    def wait(self, now: float) -> float:
        """Seconds until all that was sent there is computed, at its speed and one after the other."""
        return max(0.0, self.clear_at - now)

    @property
    def status(self) -> Status:
        """What probes say, unless it drains."""
        return self.health if self.drain is None else Status.DRAINING

    def __repr__(self) -> str:
        return f"<{self.replica.id} {self.status}, {self.in_flight} in flight, {self.queued_tokens} queued tokens>"

    def is_available(self) -> bool:
        """Whether a new request may be sent there."""
        return self.health is Status.READY and self.drain is None


class _Lease(msgspec.Struct):
    live: LiveReplica
    queued_tokens: int
    tokens: int
    seconds: float
    sent_at: float
    is_waiting: bool = True


class Fleet:
    """All replicas and all open leases. Changes with every call but the questions."""

    def __init__(self) -> None:
        self._live: dict[ReplicaId, LiveReplica] = {}
        self._serving: dict[str, list[LiveReplica]] = {}  # by model, as long as no replica comes, changes or goes
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 1
        self._work = _Decaying()
        self._able: int | None = None  # how many are available, as long as nothing changes

    def __repr__(self) -> str:
        counts = [f"{n} {status}" for status in Status if (n := sum(r.status is status for r in self))]
        return f"<Fleet {', '.join(counts) or 'empty'}, {len(self._leases)} leases>"

    def __iter__(self) -> Iterator[LiveReplica]:
        return iter(self._live.values())

    def __len__(self) -> int:
        return len(self._live)

    def get(self, replica: ReplicaId) -> LiveReplica | None:
        return self._live.get(replica)

    def put(self, replica: Replica) -> None:
        """Add a replica, or replace what is known of it; work under way and status stay."""
        self._serving.clear()
        self._able = None
        live = self._live.get(replica.id)
        if live is None:
            self._live[replica.id] = LiveReplica(replica)
        else:
            live.replica = replica

    def remove(self, replica: ReplicaId) -> None:
        """Take a replica out; its open leases may still be released."""
        self._serving.clear()
        self._able = None
        self._live.pop(replica, None)

    def set_status(self, replica: ReplicaId, status: Status) -> None:
        live = self._live.get(replica)
        if live is not None:
            live.health = status
            self._able = None

    def drain(self, replica: ReplicaId, why: Drain | None) -> None:
        """Nothing new is sent there; None ends that."""
        live = self._live.get(replica)
        if live is not None:
            live.drain = why
            self._able = None

    def departed(self) -> list[ReplicaId]:
        """Those that are leaving and have nothing left to do."""
        return [live.replica.id for live in self if live.drain is Drain.LEAVING and not live.in_flight]

    def serving(self, model: str) -> list[LiveReplica]:
        """Every replica of this model, available or not; only to be read."""
        found = self._serving.get(model)
        if found is None:
            found = [live for live in self._live.values() if model in live.replica.models]
            if found:  # clients choose the names of those that there are not
                self._serving[model] = found
        return found

    def behind(self, endpoint: str) -> list[LiveReplica]:
        """The replicas of one endpoint, available or not."""
        return [live for live in self._live.values() if live.replica.endpoint == endpoint]

    def models(self) -> list[str]:
        """The names served by any replica, in a stable order."""
        return sorted({model for live in self for model in live.replica.models})

    @property
    def open_leases(self) -> int:
        return len(self._leases)

    def acquire(self, live: LiveReplica, uncached_tokens: int, tokens: int, now: float) -> int:
        """Note that a request of ``tokens`` is sent there, with so many to compute; returns the lease."""
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        seconds = uncached_tokens / live.speed
        live.in_flight += 1
        live.queue[lease] = None
        live.last_lease = lease
        live.queued_tokens += uncached_tokens
        live.active_tokens += tokens
        live.clear_at = max(live.clear_at, now) + seconds
        self._work.add(seconds, now)
        self._leases[lease] = _Lease(live, uncached_tokens, tokens, seconds, now)
        return lease

    def started(self, lease: int, now: float) -> None:
        """The request's prompt has been computed: its first output has come."""
        held = self._leases.get(lease)
        if held is not None and held.is_waiting:
            self._answered(lease, held)
            # What was expected of the time until now was right or wrong: from here on only what is left counts.
            held.live.clear_at = now + held.live.queued_tokens / held.live.speed

    def release(self, lease: int, now: float) -> LiveReplica:
        """The request has ended.

        Raises:
            KeyError: the lease is not open: it was released twice, or never given.
        """
        held = self._leases.pop(lease)
        live = held.live
        if held.is_waiting:  # nothing of it was computed, as far as anybody knows
            is_first = next(iter(live.queue)) == lease
            left = live.clear_at - held.queued_tokens / live.speed
            self._work.take_back(held.seconds, held.sent_at)
            self._answered(lease, held)
            # The time that has passed was spent on the first one: with that, it is lost, and the next one begins now.
            live.clear_at = now + live.queued_tokens / live.speed if is_first else max(now, left)
        live.in_flight -= 1
        live.active_tokens -= held.tokens
        return live

    def utilisation(self, now: float) -> float:
        """How much of the time of those that are available the prompts of the last minute take; above 1 they pile up."""
        if self._able is None:
            self._able = sum([live.is_available() for live in self])
        return self._work.rate(now) / max(1, self._able)

    @staticmethod
    def _answered(lease: int, held: _Lease) -> None:
        live = held.live
        live.queued_tokens -= held.queued_tokens
        del live.queue[lease]
        held.queued_tokens, held.is_waiting = 0, False


class _Decaying:
    """How much has come a second lately: what came ``MEMORY_SECONDS`` ago counts a third of what comes now."""

    __slots__ = ("_at", "_sum")

    def __init__(self) -> None:
        self._at = -math.inf
        self._sum = 0.0

    def add(self, amount: float, now: float) -> None:
        self._sum = self._left(now) + amount
        self._at = max(self._at, now)

    def take_back(self, amount: float, when: float) -> None:
        """What was added at ``when`` does not count."""
        self._sum = max(0.0, self._sum - amount * math.exp(min(0.0, when - self._at) / MEMORY_SECONDS))

    def rate(self, now: float) -> float:
        return self._left(now) / MEMORY_SECONDS

    def _left(self, now: float) -> float:
        return self._sum * math.exp(min(0.0, self._at - now) / MEMORY_SECONDS) if self._sum else 0.0
