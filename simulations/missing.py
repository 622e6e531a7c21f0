"""Why prompt tokens had to be computed in a run of the detailed model.

Knows keys and counts of tokens. Never knows engines or routers.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence


def known_tokens(keys: Sequence[int], tokens: int, block_size: int, computed: Collection[int]) -> int:
    """Leading tokens of a prompt, all but the last one at most, whose blocks somebody has ``computed``."""
    # Whoever has had a block has had all before it.
    known = bisect_left(keys, 1, hi=(tokens - 1) // block_size, key=lambda each: each not in computed)
    return known * block_size


def reasons(tokens: int, cached: int, known: int, best: int, begun: int) -> tuple[int, int, int, int]:
    """Of a prompt's tokens that were not cached: how many are first, in flight, elsewhere and evicted.

    Args:
        tokens: of the prompt.
        cached: that it hit.
        known: leading ones that somebody had computed when it was sent.
        best: what the replica was seen to hold, or expected to, that held most.
        begun: leading ones that somebody else has computed by now: from ``known`` on, while this one was under way.
    """
    elsewhere = max(0, min(best, known) - cached)
    awaited = max(0, begun - max(known, cached))
    evicted = max(0, known - cached) - elsewhere
    return tokens - cached - awaited - elsewhere - evicted, awaited, elsewhere, evicted
