"""Where a prompt lies best that nobody holds anything of: a choice that every process makes alike, and makes again.

Rendezvous hashing: each prompt leans to each replica by a number, and among equals the highest wins. So a gateway that has been
restarted without a snapshot, and one beside it, find again what lies where no event will tell of it any more; and a
replica that comes or goes moves its own prompts only.
"""

from functools import lru_cache
from typing import Final

import xxhash

BEGINNING: Final = 256
"""Tokens that decide: the first ones, so that all turns of a conversation lean alike. What is shorter is soon computed anew."""

_MIX: Final = 0x9E3779B97F4A7C15
_64_BITS: Final = 2**64 - 1


def lean(beginning: int, replica: str) -> int:
    """How much a prompt whose beginning has this key leans to the replica; more than 0."""
    return ((beginning ^ _seed(replica)) * _MIX & _64_BITS) | 1


@lru_cache(maxsize=10_000)
def _seed(replica: str) -> int:
    return xxhash.xxh3_64_intdigest(replica.encode())
