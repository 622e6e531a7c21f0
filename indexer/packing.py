"""Lists of 64-bit integers as few bytes, and back.

Knows byte planes: the lowest bytes of all values together, then the second lowest, and so on; planes of nothing but zeros at
the top are left out, and the highest one left, which says little, is deflated. Never knows what the integers mean. What comes
back is what went in, or an error: never something of another length.
"""

import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import sub
from typing import Final

from indexer.errors import SnapshotError

WORD: Final = 8


def pack_words(values: Iterable[int]) -> bytes:
    """Eight bytes each, little-endian: for hashes, which nothing makes shorter."""
    words = array("Q", values)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def unpack_words(data: bytes) -> "array[int]":
    """The values of ``pack_words``.

    Raises:
        SnapshotError: not a whole number of them.
    """
    if len(data) % WORD:
        raise SnapshotError(f"{len(data)} bytes are no list of 64-bit integers")
    words = array("Q", data)
    if sys.byteorder == "big":
        words.byteswap()
    return words


def pack_small(values: Iterable[int]) -> list[bytes]:
    """Planes, lowest first: for values that are mostly small."""
    raw = pack_words(values)
    planes = [raw[at::WORD] for at in range(WORD)]
    while planes and not any(planes[-1]):
        planes.pop()
    if planes:
        deflated = zlib.compress(planes[-1], 1)
        if len(deflated) < len(planes[-1]):
            planes[-1] = deflated
    return planes


def unpack_small(planes: Sequence[bytes], count: int) -> "array[int]":
    """The ``count`` values of ``pack_small``.

    Raises:
        SnapshotError: they are not that many.
    """
    if len(planes) > WORD:
        raise SnapshotError(f"{len(planes)} planes make no 64-bit integers")
    raw = bytearray(count * WORD)
    for at, plane in enumerate(planes):
        raw[at::WORD] = plane if len(plane) == count else _inflated(plane, count)
    return unpack_words(bytes(raw))


def _inflated(plane: bytes, count: int) -> bytes:
    inflate = zlib.decompressobj()
    try:
        values = inflate.decompress(plane, count + 1)
    except zlib.error as error:
        raise SnapshotError(f"a plane cannot be inflated: {error}") from error
    if len(values) != count or not inflate.eof:
        raise SnapshotError(f"a plane is not of {count} values")
    return values


def pack_sorted(values: Sequence[int]) -> list[bytes]:
    """Planes of the differences; ``values`` ascend. Of 16,384 hashes each takes some 6.6 bytes."""
    return pack_small(map(sub, values, [0, *values[:-1]]))


def unpack_sorted(planes: Sequence[bytes], count: int) -> list[int]:
    """The ``count`` values of ``pack_sorted``.

    Raises:
        SnapshotError: they are not that many, or not of 64 bits.
    """
    values = list(accumulate(unpack_small(planes, count)))
    if values and values[-1] >> 64:
        raise SnapshotError("a sum of differences is beyond 64 bits")
    return values
