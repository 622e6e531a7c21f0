"""The processes that this kvlb consists of.

Knows roles, process ids and how often one was started again. Never starts or ends one.
"""

import os
from collections import Counter
from collections.abc import Mapping

import msgspec


class Member(msgspec.Struct, frozen=True):
    """One gateway; ``number`` is its place, which whoever replaces it has after it."""

    number: int
    pid: int
    requests: int
    """Leases that it has now."""


class Census:
    """Who is there. One process that is brain and gateway, unless it is told otherwise."""

    def __init__(self) -> None:
        self.brain: int | None = None
        """Its process id, where it is a process of its own."""
        self.gateways: list[Member] = [Member(1, os.getpid(), 0)]
        self.restarts: Counter[str] = Counter({"brain": 0, "gateway": 0})
        """Processes that ended unasked and were started again, by role."""

    def __repr__(self) -> str:
        return f"<Census {self.brain}, {self.gateways}>"

    def counts(self) -> Mapping[str, int]:
        """Processes by role; one that is both counts as a gateway."""
        return {"brain": int(self.brain is not None), "gateway": len(self.gateways)}
