"""How many files and connections this process may have open at once.

Knows the operating system's limit, and for how much of it what needs several of them is good. Never knows what is opened.
"""

import resource
from typing import Final

WANTED: Final = 65_536
"""Beyond 2,000 publishers and some ten thousand clients; a limit without end is not asked for, for it is costly to others that
start from here and close all they might have open."""

KEPT_FREE: Final = 256
"""For clients and files, however many publishers there are."""

EACH_PUBLISHER: Final = 6
"""Two connections, for events and for a replay, and four that libzmq (4.3) wakes its sockets by."""


def raise_limit() -> int:
    """Have as many as the system allows without being asked (the hard limit); returns how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def publishers_within(limit: int) -> int:
    """How many publishers can be followed with so many open files; one at least."""
    return max(1, (limit - KEPT_FREE) // EACH_PUBLISHER)
