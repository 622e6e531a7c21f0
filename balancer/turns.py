"""Requests that have a replica and are held until it has less to do, with the loop, its clock and those who wait attached.

Knows futures and when to look again. Decides nothing itself: the order, and what is enough to do, are the policy's and the
fleet's (``balancer.fleet``). Between calls: whoever is held waits for its own replica; one whose replica can take nothing any
more, or is late, has been placed anew, or waits with those who found no place (``balancer.waiting``); a lease that nobody waits
for any more has been given back.
"""

import asyncio
import math
import time
from collections.abc import Callable
from itertools import chain
from typing import Final

import msgspec

from balancer.admission import Claim
from balancer.core import Decision, RouteRequest
from balancer.errors import Contended, NoReplica, Saturated, UnknownModel
from balancer.router import Router
from balancer.waiting import Waiting

AGAIN: Final = 1.0
"""Seconds after which those are placed anew who are held for a replica that is late."""

_AFTER: Final = 0.001
"""Seconds: who looks at the very moment may be told by rounding that it has not come, and would look no more."""


class _Held(msgspec.Struct):
    request: RouteRequest
    claim: Claim
    decision: Decision
    sent: Callable[[Decision], Decision]
    unsent: Callable[[], None]
    future: "asyncio.Future[Decision]"
    since: float
    waits: "asyncio.Task[None] | None" = None  # while nobody can take it


class Turns:
    """All requests that are held. ``decide`` chooses a replica and leases it, ``give_back`` releases what nobody took.

    Those for which nobody is left wait in ``waiting``.
    """

    def __init__(
        self,
        router: Router,
        decide: Callable[[RouteRequest], Decision],
        give_back: Callable[[int], None],
        waiting: Waiting,
    ) -> None:
        self.on_end: Callable[[float], None] = lambda seconds: None
        """Told how many seconds one was held, whatever came of it."""
        self._router = router
        self._decide = decide
        self._give_back = give_back
        self._waiting = waiting
        self._held: dict[int, _Held] = {}  # by lease
        self._timer: asyncio.TimerHandle | None = None
        self._is_looking = False
        self._placed_at = -math.inf

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"<Turns {len(self)} held>"

    def hold(
        self,
        request: RouteRequest,
        claim: Claim,
        decision: Decision,
        sent: Callable[[Decision], Decision],
        unsent: Callable[[], None],
    ) -> "asyncio.Future[Decision]":
        """What ``sent`` makes of the decision once its request is to be sent; it may be for another replica then.

        Cancelling the future gives the lease back. ``unsent`` is called where that, or an error, is the end of it.
        """
        future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        held = _Held(request, claim, decision, sent, unsent, future, time.monotonic())
        self._held[decision.lease] = held
        future.add_done_callback(lambda _: self._done(held))
        self.look()
        return future

    def look(self) -> None:
        """Let go all whose turn it is. Call it whenever a replica may have less to do, or can take nothing any more."""
        if not self._held or self._is_looking:  # what is given back on the way is seen before this look ends
            return
        self._is_looking = True
        try:
            now = self._look()
        finally:
            self._is_looking = False
        self._look_later(now)

    def stop(self) -> None:
        """Nothing happens by itself any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> float:
        """Until nobody can go any more; when that was."""
        now = time.monotonic()
        delayed: list[int] = []
        if now >= self._placed_at + AGAIN:
            self._placed_at, delayed = now, self._router.delayed(now)
        left: list[_Held] = []
        for lease in chain(self._router.stranded(now), delayed):
            held = self._held.pop(lease, None)
            # Else it has had a place this very moment, and is on its way to ``hold``.
            if held is not None and not self._move(held):
                left.append(held)
        for held in reversed(left):  # each goes in front of those that wait, and the first one in front of all
            held.waits = asyncio.get_running_loop().create_task(self._again(held))
        while going := self._router.dispatch(now := time.monotonic()):
            for lease in going:
                held = self._held.pop(lease, None)
                if held is not None:
                    self._let_go(held)
        return now

    def _move(self, held: _Held) -> bool:
        """Its replica can take nothing any more, or takes far longer than expected; False where no other can take it now."""
        if held.future.done():
            self._withdraw(held)
            return True
        served = self._waiting.withdraw(held.decision.lease)
        self._give_back(held.decision.lease)
        decision, has_place = None, True
        try:
            decision = self._decide(_anew(held))
        except (UnknownModel, NoReplica, Contended, Saturated):
            has_place = False
        except Exception as error:  # a policy may be anybody's; it fails its own request, and not whoever looks
            held.future.set_exception(error)
        self._waiting.settle(served, decision)
        if decision is not None:
            self._put(held, decision)
        return has_place

    async def _again(self, held: _Held) -> None:
        """It waits for a place as those do that have had none, and is no worse off than they are."""
        try:
            decision = await self._waiting.turn(_anew(held), held.claim)
        except Exception as error:
            if not held.future.done():
                held.future.set_exception(error)
            return
        self._put(held, decision)
        self.look()

    def _put(self, held: _Held, decision: Decision) -> None:
        held.decision = decision
        if self._router.is_held(decision.lease):
            self._held[decision.lease] = held
        else:
            self._let_go(held)

    def _let_go(self, held: _Held) -> None:
        if held.future.done():  # it has gone, and has had no turn to say so
            self._withdraw(held)
        else:
            held.future.set_result(held.sent(held.decision))

    def _done(self, held: _Held) -> None:
        self.on_end(time.monotonic() - held.since)
        if held.waits is not None:
            held.waits.cancel()
        if held.future.cancelled() or held.future.exception() is not None:
            held.unsent()
        if held.future.cancelled() and self._held.pop(held.decision.lease, None) is not None:
            self._withdraw(held)

    def _withdraw(self, held: _Held) -> None:
        """Nobody waits for it any more, and nothing of it was sent."""
        self._waiting.settle(self._waiting.withdraw(held.decision.lease))
        self._give_back(held.decision.lease)

    def _look_later(self, now: float) -> None:
        """When the next one's turn comes by time alone, or somebody may be late. Whose turn was due waits for an answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            due = self._router.due(now)
            again = self._placed_at + AGAIN
            self._timer = asyncio.get_running_loop().call_later(
                max(0.0, (again if due is None else min(due, again)) - now) + _AFTER, self._on_time
            )

    def _on_time(self) -> None:
        self._timer = None
        self.look()


def _anew(held: _Held) -> RouteRequest:
    """To be placed again; its turn is still that of its arrival."""
    return msgspec.structs.replace(held.request, came_at=held.since)
