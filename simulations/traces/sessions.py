"""Which requests belong to one conversation, where a trace does not say.

Knows blocks and how often each is used. Never knows times or texts. A conversation is what goes on from one block that is
its own: what nearly everybody begins with (a system prompt) makes no conversation, and neither does what very different
things follow.
"""

from array import array
from typing import Final

from simulations.traces.trace import NO_PARENT, NO_SESSION, Trace

WIDE_SHARE: Final = 0.02
"""Of all requests: what more than that begin with is nobody's own."""

WIDE_USES: Final = 64
"""Requests; in small traces a long conversation is a large share of them."""

WIDE_FAN: Final = 64
"""Different blocks behind one: no conversation branches that often."""


def wide_blocks(trace: Trace) -> bytearray:
    """By block id, 1 where it is widely shared; what comes before such a block is widely shared, too."""
    parents = trace.parents
    uses = array("q", bytes(8 * len(parents)))
    fans = array("q", bytes(8 * len(parents)))
    for ids in trace.blocks:
        if ids:
            uses[ids[-1]] += 1
    wide = bytearray(len(parents))
    least = max(WIDE_USES, int(WIDE_SHARE * len(trace)))
    for at in range(len(parents) - 1, -1, -1):  # children first: their ids are larger
        if uses[at] > least or fans[at] >= WIDE_FAN:
            wide[at] = 1
        parent = parents[at]
        if parent != NO_PARENT:
            uses[parent] += uses[at]
            fans[parent] += 1
            wide[parent] |= wide[at]
    return wide


def derived_sessions(trace: Trace) -> "array[int]":
    """For each request the number of its conversation, from 0 on without gaps in order of arrival.

    What the trace says is kept. Of the others those belong together whose first block that is not widely shared is the same; a
    request without such a block is a conversation of its own.
    """
    firsts = _first_own(trace)
    numbers: dict[tuple[bool, int], int] = {}
    found = array("q")
    for given, ids in zip(trace.sessions, trace.blocks, strict=True):
        first = NO_PARENT if given != NO_SESSION or not ids else firsts[ids[-1]]
        if given != NO_SESSION:
            key = True, given
        elif first != NO_PARENT:
            key = False, first
        else:
            key = False, -2 - len(found)  # nobody else's
        found.append(numbers.setdefault(key, len(numbers)))
    return found


def _first_own(trace: Trace) -> "array[int]":
    """By block id, the first one up to it that is not widely shared; ``NO_PARENT`` where all are."""
    firsts = array("q")
    for at, (parent, is_wide) in enumerate(zip(trace.parents, wide_blocks(trace), strict=True)):
        if is_wide:
            firsts.append(NO_PARENT)
        else:
            before = firsts[parent] if parent != NO_PARENT else NO_PARENT
            firsts.append(at if before == NO_PARENT else before)
    return firsts
