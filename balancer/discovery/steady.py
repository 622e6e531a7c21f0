"""Which addresses to hold on to when the answers of a name service come and go.

Knows addresses and times (seconds, any monotonic clock). Never knows who is asked. A new address counts at once; one that is
missing counts for ``leave_seconds`` more: answers that are cut, shuffled, or of two servers that disagree change nothing then.
When nobody at all is named, everybody stays for ``grace_seconds``: a name service that has just been restarted says so, too.
"""

import math
from collections.abc import Set as AbstractSet


class SteadyAddresses:
    """The addresses there are. Changes with ``answered``."""

    def __init__(self, leave_seconds: float, grace_seconds: float) -> None:
        self._leave_seconds = leave_seconds
        self._grace_seconds = grace_seconds
        self._leaves_at: dict[str, float] = {}  # infinite for those of the last answer

    def __repr__(self) -> str:
        return f"<SteadyAddresses {sorted(self._leaves_at)}>"

    def answered(self, addresses: AbstractSet[str], now: float) -> frozenset[str]:
        """The addresses that count after this answer."""
        latest = now + (self._leave_seconds if addresses else self._grace_seconds)
        for address, leaves_at in list(self._leaves_at.items()):
            if address in addresses:
                continue
            if min(leaves_at, latest) <= now:
                del self._leaves_at[address]
            else:
                self._leaves_at[address] = min(leaves_at, latest)
        self._leaves_at.update(dict.fromkeys(addresses, math.inf))
        return frozenset(self._leaves_at)

    @property
    def settled_at(self) -> float:
        """When the next missing address leaves, unless an answer names it before; infinite where none is missing."""
        return min(self._leaves_at.values(), default=math.inf)
