"""What one LRU cache would hit, by its size.

Knows the bounds of a report. Never knows fleets.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulations.report.document import BoundFacts


def lru(bounds: "BoundFacts", tokens: int) -> float:
    """The curve at a size, straight between its points on a log axis."""
    exact = bounds.pool_of(tokens)
    if exact is not None:
        return exact.lru
    sizes, hits = bounds.curve_tokens, bounds.curve_hits
    if not sizes or tokens <= 0:
        return 0.0
    if tokens >= sizes[-1]:
        return bounds.infinite
    if tokens <= sizes[0]:
        return hits[0] * tokens / sizes[0]
    after = next(at for at, size in enumerate(sizes) if size >= tokens)
    low, high = sizes[after - 1], sizes[after]
    way = math.log(tokens / low) / math.log(high / low)
    return hits[after - 1] + way * (hits[after] - hits[after - 1])
