"""Requests that wait for a place: the queue of ``balancer.admission`` with the loop, its clock and those who wait attached.

Knows futures, deadlines and when to look whether somebody can be served. Decides nothing itself. Between calls: nobody waits
who could be served, so that whoever comes next overtakes no one; a place that was given to someone who has gone is given back.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from balancer.admission import Admission, AdmissionSettings, Claim, Pool, Ticket, Urgency
from balancer.core import Decision, RouteRequest, Truth
from balancer.errors import Contended, RequestError, Saturated
from balancer.router import Router

GRACE_SECONDS: Final = 5.0
"""So long one waits at least that had a replica, and has none any more through no fault of its own: most are back by then."""


class Ended(msgspec.Struct, frozen=True):
    """How one request's waiting ended: ``served``, ``expired``, ``displaced``, ``cancelled`` or ``failed``."""

    urgency: Urgency
    outcome: str
    seconds: float


class _Waiter(msgspec.Struct, frozen=True):
    request: RouteRequest
    ticket: Ticket
    decision: "asyncio.Future[Decision]"


class Served(msgspec.Struct, frozen=True):
    """Who pays for what is computed for a request, and what of its prompt is ``paid``: all of it with ``knows_tokens``."""

    claim: Claim
    knows_tokens: bool
    paid: float


class Waiting:
    """All requests that wait. ``decide`` chooses a replica and leases it, ``give_back`` releases a lease that nobody took."""

    def __init__(
        self,
        settings: AdmissionSettings,
        router: Router,
        decide: Callable[[RouteRequest], Decision],
        give_back: Callable[[int], None],
    ) -> None:
        self.queue = Admission(settings)
        self.refused: Counter[Urgency] = Counter()
        self.on_entry: Callable[[Ticket], None] = lambda ticket: None
        self.on_end: Callable[[Ended], None] = lambda ended: None
        self._is_on = settings.is_on
        self._seconds = settings.max_wait_seconds
        self._router = router
        self._decide = decide
        self._give_back = give_back
        self._waiters: dict[int, _Waiter] = {}
        self._served: dict[int, Served] = {}  # by lease: those that had to wait, until they end

    def __repr__(self) -> str:
        return f"<Waiting {self.queue!r}>"

    @property
    def has_any(self) -> bool:
        """Whether anybody waits, or is served who had to."""
        return bool(self._waiters or self._served)

    async def decision(self, request: RouteRequest, claim: Claim) -> Decision:
        """Where the request goes, as soon as there is a place for it.

        Raises:
            Saturated: there is none in time, or too many wait for one.
            RequestError: whatever else ``decide`` says.
        """
        return self.at_once(request) or await self.turn(request, claim)

    def at_once(self, request: RouteRequest) -> Decision | None:
        """Where the request goes if there is a place for it now; None where it has to wait for its ``turn``.

        Raises:
            Saturated: there is none, and nobody waits here.
            RequestError: whatever else ``decide`` says.
        """
        if self._waiters:
            self.look()
        try:
            return self._decide(request)
        except (Saturated, Contended):
            if not self._is_on:
                raise
        return None

    async def turn(self, request: RouteRequest, claim: Claim) -> Decision:
        """Where it goes after it has waited, as ``decision``; one that had a place before (``came_at``) always may."""
        waiter = self._enter(request, claim)
        now = time.monotonic()
        until = min(claim.deadline, now + self._seconds) if self._is_on else now
        if request.came_at is not None:
            until = max(until, now + GRACE_SECONDS)
        timer = asyncio.get_running_loop().call_later(until - now, self._expire, waiter)
        try:
            return await waiter.decision
        except asyncio.CancelledError:
            self._gone(waiter)
            raise
        finally:
            timer.cancel()

    def look(self) -> None:
        """Serve all who can be served now. Call it whenever a place may have become free."""
        while self._waiters and self._router.has_room():
            ticket = self.queue.take(self._fits, time.monotonic())
            if ticket is None:
                return
            waiter = self._waiters[ticket.number]
            if waiter.decision.cancelled():  # it has gone, and has had no turn to say so
                self._end(waiter, "cancelled")
            else:
                self._serve(waiter)

    def answered(self, lease: int, truth: Truth | None) -> None:
        """A request has ended: what was computed for its answer counts, too."""
        served = self._served.pop(lease, None)
        if served is None or truth is None:
            return
        tokens = truth.completion_tokens or 0
        if not served.knows_tokens:
            tokens += max(0, (truth.prompt_tokens or 0) - (truth.cached_tokens or 0))
        self.queue.charge(served.claim, tokens)

    def withdraw(self, lease: int) -> Served | None:
        """The request is not sent with this lease: what is to be told to ``settle``; None where it had not to wait."""
        return self._served.pop(lease, None)

    def settle(self, served: Served | None, decision: Decision | None = None) -> None:
        """It has another lease; without one, nothing is computed of what it has paid for."""
        if served is None:
            return
        if decision is None:
            self.queue.give_back(served.claim, served.paid)
        else:
            self._served[decision.lease] = served

    def _enter(self, request: RouteRequest, claim: Claim) -> _Waiter:
        pool = Pool(request.model, request.excluded, request.part)
        comes_again = bool(request.excluded) or request.came_at is not None
        try:
            ticket, displaced = self.queue.enter(claim, pool, time.monotonic(), comes_again=comes_again)
        except Saturated:
            self.refused[claim.urgency] += 1
            raise
        self.on_entry(ticket)
        waiter = _Waiter(request, ticket, asyncio.get_running_loop().create_future())
        self._waiters[ticket.number] = waiter
        if displaced is not None:
            self._fail(
                self._waiters[displaced.number],
                Saturated(
                    f"every replica of '{displaced.pool.model}' is busy, and this request gave its place to those of others; "
                    "send fewer at a time",
                    retry_after=self._retry_after(displaced),
                ),
                "displaced",
            )
        return waiter

    def _serve(self, waiter: _Waiter) -> None:
        try:
            decision = self._decide(waiter.request)
        except Exception as error:  # a policy may be anybody's; it fails its own request, and not whoever looks
            self._fail(waiter, error, "failed")
            return
        self._end(waiter, "served")
        claim, paid = waiter.ticket.claim, max(1, decision.computed_tokens) if decision.knows_tokens else 1
        self.queue.charge(claim, paid)
        self._served[decision.lease] = Served(claim, decision.knows_tokens, paid)
        waiter.decision.set_result(decision)

    def _fits(self, pool: Pool) -> bool:
        try:
            return bool(self._router.room(pool, time.monotonic()))
        except RequestError:
            return False

    def _expire(self, waiter: _Waiter) -> None:
        """Its time is over; where nobody at all could serve it, be it at leisure, that is the reason."""
        self.look()
        if waiter.decision.done():
            return
        now = time.monotonic()
        retry_after = self._retry_after(waiter.ticket)
        self.queue.leave(waiter.ticket)
        try:
            self._router.room(waiter.ticket.pool, now)
        except Saturated:
            pass
        except RequestError as error:
            self._fail(waiter, error, "failed")
            return
        told = Saturated(
            f"every replica of '{waiter.request.model}' has been busy for {now - waiter.ticket.entered:.1f} s, and longer "
            "than that this request may not wait (admission.max_wait_seconds); try again later",
            retry_after=retry_after,
        )
        self._fail(waiter, told, "expired")

    def _gone(self, waiter: _Waiter) -> None:
        """Whoever waited has gone."""
        if waiter.decision.cancelled():
            if waiter.ticket.number in self._waiters:
                self.queue.leave(waiter.ticket)
                self._end(waiter, "cancelled")
        elif waiter.decision.exception() is None:  # its place came in the same moment
            self._give_back(waiter.decision.result().lease)

    def _fail(self, waiter: _Waiter, error: Exception, outcome: str) -> None:
        self._end(waiter, outcome)
        if not waiter.decision.cancelled():
            waiter.decision.set_exception(error)

    def _end(self, waiter: _Waiter, outcome: str) -> None:
        del self._waiters[waiter.ticket.number]
        self.on_end(Ended(waiter.ticket.claim.urgency, outcome, time.monotonic() - waiter.ticket.entered))

    def _retry_after(self, ticket: Ticket) -> int:
        return self.queue.retry_after(ticket.claim.urgency, time.monotonic())
