"""Where the last request of each conversation was sent.

Knows conversations by number and replicas by name; of more than it may keep, it forgets those that have been quiet for longest.
Never knows what a conversation is, or whether it goes on.
"""

from collections import OrderedDict
from typing import Final

from indexer.index import ReplicaId

MAX_SESSIONS: Final = 100_000


class Sessions:
    """Conversation -> replica. Changes with every ``sent``."""

    def __init__(self, at_most: int = MAX_SESSIONS) -> None:
        self._at_most = at_most
        self._last: OrderedDict[int, ReplicaId] = OrderedDict()

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
        self._last[session] = replica
        self._last.move_to_end(session)
        if len(self._last) > self._at_most:
            self._last.popitem(last=False)

    def forget(self, replica: ReplicaId) -> None:
        """The replica is gone, or its cache is."""
        for session in [session for session, at in self._last.items() if at == replica]:
            del self._last[session]
