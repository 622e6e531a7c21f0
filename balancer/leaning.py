"""Where a prompt lies best that nobody holds anything of: a choice that every process makes alike, and makes again.

Rendezvous hashing: each prompt leans to each replica by a number, and among equals the highest wins. So a gateway that has been
restarted without a snapshot, and one beside it, find again what lies where no event will tell of it any more; and a
replica that comes or goes moves its own prompts only.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import xxhash

from indexer.index import Keys

BEGINNING: Final = 256
"""Tokens that decide: the first ones, so that all turns of a conversation lean alike. What is shorter is soon computed anew."""

_MIX: Final = 0x9E3779B97F4A7C15
_64_BITS: Final = 2**64 - 1


def beginning(chains: Sequence[Keys], block_size: int) -> int:
    """The key that ends the beginning of the first of these prompts; 0 where there is none."""
    blocks = max(1, BEGINNING // block_size)
    keys = chains[0].keys(blocks) if chains else ()
    return keys[blocks - 1] if len(keys) >= blocks else 0


def lean(beginning: int, replica: str) -> int:
    """How much a prompt whose beginning has this key leans to the replica; more than 0."""
    return ((beginning ^ _seed(replica)) * _MIX & _64_BITS) | 1


def mixed(number: int) -> int:
    """The number, as far from its neighbours as hashes are from each other: ``lean`` alone spreads hashes, but no counts.

    Source: the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    """
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _64_BITS
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _64_BITS
    return number ^ (number >> 31)


@lru_cache(maxsize=10_000)
def _seed(replica: str) -> int:
    return xxhash.xxh3_64_intdigest(replica.encode())
