"""Dumps of the index, one at a time: each holds a copy of a table.

Knows whose turn it is, and for how long a client may have it. Never knows what is dumped.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Final

from balancer.errors import Conflict

WAIT_SECONDS: Final = 10.0
"""How long a client waits for its turn before it is told to come back."""

GRACE_SECONDS: Final = 10.0

MIN_BYTES_PER_SECOND: Final = 256 * 1024
"""A client that reads more slowly than this, beyond the grace, keeps the others waiting and loses its turn."""


class Dumps:
    """The turn. Shared by all who ask one index."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def paced(self, lines: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
        """The lines, in this client's turn; nothing of them is made before it.

        Raises:
            Conflict: the turn has not come.
            ConnectionResetError: the client reads too slowly.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise Conflict("a dump is under way for somebody else; ask again later") from None
        try:
            now = asyncio.get_running_loop().time
            due = now() + GRACE_SECONDS
            for line in lines:
                due += len(line) / MIN_BYTES_PER_SECOND
                yield line
                await asyncio.sleep(0)
                if now() > due:
                    raise ConnectionResetError("the client reads its dump too slowly")
        finally:
            self._turn.release()
