"""One gateway's side of the exchange: its report to siblings, and what theirs are to its own router.

Knows the fleet, the conversations and the book, and the moments at which somebody is asked and answers. Never knows how: the
gateway asks over HTTP (``balancer.siblings.watching``), the simulator within one process. Leases and limits stay what they are:
others only add to what policies see of a replica.
"""

import math
from typing import Final

import msgspec

from balancer.fleet import Fleet
from balancer.sessions import Sessions
from balancer.siblings.book import MOST_A_SECOND, Book, Loads
from balancer.siblings.report import NOTHING, After, Report
from indexer.index import ReplicaId

SUM_SECONDS: Final = 2.5e-6
"""What summing up costs for each replica and sibling, about (measured: 2.4 microseconds)."""

MOST_OF_TIME: Final = 0.05
"""How much of a gateway's time may go into that: with 1,000 replicas and 10 siblings, it is done twice a second."""


class Asking(msgspec.Struct, frozen=True):
    """A question under way: when it was asked, and how this gateway itself stood then."""

    address: str
    at: float
    own: Loads
    mark: int
    after: After


class Exchange:
    """What a router and its siblings tell each other. Call ``refresh`` every so often: what has been told gets older."""

    def __init__(self, fleet: Fleet, sessions: Sessions, own: str, interval: float) -> None:
        """``own`` is this gateway's name, unlike any other's; each sibling is asked every ``interval`` seconds."""
        self.book = Book(own, interval)
        self._fleet = fleet
        self._sessions = sessions
        self._sequence = 0
        self._has_others = False
        self._summed_at = -math.inf

    def report(self, now: float, after: After = NOTHING) -> Report:
        """What this gateway has under way, for an asker that has had so much."""
        self._sequence += 1
        mark = after.mark if after.gateway == self.book.own else 0
        return Report(
            gateway=self.book.own,
            sequence=self._sequence,
            replicas={str(name): load for name, load in self._fleet.loads().items()},
            models=self._fleet.work(now),
            mark=self._sessions.mark,
            sessions={each: str(at) for each, at in self._sessions.since(mark).items()},
        )

    def asking(self, address: str, now: float) -> Asking:
        """Whoever is there is asked now; give it to ``heard`` with the answer."""
        return Asking(address, now, self._fleet.loads(), self._sessions.mark, self.book.after(address))

    def heard(self, asked: Asking, report: Report, now: float) -> str | None:
        """The answer; what people should know of it."""
        heard = self.book.heard(asked.address, report, asked.own, asked.at, now)
        if heard.is_counted:
            self._fleet.others_gave(heard.grown, now)
            for session, replica in reversed(report.sessions.items()):  # so that the newest is remembered longest
                name = ReplicaId(replica)
                if self._fleet.get(name) is not None:
                    self._sessions.told(session, name, asked.mark)
            self.refresh(now)
        return heard.news

    def failed(self, asked: Asking, problem: str, result: str, now: float, *, is_gone: bool = False) -> str | None:
        """No report came, as ``Book.failed``; what people should know of it."""
        news = self.book.failed(asked.address, problem, result, is_gone=is_gone)
        if is_gone:
            self._summed_at = -math.inf
            self.refresh(now)
        return news

    def refresh(self, now: float) -> None:
        """The fleet is told what others have, as of now; of many replicas and siblings not each time."""
        pause = SUM_SECONDS * len(self._fleet) * len(self.book) / MOST_OF_TIME
        if pause > 1 / MOST_A_SECOND and now - self._summed_at < pause:
            return
        self._summed_at = now
        others, work = self.book.others(now)
        if others or work or self._has_others:
            self._has_others = bool(others or work)
            self._fleet.beside(others, work)
