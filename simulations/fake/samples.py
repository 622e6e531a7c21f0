"""One sequence that is being generated, and the mailbox through which its reader hears of it.

Knows what has been said so far and what of it has been read. Never knows who generates it, or in which form it is passed on.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

FinishReason: TypeAlias = Literal["stop", "length", "abort"]

Sampler: TypeAlias = Callable[["Sample"], int]
"""The next token of a sample, of which ``tokens`` are there already."""


class Mailbox:
    """Samples with news for one HTTP request; mutable. One task reads it."""

    def __init__(self) -> None:
        self._news: dict[Sample, None] = {}
        self._has_news = asyncio.Event()

    def put(self, sample: "Sample") -> None:
        self._news[sample] = None
        self._has_news.set()

    async def get(self) -> list["Sample"]:
        """The samples that have changed since the last call; waits for the first."""
        await self._has_news.wait()
        self._has_news.clear()
        news, self._news = list(self._news), {}
        return news


class Sample:
    """One sequence that an engine generates, from request to end; mutable.

    ``external_id`` is the name under which clients can abort it; ``id`` and ``rank`` are given by the rank that takes it.
    ``ends_at`` is how many tokens the model has to say where the client sets no limit.
    """

    __slots__ = (
        "cached_tokens",
        "ends_at",
        "external_id",
        "finish_reason",
        "id",
        "index",
        "is_streamed",
        "mailbox",
        "num_read",
        "prompt",
        "rank",
        "seed",
        "tokens",
    )

    def __init__(
        self,
        external_id: str,
        index: int,
        prompt: Sequence[int],
        mailbox: Mailbox,
        *,
        is_streamed: bool,
        ends_at: int | None,
    ) -> None:
        self.id = ""
        self.rank: int | None = None
        self.external_id = external_id
        self.index = index
        self.prompt = prompt
        self.mailbox = mailbox
        self.is_streamed = is_streamed
        self.ends_at = ends_at
        self.seed = 0
        self.tokens: list[int] = []
        self.num_read = 0
        self.cached_tokens: int | None = None
        self.finish_reason: FinishReason | None = None

    def read(self) -> list[int]:
        """The tokens since the last call."""
        new = self.tokens[self.num_read :]
        self.num_read = len(self.tokens)
        return new
