"""What a bootstrap server calls the engines behind it (Mooncake: ``GET /query``).

Knows the question, and how long an answer holds: an engine that is started again is called otherwise. Who does not answer, or
not that, is no error: then nothing can be fetched from it.
"""

import asyncio
from typing import Any, Final

import msgspec

from balancer.gateway.collecting import Collected
from balancer.http.client import HttpClient
from balancer.http.exchange import ExchangeFailed, Limits
from balancer.http.messages import Outgoing

FRESH_SECONDS: Final = 2.0
"""How long an answer holds: an engine takes longer to start."""

_LIMITS: Final = Limits(connect=1.0, first_byte=2.0, idle=2.0, total=2.0)


class EngineIds:
    """Asks, and remembers for a moment. Make it in a running loop."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._known: dict[str, tuple[float, dict[int, str]]] = {}
        self._loop = asyncio.get_running_loop()

    async def of(self, bootstrap: str, rank: int) -> str | None:
        """What the server at this URL calls the engine of a data-parallel rank; None where it does not say."""
        known = self._known.get(bootstrap)
        if known is None or self._loop.time() - known[0] > FRESH_SECONDS:
            self._known[bootstrap] = known = (self._loop.time(), await self._ask(bootstrap))
        return known[1].get(rank)

    def forget(self, bootstrap: str | None) -> None:
        """Ask again the next time."""
        self._known.pop(bootstrap or "", None)

    async def _ask(self, bootstrap: str) -> dict[int, str]:
        answer = Collected()
        try:
            await self._client.exchange(bootstrap.rstrip("/"), Outgoing(b"GET", b"/query"), answer, _LIMITS)
            told: Any = msgspec.json.decode(answer.body, type=dict[str, dict[str, Any]])
        except (ExchangeFailed, msgspec.MsgspecError):
            return {}
        return {
            int(rank): engine["engine_id"]
            for rank, engine in told.items()
            if rank.isdecimal() and isinstance(engine.get("engine_id"), str)
        }
