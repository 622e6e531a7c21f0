"""How far the figures of a run may be trusted: whether its sample is long enough for them.

Knows times and tokens. Never knows runs, or what is concluded: queues and caches begin empty, and what a part of a trace says
is what that part says.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from simulations.quantiles import quantile

SURE: Final = 1.96
"""Standard deviations to both sides of 95 % of a normal distribution, which stands for the binomial one."""

SHARE: Final = 0.95
"""The quantile that is looked at."""


class Sample(msgspec.Struct, frozen=True):
    """Times to the first token are seconds. Refused requests are not among them.

    Attributes:
        requests: that were served.
        filled: how many times over prompts that were computed would have filled all caches; None where that is not known.
        halves: the 95th percentile of the first half of the requests, and of the second.
        between: where chance alone may put it: from and to which value in 95 % of samples as long, if requests do not know of
            each other. They do in queues, so it is less sure than that.
    """

    requests: int
    filled: float | None
    halves: tuple[float, float]
    between: tuple[float, float]


def sample_of(ttfts: Sequence[float], computed: int, room: int) -> Sample:
    """What is known of a sample.

    Args:
        ttfts: times to the first token of those that were served, in the order of their requests.
        computed: prompt tokens that were.
        room: tokens of all caches; 0 where nobody knows.
    """
    half, ordered = len(ttfts) // 2, sorted(ttfts)
    width = SURE * math.sqrt(SHARE * (1 - SHARE) / max(1, len(ttfts)))
    return Sample(
        requests=len(ttfts),
        filled=computed / room if room > 0 else None,
        halves=(quantile(sorted(ttfts[:half]), SHARE), quantile(sorted(ttfts[half:]), SHARE)),
        between=(quantile(ordered, max(0.0, SHARE - width)), quantile(ordered, min(1.0, SHARE + width))),
    )
