"""What siblings have told, how much of it counts, and what it comes to at each replica.

Knows reports (``balancer.siblings.report``), the addresses that they came from, and moments (seconds, any monotonic clock of
this gateway's own: nobody's clock is compared with another's). Never knows how a sibling is found or asked, or what a
fleet does with the sum (``balancer.siblings.others``).

The rules:

- A report is as old as the question that it answers: it is not older than that.
- It counts in full for ``FULL_INTERVALS`` between two questions, then less, and after ``NO_INTERVALS`` nothing: what a sibling
  that is silent had under way has ended, or has been sent again through somebody else.
- Of one sibling only the newest report counts, whatever address it came from, and whichever order they came in.
- A sibling that is not there any more counts nothing, from the moment when a connection is refused, or its address is no
  sibling's any more.
- Another life of a gateway is another sibling, whose counts begin anew.
- The report of this gateway itself counts nothing.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from balancer.siblings.others import Grown, Others, OthersWork
from balancer.siblings.report import NOTHING, After, ReplicaLoad, Report
from indexer.index import ReplicaId

FULL_INTERVALS: Final = 3.0
NO_INTERVALS: Final = 10.0

ECHO: Final = 1.0
"""How much of what this gateway has done since a report is expected of a sibling that is sent as many requests."""

MOST_ECHO: Final = 3.0
"""Times as many requests as this gateway gets; of a sibling that gets more, no more is expected."""

MOST_A_SECOND: Final = 40.0
"""Questions in a second, to all siblings together."""

NEW_SECONDS: Final = 2.0
"""For so long nobody can say how much a sibling is sent."""

REPLICA_SECONDS: Final = 4e-6
"""What a question costs two gateways for each replica of the fleet, about (measured: 2.0 to 2.2 microseconds, and HTTP)."""

MOST_OF_TIME: Final = 0.04
"""How much of a gateway's time may go into questions."""

BUSY: Final = 1.0
"""Requests a second that all siblings together are sent, from which on they are asked as often as that allows."""

RATIO_SECONDS: Final = 10.0
"""What was sent so long ago counts a third of what is sent now, for who is sent how much."""

RATIO_DOUBT: Final = 5.0
"""Requests that say that both are sent the same, beside those that were counted."""

MOST_NAMES: Final = 10
"""Replicas that are named of those that only one of two gateways knows."""

Loads = Mapping[ReplicaId, ReplicaLoad]


class Heard(msgspec.Struct, frozen=True):
    """What a report has told that was not known: what its sender has sent to whom since the one before, and whether it counts.

    ``news`` is a change that people should know of.
    """

    is_counted: bool = False
    grown: tuple[Grown, ...] = ()
    news: str | None = None


_UNHEARD: Final = Heard()


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """How one address stands, for people. ``age`` is in seconds.

    Both know ``common`` replicas; ``only_there`` and ``only_here`` are some of the ``differences``, which only one of the two
    knows, for ``differs_seconds`` by now.
    """

    address: str
    gateway: str | None
    is_self: bool
    age: float | None
    weight: float
    in_flight: int
    problem: str | None
    common: int
    differences: int
    only_there: tuple[str, ...]
    only_here: tuple[str, ...]
    differs_seconds: float
    results: Mapping[str, int]


class _Sibling:
    """What is known of whoever is at one address."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self.gateway: str | None = None  # whoever it was that answered last
        self.is_self = False
        self.asked_at = -math.inf
        self.then: Loads = {}  # what this gateway had itself when it asked
        self.problem: str | None = None
        self.common = self.differences = 0
        self.only_there: tuple[str, ...] = ()
        self.only_here: tuple[str, ...] = ()
        self.differs_since: float | None = None
        self.results: Counter[str] = Counter()
        self.theirs = self.ours = 0.0  # requests lately
        self.counted_at = -math.inf
        self.rate = 0.0  # requests a second
        self.since = math.inf  # when this life of whoever is there was first heard of

    def forget(self) -> None:
        self.report = None
        self.then = {}
        self.common = self.differences = 0
        self.only_there = self.only_here = ()
        self.differs_since = None
        self.theirs = self.ours = self.rate = 0.0
        self.since = math.inf

    @property
    def echo(self) -> float:
        return ECHO * min(MOST_ECHO, (self.theirs + RATIO_DOUBT) / (self.ours + RATIO_DOUBT))


class Book:
    """Everything that siblings have told. Changes with ``set``, ``heard`` and ``failed``."""

    def __init__(self, own: str, interval: float) -> None:
        """``own`` is the name by which this gateway knows itself; ``interval`` lies between two questions, in seconds."""
        self.own = own
        self._interval = interval
        self._siblings: dict[str, _Sibling] = {}

    def __repr__(self) -> str:
        return f"<Book of {len(self._siblings)} addresses>"

    def __len__(self) -> int:
        return len(self._siblings)

    @property
    def addresses(self) -> list[str]:
        return list(self._siblings)

    def set(self, addresses: Iterable[str]) -> None:
        """These are where siblings are, this gateway itself perhaps among them; what others have told is forgotten."""
        self._siblings = {address: self._siblings.get(address) or _Sibling() for address in addresses}

    def is_self(self, address: str) -> bool:
        """Whether this gateway itself answered there."""
        sibling = self._siblings.get(address)
        return sibling is not None and sibling.is_self

    def after(self, address: str) -> After:
        """What has been had of whoever is there: ask after that."""
        sibling = self._siblings.get(address)
        report = None if sibling is None else sibling.report
        return NOTHING if report is None else After(report.gateway, report.mark)

    def heard(self, address: str, report: Report, then: Loads, asked_at: float, now: float) -> Heard:
        """The answer of whoever is there to the question of ``asked_at``, when this gateway had ``then`` itself."""
        sibling = self._siblings.get(address)
        if sibling is None:
            return _UNHEARD
        if asked_at <= sibling.asked_at or (
            sibling.report is not None
            and report.gateway == sibling.report.gateway
            and report.sequence <= sibling.report.sequence
        ):
            sibling.results["late"] += 1
            return _UNHEARD
        sibling.results["self" if report.gateway == self.own else "counted"] += 1
        is_news = sibling.problem is not None or sibling.gateway != report.gateway
        sibling.problem, sibling.gateway, sibling.asked_at = None, report.gateway, asked_at
        sibling.is_self = report.gateway == self.own
        before = sibling.report
        if sibling.is_self or before is None or before.gateway != report.gateway:
            sibling.forget()
            before = None
        if sibling.is_self:
            return Heard(news="it is this gateway itself" if is_news else None)
        grown = () if before is None else _grown(before, report)
        if before is not None:
            self._compare(sibling, sum(each.requests for each in grown), then, asked_at)
        sibling.report, sibling.then, sibling.counted_at = report, then, asked_at
        if before is None:
            sibling.since = asked_at
        _differ(sibling, report.replicas.keys(), then.keys(), now)
        news = f"tells what it has under way (gateway {report.gateway})" if is_news else None
        return Heard(is_counted=True, grown=grown, news=news)

    def failed(self, address: str, problem: str, result: str, *, is_gone: bool = False) -> str | None:
        """No report came, for this reason; with ``is_gone`` nobody is there. What people should know of it, if that is new.

        ``result`` is what it counts as.
        """
        sibling = self._siblings.get(address)
        if sibling is None:
            return None
        sibling.results[result] += 1
        is_news, sibling.problem = sibling.problem != problem, problem
        if is_gone:
            sibling.forget()
            sibling.is_self = False
        return problem if is_news else None

    def weight(self, age: float) -> float:
        """How much a report of that age counts, 0 to 1."""
        left = (NO_INTERVALS - age / self._interval) / (NO_INTERVALS - FULL_INTERVALS)
        return min(1.0, max(0.0, left))

    def pause(self, now: float) -> float:
        """Seconds from one question to a sibling to the next: sooner than set while siblings are sent anything, or are new.

        Where a conversation begins, it stays: by a load that was there half a second ago, beginnings pile up on some replicas.
        """
        counting = [each for each, _ in self._counting(now)]
        is_new = any(
            now - each.since < NEW_SECONDS and not each.is_self and each.problem is None
            for each in self._siblings.values()
        )
        if not is_new and sum(each.rate for each in counting) < BUSY:
            return self._interval
        replicas = max([len(each.then) for each in counting], default=0)
        least = max(1 / MOST_A_SECOND, REPLICA_SECONDS * replicas / MOST_OF_TIME)
        return min(self._interval, max(1, len(counting)) * least)

    def others(self, now: float) -> tuple[dict[ReplicaId, Others], dict[str, OthersWork]]:
        """What all siblings together have at each replica, and give each model."""
        sums: dict[str, list[float]] = {}
        work: dict[str, list[float]] = {}
        for sibling, weight in self._counting(now):
            assert sibling.report is not None, "it counts"
            echo = weight * sibling.echo
            for name, load in sibling.report.replicas.items():
                own = sibling.then.get(ReplicaId(name))
                if own is None:
                    continue
                total = sums.setdefault(name, [0.0] * 5)
                total[0] += weight * load.in_flight - echo * own.in_flight
                total[1] += weight * load.waiting - echo * own.waiting
                total[2] += weight * load.queued_tokens - echo * own.queued_tokens
                total[3] += weight * load.active_tokens - echo * own.active_tokens
                total[4] += echo
            for model, given in sibling.report.models.items():
                each = work.setdefault(model, [0.0])
                each[0] += weight * given.work
                each.append(weight * given.busy)
        return (
            {ReplicaId(name): Others(*total) for name, total in sums.items()},
            {model: OthersWork(each[0], tuple(each[1:])) for model, each in work.items()},
        )

    def told(self, now: float) -> list[Told]:
        """All this for people."""
        weights = {id(sibling): weight for sibling, weight in self._counting(now)}
        return [
            Told(
                address=address,
                gateway=each.gateway,
                is_self=each.is_self,
                age=None if each.report is None else now - each.asked_at,
                weight=weights.get(id(each), 0.0),
                in_flight=0 if each.report is None else sum(load.in_flight for load in each.report.replicas.values()),
                problem=each.problem,
                common=each.common,
                differences=each.differences,
                only_there=each.only_there,
                only_here=each.only_here,
                differs_seconds=0.0 if each.differs_since is None else now - each.differs_since,
                results=dict(each.results),
            )
            for address, each in self._siblings.items()
        ]

    def _counting(self, now: float) -> list[tuple[_Sibling, float]]:
        """Whose report counts, and how much; each gateway once."""
        newest: dict[str, _Sibling] = {}
        for each in self._siblings.values():
            if each.report is None:
                continue
            other = newest.get(each.report.gateway)
            if other is None or other.asked_at < each.asked_at:
                newest[each.report.gateway] = each
        found = [(each, self.weight(now - each.asked_at)) for each in newest.values()]
        return [(each, weight) for each, weight in found if weight > 0]

    def _compare(self, sibling: _Sibling, theirs: int, then: Loads, asked_at: float) -> None:
        """Both have been sent so many requests since the last report."""
        ours = sum(
            load.given - before.given
            for name, load in then.items()
            if (before := sibling.then.get(name)) is not None and load.given >= before.given
        )
        left = math.exp((sibling.counted_at - asked_at) / RATIO_SECONDS)
        lately = theirs / max(1e-3, asked_at - sibling.counted_at)
        sibling.rate = max(lately, sibling.rate + (lately - sibling.rate) * (1 - left))
        sibling.theirs = sibling.theirs * left + theirs
        sibling.ours = sibling.ours * left + ours


def _grown(before: Report, report: Report) -> tuple[Grown, ...]:
    grown = []
    for name, load in report.replicas.items():
        old = before.replicas.get(name)
        if old is not None and load.given > old.given:
            grown.append(Grown(ReplicaId(name), load.given - old.given, max(0, load.written - old.written)))
    return tuple(grown)


def _differ(sibling: _Sibling, theirs: AbstractSet[str], ours: AbstractSet[str], now: float) -> None:
    only_there, only_here = theirs - ours, ours - theirs
    sibling.common, sibling.differences = len(theirs & ours), len(only_there) + len(only_here)
    if not only_there and not only_here:
        sibling.only_there = sibling.only_here = ()
        sibling.differs_since = None
        return
    sibling.only_there = tuple(sorted(only_there)[:MOST_NAMES])
    sibling.only_here = tuple(sorted(only_here)[:MOST_NAMES])
    if sibling.differs_since is None:
        sibling.differs_since = now
