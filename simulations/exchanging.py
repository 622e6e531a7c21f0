"""Gateways of a run that tell each other what they have under way, in moved time (``balancer.siblings``).

Knows when each asks the others, and how long an answer takes. Never knows what they do with it. They ask as long as somebody is
served, and begin again with whoever comes next.
"""

from collections.abc import Callable, Sequence
from typing import Final

from balancer.router import Router
from balancer.siblings.exchange import Asking, Exchange
from balancer.siblings.report import Report

ANSWER_SECONDS: Final = 0.005
"""From a question to a sibling to its answer."""


class Exchanging:
    """Mutable. ``push(when, happens, *what)`` has ``happens(when, *what)`` called at that moment."""

    def __init__(
        self,
        gateways: Sequence[Router],
        interval: float | None,
        push: Callable[..., None],
        is_busy: Callable[[], bool],
    ) -> None:
        """Every ``interval`` seconds; without one, or where there is one gateway alone, nothing is told."""
        self._siblings = [] if interval is None or len(gateways) < 2 else _exchanges(gateways, interval)
        self._push = push
        self._is_busy = is_busy
        self._asking: set[int] = set()  # gateways that ask their siblings every so often

    def begin(self, now: float) -> None:
        """Each gateway asks from now on; not all in one moment, for they began at different times."""
        for number, own in enumerate(self._siblings):
            if number not in self._asking:
                self._asking.add(number)
                offset = own.book.pause(now) * number / len(self._siblings)
                self._push(now + offset, self._ask, number)

    def _ask(self, now: float, number: int) -> None:
        own = self._siblings[number]
        own.refresh(now)
        for address in own.book.addresses:
            self._push(now + ANSWER_SECONDS / 2, self._tell, own, own.asking(address, now))
        if self._is_busy():
            self._push(now + own.book.pause(now), self._ask, number)
        else:
            self._asking.discard(number)

    def _tell(self, now: float, asker: Exchange, asked: Asking) -> None:
        report = self._siblings[int(asked.address)].report(now, asked.after)
        self._push(now + ANSWER_SECONDS / 2, self._hear, asker, asked, report)

    def _hear(self, now: float, asker: Exchange, asked: Asking, report: Report) -> None:
        asker.heard(asked, report, now)


def _exchanges(gateways: Sequence[Router], interval: float) -> list[Exchange]:
    names = [str(number) for number in range(len(gateways))]
    made = [
        Exchange(gateway.fleet, gateway.sessions, name, interval) for gateway, name in zip(gateways, names, strict=True)
    ]
    for each in made:
        each.book.set(name for name in names if name != each.book.own)
    return made
