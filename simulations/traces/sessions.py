"""Which requests belong to one conversation, where a trace does not say.

Knows blocks and how often each is used. Never knows times or texts. A conversation is what goes on from one block that is
its own: what nearly everybody begins with (a system prompt) makes no conversation, and neither does what very different
things follow.
"""

from array import array
from typing import Final

from simulations.traces.stretches import NO_STRETCH, Stretches
from simulations.traces.trace import NO_SESSION, Trace

WIDE_SHARE: Final = 0.02
"""Of all requests: what more than that begin with is nobody's own."""

WIDE_USES: Final = 64
"""Requests; in small traces a long conversation is a large share of them."""

WIDE_FAN: Final = 64
"""Different blocks behind one: no conversation branches that often."""


def wide_blocks(trace: Trace) -> bytearray:
    """By block id, 1 where it is widely shared; what comes before such a block is widely shared, too."""
    stretches = Stretches(trace)
    begins = stretches.begins
    wide = bytearray(len(trace.parents))
    for at, is_wide in enumerate(_wide(trace, stretches)):
        if is_wide:
            wide[begins[at] : begins[at + 1]] = b"\1" * (begins[at + 1] - begins[at])
    return wide


def _wide(trace: Trace, stretches: Stretches) -> bytearray:
    """By stretch, 1 where its blocks are widely shared; what makes one of them so makes all of them."""
    uses = [0] * len(stretches)
    fans = [0] * len(stretches)
    for last in stretches.lasts:
        if last != NO_STRETCH:
            uses[last] += 1
    wide = bytearray(len(stretches))
    least = max(WIDE_USES, int(WIDE_SHARE * len(trace)))
    parents = stretches.parents
    for at in range(len(parents) - 1, -1, -1):  # children first
        if uses[at] > least or fans[at] >= WIDE_FAN:
            wide[at] = 1
        parent = parents[at]
        if parent != NO_STRETCH:
            uses[parent] += uses[at]
            fans[parent] += 1
            wide[parent] |= wide[at]
    return wide


def derived_sessions(trace: Trace, stretches: Stretches | None = None) -> "array[int]":
    """For each request the number of its conversation, from 0 on without gaps in order of arrival.

    What the trace says is kept. Of the others those belong together whose first block that is not widely shared is the same; a
    request without such a block is a conversation of its own. ``stretches`` are the trace's, where they are made already.
    """
    stretches = stretches or Stretches(trace)
    firsts = _first_own(trace, stretches)
    numbers: dict[tuple[bool, int], int] = {}
    found = array("q")
    for given, last in zip(trace.sessions, stretches.lasts, strict=True):
        first = NO_STRETCH if given != NO_SESSION or last == NO_STRETCH else firsts[last]
        if given != NO_SESSION:
            key = True, given
        elif first != NO_STRETCH:
            key = False, first
        else:
            key = False, -2 - len(found)  # nobody else's
        found.append(numbers.setdefault(key, len(numbers)))
    return found


def _first_own(trace: Trace, stretches: Stretches) -> list[int]:
    """By stretch, the first one up to it that is not widely shared; ``NO_STRETCH`` where all are."""
    firsts: list[int] = []
    for at, (parent, is_wide) in enumerate(zip(stretches.parents, _wide(trace, stretches), strict=True)):
        before = firsts[parent] if parent != NO_STRETCH else NO_STRETCH
        firsts.append(NO_STRETCH if is_wide else at if before == NO_STRETCH else before)
    return firsts
