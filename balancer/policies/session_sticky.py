"""Sticky sessions: a conversation stays where it began."""

from collections.abc import Sequence

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import calmest, policy


@policy("session_sticky")
class SessionSticky(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the conversation's last request went; its first one goes where the wait is shortest, by share."""

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        for candidate in candidates:
            if candidate.has_session:
                return candidate
        return calmest(candidates, [each.wait / each.share for each in candidates], draw)
