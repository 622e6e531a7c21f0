"""Chains that were hashed before, remembered a stride at a time.

Knows strides: 64 blocks whose keys and last digest follow from (who hashes and with which extras, parent
digest, tokens). Never knows requests or time. Holds at most ``max_bytes``, and forgets the least recently
used stride first.

The tokens enter as a seeded XXH3. A collision, even one that somebody without the seed managed to find, makes
kvlb misjudge a prefix; it can never change what an engine computes.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from xxhash import xxh3_128_digest

from hashing.store import ByteStore

STRIDE: Final = 64
"""Blocks that are remembered together."""

_KEYS: Final = Struct(f">{STRIDE}Q")
_KEY_MASK: Final = (1 << 64) - 1


class ChainMemory:
    """A bounded, least-recently-used store of hashed strides. Mutable.

    ``secret`` seeds the hash of tokens (64 bits count); the shell draws it at random.
    """

    def __init__(self, max_bytes: int = 64 << 20, secret: int = 0) -> None:
        self.store = ByteStore(max_bytes)
        self.seed = secret & _KEY_MASK

    def __len__(self) -> int:
        """The number of strides held."""
        return len(self.store)

    @property
    def bytes_held(self) -> int:
        """Memory in use, with what the containers cost."""
        return self.store.bytes_held

    def name(self, identity: bytes, parent: bytes, tokens: memoryview) -> bytes:
        """Under what a stride is kept. ``identity`` covers recipe and extras, ``tokens`` one whole stride."""
        return b"".join((identity, parent, xxh3_128_digest(tokens, self.seed)))

    def recall(self, name: bytes) -> tuple[tuple[int, ...], bytes] | None:
        """The stride's 64 keys and its last digest, or None if it is not (or no longer) known."""
        stride = self.store.get(name)
        return None if stride is None else (_KEYS.unpack_from(stride), stride[_KEYS.size :])

    def remember(self, name: bytes, keys: Sequence[int], digest: bytes) -> None:
        """Keeps a stride, and drops the least recently used ones until the bound holds again."""
        self.store.put(name, _KEYS.pack(*keys) + digest)
