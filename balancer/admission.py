"""The queue in front of the fleet: who waits while every replica that could serve is saturated, and who comes next.

Knows claims, places, turns and moved time (seconds, any monotonic clock). Never knows replicas, bodies or connections: which
requests could be served now is asked of the caller. Between calls: no more wait in a class than ``max_waiting`` says, but for
those that come again after a failure; each ticket is given out once, and ends once: taken, or left.
"""

import functools
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from balancer.disaggregation.roles import Part
from balancer.errors import ConfigError, Saturated
from balancer.fairness import Shares
from indexer.index import ReplicaId

LONGEST_RETRY_AFTER: Final = 600
"""Seconds; what is estimated beyond that is no estimate."""

_PACE: Final = 64
"""Requests by which it is measured how fast a class moves."""


class Urgency(StrEnum):
    """The class of a request: its share of the turns, against those of the other classes."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @classmethod
    def of(cls, priority: int) -> "Urgency":
        """The class of a request with this ``priority`` (vLLM: lower is earlier, 0 without one)."""
        if priority == 0:
            return cls.NORMAL
        return cls.HIGH if priority < 0 else cls.LOW


class ClassWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The shares of the classes while all of them wait. None is ever left out, so none may be 0."""

    high: float = 16.0
    normal: float = 4.0
    low: float = 1.0


class AdmissionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a replica takes no more, and who waits then. Without either of the first two nobody ever waits."""

    max_in_flight: int | None = None
    """Requests at one replica at a time; with so many it is saturated."""
    max_queued_tokens: int | None = None
    """Uncached prompt tokens that one replica has still to compute; with so many it is saturated."""
    max_waiting: int = 1_000
    """Requests of one class that wait at most; each is held in memory with its body."""
    max_wait_seconds: float = 30.0
    weights: ClassWeights = ClassWeights()
    tenant_weights: dict[str, float] = {}
    """Shares of tenants, within a class; 1 for those that are not named."""

    @property
    def is_on(self) -> bool:
        return self.max_in_flight is not None or self.max_queued_tokens is not None

    def saturates(self, in_flight: int, queued_tokens: int) -> bool:
        """Whether a replica with so much to do takes no more."""
        return (self.max_in_flight is not None and in_flight >= self.max_in_flight) or (
            self.max_queued_tokens is not None and queued_tokens >= self.max_queued_tokens
        )


def check(settings: AdmissionSettings) -> None:
    """Raise ``ConfigError`` for what cannot be used."""
    weights = {f"weights.{name}": value for name, value in msgspec.structs.asdict(settings.weights).items()}
    weights |= {f"tenant_weights.{tenant}": weight for tenant, weight in settings.tenant_weights.items()}
    for name, value in {
        "max_in_flight": settings.max_in_flight,
        "max_queued_tokens": settings.max_queued_tokens,
        "max_waiting": settings.max_waiting,
        "max_wait_seconds": settings.max_wait_seconds,
        **weights,
    }.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"admission.{name}: {value} cannot be used; give a number above 0")


class Claim(msgspec.Struct, frozen=True):
    """On whose behalf a request asks for a place; it waits until ``deadline`` at most, and no longer than the settings say."""

    tenant: str = ""
    urgency: Urgency = Urgency.NORMAL
    deadline: float = math.inf


ANYONE: Final = Claim()


class Pool(msgspec.Struct, frozen=True):
    """The replicas that could serve a part of a request: those of a model, but for some."""

    model: str
    excluded: frozenset[ReplicaId] = frozenset()
    part: Part = Part.WHOLE


class Ticket(msgspec.Struct, frozen=True):
    """One request's place; ``ahead`` is how many of its class were waiting when it came, ``entered`` when that was."""

    number: int
    claim: Claim
    pool: Pool
    entered: float
    ahead: int


class Admission:
    """The requests that wait. Changes with every call but the questions."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        weights = msgspec.structs.asdict(settings.weights)
        self._classes: Shares[Urgency] = Shares(lambda urgency: float(weights[urgency]))
        self._lines = {urgency: _Line(settings) for urgency in Urgency}
        self._last = 0

    def __repr__(self) -> str:
        return f"<Admission {', '.join(f'{self.waiting(each)} {each}' for each in Urgency)}>"

    def __len__(self) -> int:
        return sum(line.count for line in self._lines.values())

    def waiting(self, urgency: Urgency) -> int:
        """How many of this class wait."""
        return self._lines[urgency].count

    def enter(self, claim: Claim, pool: Pool, now: float, *, comes_again: bool = False) -> tuple[Ticket, Ticket | None]:
        """A place for a request, and whose place that was: a full class puts out the newest of the tenant with the most in it.

        One that ``comes_again`` was taken before, and where it was sent has failed: it is its tenant's next, and finds a place.

        Raises:
            Saturated: the class is full, and this tenant has its share of it.
        """
        line, displaced = self._lines[claim.urgency], None
        if line.count >= self._settings.max_waiting and not comes_again:
            displaced = line.newest_of_longest(claim.tenant)
            if displaced is None:
                raise Saturated(
                    f"every replica of '{pool.model}' is busy, and {line.count:,} requests wait for one already "
                    "(admission.max_waiting)",
                    retry_after=self.retry_after(claim.urgency, now),
                )
            self.leave(displaced)
        self._last += 1
        ticket = Ticket(self._last, claim, pool, now, line.count)
        if not line.count:
            self._classes.join(claim.urgency)
        line.put(ticket, is_next=comes_again)
        return ticket, displaced

    def take(self, fits: Callable[[Pool], bool], now: float) -> Ticket | None:
        """The next request of those that a replica could serve now; it waits no longer, and is to be charged."""
        fits = functools.cache(fits)
        for urgency in self._classes:
            ticket = self._lines[urgency].first(fits)
            if ticket is not None:
                self.leave(ticket)
                self._lines[urgency].pace.moved(now)
                self._classes.turn(urgency)
                self._lines[urgency].tenants.turn(ticket.claim.tenant)
                return ticket
        return None

    def leave(self, ticket: Ticket) -> None:
        """The request waits no longer. One that did not wait changes nothing."""
        line = self._lines[ticket.claim.urgency]
        if line.remove(ticket) and not line.count:
            self._classes.leave(ticket.claim.urgency)

    def charge(self, claim: Claim, tokens: float) -> None:
        """So many tokens have been, or will be, computed for a request that was taken; what needed no wait is nobody's loss."""
        self._classes.charge(claim.urgency, tokens)
        self._lines[claim.urgency].tenants.charge(claim.tenant, tokens)

    def give_back(self, claim: Claim, tokens: float) -> None:
        """So many that were charged were not computed."""
        self._classes.give_back(claim.urgency, tokens)
        self._lines[claim.urgency].tenants.give_back(claim.tenant, tokens)

    def retry_after(self, urgency: Urgency, now: float) -> int:
        """Whole seconds in which those that wait now will have been served, as fast as it goes at present."""
        line = self._lines[urgency]
        seconds = line.pace.seconds_for(line.count + 1, now)
        if seconds is None:  # nobody has been served since the first one came
            seconds = self._settings.max_wait_seconds
        return max(1, min(LONGEST_RETRY_AFTER, math.ceil(seconds)))


class _Line:
    """Those of one class, by tenant."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._weights = settings.tenant_weights
        self.tenants: Shares[str] = Shares(self._weight)
        self._waiting: dict[str, OrderedDict[int, Ticket]] = {}
        self.count = 0
        self.pace = _Pace()

    def put(self, ticket: Ticket, *, is_next: bool) -> None:
        tenant = ticket.claim.tenant
        if not self.count:
            self.pace.begin(ticket.entered)
        if tenant not in self._waiting:
            self._waiting[tenant] = OrderedDict()
            self.tenants.join(tenant)
        self._waiting[tenant][ticket.number] = ticket
        if is_next:
            self._waiting[tenant].move_to_end(ticket.number, last=False)
        self.count += 1

    def remove(self, ticket: Ticket) -> bool:
        tenant = ticket.claim.tenant
        own = self._waiting.get(tenant)
        if own is None or own.pop(ticket.number, None) is None:
            return False
        if not own:
            del self._waiting[tenant]
            self.tenants.leave(tenant)
        self.count -= 1
        return True

    def first(self, fits: Callable[[Pool], bool]) -> Ticket | None:
        for tenant in self.tenants:
            for ticket in self._waiting[tenant].values():
                if fits(ticket.pool):
                    return ticket
        return None

    def newest_of_longest(self, newcomer: str) -> Ticket | None:
        """The ticket that has to make room; None when the newcomer's own tenant would then have the most for its weight."""
        if not self._waiting:
            return None
        longest = max(self._waiting, key=self._length)
        if self._length(longest) <= self._length(newcomer) + 1 / self._weight(newcomer):
            return None
        return self._waiting[longest][next(reversed(self._waiting[longest]))]

    def _length(self, tenant: str) -> float:
        return len(self._waiting.get(tenant, ())) / self._weight(tenant)

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)


class _Pace:
    """How fast a line moves, since its first one came."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_PACE)

    def begin(self, now: float) -> None:
        self._times.clear()
        self._times.append(now)

    def moved(self, now: float) -> None:
        self._times.append(now)

    def seconds_for(self, count: int, now: float) -> float | None:
        moves = len(self._times) - 1
        return count * (now - self._times[0]) / moves if moves > 0 else None
