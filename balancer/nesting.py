"""How deeply lists and objects lie within each other in a JSON body.

Knows the brackets of a text that is valid JSON. Never builds a value: what is deep is told before anybody takes it apart, in a
time that grows with the text, and not with its depth or its strings.
"""

from itertools import accumulate
from typing import Final

MOST_LOOKED_THROUGH: Final = 4 * 1024 * 1024
"""Brackets and quotation marks of one body; one with more of them is taken for too deep: nobody should have to parse it."""

_FEW: Final = 6

_KEPT: Final = b'[]{}"'
_ALIKE: Final = bytes.maketrans(b"{}", b"[]")
_OTHERS: Final = bytes(byte for byte in range(256) if byte not in _KEPT)
_STEPS: Final = [{ord("["): 1, ord("]"): -1}.get(byte, 0) for byte in range(256)]


def is_deeper(body: bytes, limit: int) -> bool:
    """Whether anything in the text lies within more than ``limit`` lists and objects."""
    if not _has_more(body, limit):
        return False
    if b"\\" in body:  # a quotation mark behind one ends no string
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = body.translate(_ALIKE, _OTHERS).replace(b'""', b"")  # of strings in a row, one is left at the most
    if len(structure) > MOST_LOOKED_THROUGH:
        return True
    outside = b"".join(structure.split(b'"')[::2])
    return max(accumulate(map(_STEPS.__getitem__, outside)), default=0) > limit


def _has_more(body: bytes, limit: int) -> bool:
    """Whether more lists and objects than this begin anywhere, those in strings included."""
    return _count(body, b"[") + _count(body, b"{") > limit


def _count(body: bytes, bracket: bytes) -> int:
    """How often it is there. A few are found faster than counted: a long prompt has no more."""
    at = -1
    for found in range(_FEW):
        at = body.find(bracket, at + 1)
        if at < 0:
            return found
    return _FEW + body.count(bracket, at + 1)
