"""What there is to say of a sample that is too short, or of which one half says something else than the other.

Knows samples and how people read them. Never knows runs.
"""

from typing import Final

from balancer.words import counted
from simulations.report.figures import duration, percent, times
from simulations.sample import Sample

FULL_TWICE: Final = 2.0
"""Caches that were filled so many times over have been full for half of the run."""

APART: Final = 1.25
"""Times of which one is longer than the other by so much are not the same."""

FEWEST: Final = 10
"""A quantile with fewer requests beyond it is what these happen to be."""


def shortness(sample: Sample, percentile: int = 95) -> list[str]:
    """Sentences: why the sample is short; none where it is long enough. ``percentile`` is the one that has to be known."""
    told = []
    filled = sample.filled
    if filled is not None and filled < 1:
        told.append(
            f"Caches were not yet full: all that was computed is {percent(filled)} of what they hold, so what is evicted "
            "later, and then missing, is not in the figures."
        )
    elif filled is not None and filled < FULL_TWICE:
        told.append(f"Caches were full in the second half only: all that was computed fills them {times(filled)}.")
    beyond = sample.requests * (100 - percentile) // 100
    low, high = sample.between
    if beyond < FEWEST:
        are = "is" if beyond == 1 else "are"
        told.append(f"Of {counted(sample.requests, 'request')} {beyond} {are} beyond the {percentile}th percentile.")
    elif high > APART * low:
        told.append(f"Chance alone puts the 95th percentile anywhere from {duration(low)} to {duration(high)}.")
    return told


def unsteadiness(sample: Sample, limit: float | None = None) -> str:
    """That the halves are not alike, or that one of them is beyond ``limit`` seconds; empty otherwise."""
    first, second = sample.halves
    low, high = min(first, second), max(first, second)
    if sample.requests < 2 or (high <= APART * low and (limit is None or high <= limit)):
        return ""
    return (
        f"95 % of first tokens come within {duration(first)} in the first half of the requests, and within {duration(second)} "
        "in the second."
    )
