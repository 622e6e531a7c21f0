"""Quantiles of what was seen.

Knows values in order. Never knows what they are.
"""

from collections.abc import Sequence


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value at ``share`` of these, which are in order (nearest rank, rounded down); 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
