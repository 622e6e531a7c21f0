"""How often each bit is set in many bit sets.

Knows integers. Never knows what their bits mean.
"""

from collections.abc import Iterable


def tally(weighted: Iterable[tuple[int, int]]) -> list[int]:
    """Planes, lowest first, of (bit set, how many of it): a bit occurs as often as its binary digits in the planes say.

    Whole sets are added at once, as adders of hardware do it: so the cost is that of the sets and not of their bits.
    """
    planes: list[int] = []
    for bits, count in weighted:
        for level in range(count.bit_length()):
            carry, at = bits if count >> level & 1 else 0, level
            while carry:
                planes += [0] * (at + 1 - len(planes))
                planes[at], carry = planes[at] ^ carry, planes[at] & carry
                at += 1
    return planes
