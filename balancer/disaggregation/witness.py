"""Whether decode engines fetch what was computed for them, by their own account: some connectors tell it nowhere else.

Knows what was computed for each replica, and what its engine says that it has fetched: ``external_prefix_cache_hits_total`` of
vLLM. Times are seconds, the caller's clock. Between calls: ``fetched`` grows with the engine's figure and never goes back; an
engine that was started again begins at 0.
"""

from collections import deque
from typing import Final

import msgspec

from indexer.index import ReplicaId

SETTLE_SECONDS: Final = 10.0
"""After which an engine has counted what it fetched: it is asked every few seconds."""

ENOUGH: Final = 20
"""Requests that are judged together: an engine has fetched some before it was first asked."""

SHARE: Final = 0.5
"""Less than this of what was computed for it is not what a working connector fetches."""


class Doubt(msgspec.Struct, frozen=True):
    """Of so many requests, an engine has fetched so little of what was computed for it, in tokens."""

    requests: int
    expected: int
    fetched: int


class Account(msgspec.Struct):
    """What one replica was to fetch and has fetched since it was first asked, in tokens. Changes."""

    expected: int = 0
    fetched: int = 0
    last: float | None = None
    """The engine's figure."""
    waiting: deque[tuple[float, int]] = msgspec.field(default_factory=deque)
    """When each of those that are not judged yet ended, and what it was to fetch."""
    judged_at: int = 0
    """So much of ``fetched`` was for requests that are judged."""


class Witness:
    """Keeps the accounts. Changes with every call but the questions."""

    def __init__(self) -> None:
        self.accounts: dict[ReplicaId, Account] = {}

    def __repr__(self) -> str:
        return f"<Witness of {len(self.accounts)} replicas>"

    def handed(self, replica: ReplicaId, tokens: int, now: float) -> None:
        """A request has ended there that was to fetch so many tokens of its prompt."""
        account = self.accounts.setdefault(replica, Account())
        if account.last is not None:  # else its figure is of a time before
            account.expected += tokens
            account.waiting.append((now, tokens))

    def told(self, replica: ReplicaId, figure: float, now: float) -> Doubt | None:
        """What its engine says that it has fetched since it was started; a doubt where that is too little."""
        account = self.accounts.setdefault(replica, Account())
        if account.last is not None:
            account.fetched += int(figure - account.last if figure >= account.last else figure)
        account.last = figure
        settled = [tokens for at, tokens in account.waiting if at <= now - SETTLE_SECONDS]
        if len(settled) < ENOUGH:
            return None
        for _ in settled:
            account.waiting.popleft()
        expected, fetched = sum(settled), account.fetched - account.judged_at
        # What goes beyond it was fetched for those that are judged later; but no more than was to be fetched for them.
        later = sum(tokens for _, tokens in account.waiting)
        account.judged_at = max(account.judged_at + min(expected, fetched), account.fetched - later)
        return Doubt(len(settled), expected, fetched) if fetched < SHARE * expected else None

    def forget(self, replica: ReplicaId) -> None:
        """It is gone."""
        self.accounts.pop(replica, None)
