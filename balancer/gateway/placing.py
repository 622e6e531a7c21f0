"""A request on its way to a replica: asking the brain where, within the time that the request has.

Knows how long that may take, and what it means for the next one if an attempt has failed.
"""

import asyncio
from typing import Final

from balancer.brain import Brain
from balancer.core import Decision, RouteRequest
from balancer.errors import RequestError
from balancer.gateway.asking import Asking, Failed, too_late
from balancer.gateway.attempt import Attempt

GRACE_SECONDS: Final = 0.1
"""Whoever keeps a request waiting knows how long it may, and tells better why nothing came of it."""


class Again(Exception):
    """The request is to be sent elsewhere, as ``wanted``, and the client has had nothing.

    ``told`` is what to tell it if there is nowhere else, None where no replica has failed it.
    """

    def __init__(self, wanted: RouteRequest, told: RequestError | None = None) -> None:
        super().__init__("to be sent elsewhere")
        self.wanted = wanted
        self.told = told


async def place(service: Brain, wanted: RouteRequest, asking: Asking) -> Decision:
    """Where it goes; a lease.

    Raises:
        UpstreamTimeout: it has waited for a place for all the time that it may have.
        RequestError: as ``Brain.route``.
    """
    placed = service.route_at_once(wanted, asking.origin, asking.claim)
    if isinstance(placed, Decision):
        return placed
    try:
        async with asyncio.timeout_at(asking.deadline + GRACE_SECONDS):
            return await placed
    except TimeoutError:
        raise too_late(asking.timeouts) from None


async def attempted(attempt: Attempt) -> None:
    """Make it.

    Raises:
        Again: it has failed, and another replica is to be tried.
        RequestError: it has failed for good.
    """
    try:
        await attempt.run()
    except Failed as failed:
        if not failed.may_retry:
            raise failed.told from None
        raise Again(attempt.without(failed.failure), failed.told) from None
