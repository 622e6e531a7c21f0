"""Where the last request of each conversation was sent, by this gateway or by one of its siblings.

Knows conversations by number and replicas by name; of more than it may keep, it forgets those that have been quiet for longest.
Never knows what a conversation is, or whether it goes on.
"""

from collections import OrderedDict
from itertools import takewhile
from typing import Final

from indexer.index import ReplicaId

MAX_SESSIONS: Final = 100_000

MAX_NEWS: Final = 10_000
"""Conversations that siblings are told of at once, at most."""


class Sessions:
    """Conversation -> replica. Changes with ``sent``, ``told`` and ``forget``; ``mark`` counts what was ``sent`` ever."""

    def __init__(self, at_most: int = MAX_SESSIONS) -> None:
        self._at_most = at_most
        self._last: OrderedDict[int, ReplicaId] = OrderedDict()
        # Conversation -> the mark of its last own request, in the order of the marks.
        self._news: OrderedDict[int, int] = OrderedDict()
        self.mark = 0

    def __len__(self) -> int:
        return len(self._last)

    def __repr__(self) -> str:
        return f"<Sessions {len(self)} of at most {self._at_most}>"

    def at(self, session: int) -> ReplicaId | None:
        """Where its last request was sent; None of conversation 0, which is none."""
        return self._last.get(session) if session else None

    def sent(self, session: int, replica: ReplicaId) -> None:
        """Its newest request goes there."""
        if not session:
            return
        self._keep(session, replica)
        self.mark += 1
        self._news[session] = self.mark
        self._news.move_to_end(session)
        if len(self._news) > MAX_NEWS:
            self._news.popitem(last=False)

    def since(self, mark: int) -> dict[int, ReplicaId]:
        """Those whose last request was ``sent`` after this mark, the newest first; of very many, the newest."""
        newest = takewhile(lambda session: self._news[session] > mark, reversed(self._news))
        return {session: self._last[session] for session in newest if session in self._last}

    def told(self, session: int, replica: ReplicaId, mark: int) -> None:
        """A sibling has sent it a request; one that this gateway has ``sent`` after this mark is newer, and counts."""
        if session and self._news.get(session, 0) <= mark:
            self._news.pop(session, None)  # the news is the sibling's
            self._keep(session, replica)

    def _keep(self, session: int, replica: ReplicaId) -> None:
        self._last[session] = replica
        self._last.move_to_end(session)
        if len(self._last) > self._at_most:
            gone, _ = self._last.popitem(last=False)
            self._news.pop(gone, None)

    def forget(self, replica: ReplicaId) -> None:
        """The replica is gone, or its cache is."""
        for session in [session for session, at in self._last.items() if at == replica]:
            del self._last[session]
