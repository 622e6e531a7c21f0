"""Limits as a gateway keeps them whose brain is elsewhere: the brain's while it is there, and a share of them while it is not.

Knows which permits are open, and which of them the brain knows. Each gateway has an equal share of every limit, and counts
what is done by itself all the time: so no limit ends, nor begins anew, because a brain has died. A brain that comes is told who
is at work.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from balancer.limits import NO_PERMIT, Limiter, Permit
from balancer.processes.link import Link
from balancer.processes.protocol import Charge, Enter, FromGateway, Hold, Leave, Spend
from balancer.settings import Settings
from balancer.tenants import Caller


class BrainAway(Exception):
    """Nobody will answer a call."""


class Permits:
    """Those of one gateway. Changes with every call."""

    def __init__(
        self,
        settings: Settings,
        next_call: Callable[[], int],
        call: Callable[[int, FromGateway], Awaitable[Any]],
        tell: Callable[[FromGateway], None],
        link: Callable[[], Link | None],
        clock: Callable[[], float],
    ) -> None:
        """``call`` raises ``BrainAway``, or the ``RequestError`` that is the answer; ``link`` is that to the brain of now."""
        self.clock = clock
        self._limits = settings.limits
        self._gateways = settings.server.processes
        where = f" at each of {self._gateways} gateways while the brain is away"
        self._own = Limiter(settings.limits.share(self._gateways), where)
        self._next_call = next_call
        self._call = call
        self.tell = tell
        self.link = link
        self.open: dict[int, RemotePermit] = {}

    def __repr__(self) -> str:
        return f"<Permits {len(self.open)} open>"

    async def enter(self, caller: Caller, now: float) -> Permit:
        """As ``Limiter.enter``.

        Raises:
            RateLimited: the caller has had its share.
        """
        if not self._limits.limits(caller.rates):
            return NO_PERMIT
        number, link = self._next_call(), self.link()
        enter = self._own.hold
        try:
            await self._call(number, Enter(number, caller.name, caller.tenant, caller.rates, now))
        except BrainAway:
            enter, link = self._own.enter, None
        except asyncio.CancelledError:
            self.tell(Leave(number))
            raise
        own = enter(caller.name, caller.tenant, caller.rates.share(self._gateways), now)
        permit = self.open[number] = RemotePermit(self, number, caller, own, link)
        return permit

    async def spend(self, permit: Permit, tokens: int, now: float) -> None:
        """As ``Permit.spend``.

        Raises:
            RateLimited: that is more than may be spent now.
        """
        if not isinstance(permit, RemotePermit):
            return
        if permit.is_told:
            number = self._next_call()
            with contextlib.suppress(BrainAway):
                await self._call(number, Spend(number, permit.number, tokens, now))
                permit.own.note(tokens, now)
                return
        permit.own.spend(tokens, now)

    def tell_all(self, now: float) -> None:
        """There is another brain: these are at work, and it has not let them in."""
        for permit in self.open.values():
            permit.brain = self.link()
            caller = permit.caller
            self.tell(Hold(permit.number, caller.name, caller.tenant, caller.rates, now))


class RemotePermit(Permit):
    """A permit that a brain keeps, and the gateway for itself. ``brain`` is the link to the one that knows of it."""

    __slots__ = ("_permits", "brain", "caller", "number", "own")

    def __init__(self, permits: Permits, number: int, caller: Caller, own: Permit, brain: Link | None) -> None:
        super().__init__([])
        self._permits = permits
        self.number = number
        self.caller = caller
        self.own = own
        self.brain = brain

    @property
    def is_told(self) -> bool:
        """Whether the brain that is there knows of it."""
        return self.brain is not None and self.brain is self._permits.link()

    def charge(self, tokens: int) -> None:
        if self.is_told:
            self.own.note(tokens, self._permits.clock())
            self._permits.tell(Charge(self.number, tokens))
        else:
            self.own.charge(tokens)

    def leave(self) -> None:
        if self._permits.open.pop(self.number, None) is None:
            return
        self.own.leave()
        if self.is_told:
            self._permits.tell(Leave(self.number))
