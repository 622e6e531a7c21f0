"""Whether a whole prompt is moved or computed anew, and from which length on that turns.

Knows one link, one model and one speed. Never knows requests: this is the question that people ask before they buy a network.
"""

from typing import Final

import msgspec

from balancer.economics.links import Link
from balancer.economics.prefill import Prefill
from balancer.economics.shape import CacheShape

LONGEST: Final = 1 << 24
"""Tokens; whoever has a longer prompt has other worries."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Moving a prompt against computing it.

    Attributes:
        size: bytes of it.
        move_seconds: until it is there and its last token is computed.
        compute_seconds: until all of it is computed.
        break_even_tokens: the shortest prompt from which on moving is quicker, for that and all longer ones; None where
            it never is.
        break_even_bandwidth: bytes a second from which on moving this prompt is quicker; None where no link would do.
    """

    tokens: int
    size: float
    move_seconds: float
    compute_seconds: float
    break_even_tokens: int | None
    break_even_bandwidth: float | None

    @property
    def moves(self) -> bool:
        """Whether moving is quicker."""
        return self.move_seconds < self.compute_seconds


def judge(tokens: int, link: Link, shape: CacheShape, prefill: Prefill) -> Verdict:
    """Both ways for a prompt of so many tokens, of which the replica holds nothing."""
    size, last = shape.size(tokens), prefill.seconds(1, tokens - 1)
    compute = prefill.seconds(tokens, 0)
    spare = compute - last - link.fixed
    return Verdict(
        tokens=tokens,
        size=size,
        move_seconds=link.seconds(size) + last,
        compute_seconds=compute,
        break_even_tokens=break_even(link, shape, prefill),
        break_even_bandwidth=size / spare if spare > 0 else None,
    )


def break_even(link: Link, shape: CacheShape, prefill: Prefill) -> int | None:
    """The shortest prompt from which on moving is quicker than computing; None where that is beyond ``LONGEST``.

    What moving saves is convex in the length (attention grows with its square, a full window grows no more), so it is lost
    between two lengths at most; the second one is looked for.
    """

    def saved(tokens: int) -> float:
        return prefill.seconds(tokens, 0) - prefill.seconds(1, tokens - 1) - link.seconds(shape.size(tokens))

    if saved(LONGEST) <= 0:
        return None
    lost, end = 1, LONGEST
    while end - lost > 2:
        third = (end - lost) // 3
        if saved(lost + third) <= saved(end - third):
            end -= third
        else:
            lost += third
    lost = min(range(lost, end + 1), key=saved)
    if saved(lost) > 0:
        return 1
    won = LONGEST
    while won - lost > 1:
        middle = (lost + won) // 2
        if saved(middle) > 0:
            won = middle
        else:
            lost = middle
    return won
