"""The two legs of a split request under way together, for connectors whose engines meet by themselves.

Knows what becomes of one leg when the other one fails, or the client leaves. Never knows what they carry.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from balancer.core import Failure
from balancer.disaggregation.plan import Answered
from balancer.gateway.attempt import Attempt
from balancer.gateway.placing import attempted
from balancer.gateway.prefill import Refused
from balancer.http.reply import Reply

Result: TypeAlias = Answered | Refused | Failure

_LAST_WORDS: Final = 5.0
"""Seconds that a prefill leg has to end, once the answer that its prompt was for is complete."""

_ARRIVES: Final = 0.25
"""Seconds within which an engine has begun on what was sent to it."""


class NotPrefilled(Exception):
    """The prompt has not been computed, and the decode leg has been ended before the client had anything of it."""

    def __init__(self, result: Refused | Failure) -> None:
        super().__init__("not prefilled")
        self.result = result


async def both(
    first: Coroutine[Any, Any, Result],
    attempt: Attempt,
    reply: Reply,
    keep: Callable[[Coroutine[Any, Any, None]], None],
    ended: Callable[[Answered | None], None],
) -> None:
    """Send both legs, and return when the answer is complete.

    ``keep`` is given what has to be done after this has returned; ``ended`` is called once, when the decode leg has ended.

    Raises:
        NotPrefilled: the first leg has failed in time.
        Again, RequestError: the second has, as ``attempted``.
    """
    prefill = asyncio.ensure_future(first)
    decode = asyncio.ensure_future(attempted(attempt))
    decode.add_done_callback(lambda _: ended(_answered(prefill)))
    is_left = False
    try:
        await asyncio.wait({prefill, decode}, return_when=asyncio.FIRST_COMPLETED)
        if prefill.done():
            result = prefill.result()
            if isinstance(result, Answered):
                attempt.prefilled(result.cached_tokens)
            elif not (decode.done() or reply.has_begun):  # else it has what it needs, or had it before
                await end(decode)
                raise NotPrefilled(result)
        await decode
        if not prefill.done():
            await asyncio.wait({prefill}, timeout=_LAST_WORDS)
    except asyncio.CancelledError:
        is_left = reply.is_lost and attempt.sent_at is not None
        raise
    finally:
        if is_left:
            keep(_see_off(prefill, decode))
        else:
            for task in (prefill, decode):
                if not task.done():
                    await end(task)


async def _see_off(prefill: "asyncio.Task[Result]", decode: "asyncio.Task[None]") -> None:
    """The client has left, and the decode engine waits for blocks that only the prefill engine can send.

    If that one were stopped now, the other would hold the places for them until it gives up, as vLLM's MooncakeConnector does
    for eight minutes. So the prompt is computed to its end; and whoever answers has to have seen the request, or nobody would
    take it.
    """
    await asyncio.wait({decode}, timeout=_ARRIVES)
    await end(decode)
    await asyncio.gather(prefill, return_exceptions=True)


def _answered(prefill: "asyncio.Task[Result]") -> Answered | None:
    if not prefill.done() or prefill.cancelled() or prefill.exception() is not None:
        return None
    result = prefill.result()
    return result if isinstance(result, Answered) else None


async def end(task: "asyncio.Task[Any]") -> None:
    """End a task that nobody waits for any more, and wait until it has ended; what comes of it is nobody's concern."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
