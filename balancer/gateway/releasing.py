"""Giving back what a prefill replica has computed, when nobody will fetch it.

Knows how an engine is told: its decode replica is sent a leg that it has to refuse (``bodies.releasing_body``). What cannot be
told is counted, and lies there until the engine gives it up.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from balancer.core import Decision
from balancer.disaggregation import bodies
from balancer.disaggregation.plan import Connector, Leg
from balancer.gateway.asking import Asking, Means
from balancer.gateway.collecting import Collected
from balancer.header_names import REQUEST_ID
from balancer.http.exchange import ExchangeFailed, Limits
from balancer.http.fields import lines
from balancer.http.messages import Outgoing

_LIMITS: Final = Limits(connect=1.0, first_byte=3.0, idle=3.0, total=3.0)


class Releases:
    """Makes them, while nobody waits. Make it in a running loop."""

    def __init__(self, means: Means, connector: Connector) -> None:
        self._means = means
        self._connector = connector
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this, although nobody waits for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def let_go(self, asking: Asking, leg: Leg | None, decision: Decision) -> None:
        """The decode replica that ``decision`` names will not be sent this leg."""
        if leg is None or leg.params is None:
            return
        if self._connector.frees_rejected:
            self.keep(self._tell(asking, leg, decision))
        else:
            self._means.counts.legs.stranded += 1

    async def _tell(self, asking: Asking, leg: Leg, decision: Decision) -> None:
        fields = [(name.encode(), value.encode()) for name, value in asking.visit.questions.items()]
        if leg.request_id is not None:
            fields.append((REQUEST_ID, leg.request_id.encode()))
        answer, counts = Collected(), self._means.counts.legs
        request = Outgoing(b"POST", b"/v1/completions", lines(fields), bodies.releasing_body(leg))
        try:
            await self._means.client.exchange(decision.replica.endpoint, request, answer, _LIMITS)
            counts.released += 1
        except ExchangeFailed:
            counts.stranded += 1
