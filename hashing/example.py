"""Names that vLLM's ExampleConnector gives to what it keeps of a prompt, as keys.

Knows tokens, names of media and one digest (``ExampleConnector._generate_foldername_debug``, vLLM 0.32.0; in 0.11 it is called
SharedStorageConnector): MD5 of the leading tokens as int64, then of the media's names. Never knows salts or adapters, for
neither does the connector: it gives everybody's cache to everybody.
"""

import hashlib
import re
import sys
from array import array
from collections.abc import Sequence
from typing import Final

from hashing.errors import UnhashableError
from hashing.extras import NO_EXTRAS, Extras
from hashing.own import LearnedKeys

NAME: Final = re.compile(r"[0-9a-f]{32}")


class ExampleKeys(LearnedKeys, frozen=True):
    """What prompts are hashed with to be found among the connector's folders; stands where a ``Recipe`` would."""


class ExampleChain:
    """The keys of one prompt, as of each of its leading blocks. Mutable: it remembers what it has hashed.

    Raises:
        UnhashableError: a token is no integer that fits.
    """

    def __init__(self, keys: ExampleKeys, tokens: Sequence[int], extras: Extras = NO_EXTRAS) -> None:
        try:
            packed = array("q", tokens)
        except (OverflowError, TypeError) as error:
            raise UnhashableError(f"tokens: {error}; give integers below 2**63") from error
        if sys.byteorder == "big":
            packed.byteswap()
        self._bytes = memoryview(packed).cast("B")
        self._block_bytes = keys.block_size * packed.itemsize
        self._length = len(packed) // keys.block_size
        self._media = "-".join(item.identifier for item in extras.multimodal).encode()
        self._hash = hashlib.md5(usedforsecurity=False)
        self._keys: list[int] = []

    def keys(self, count: int, /) -> list[int]:
        """The keys of at least the first ``count`` blocks, or of all if there are fewer; only read them."""
        while len(self._keys) < min(count, self._length):
            at = len(self._keys) * self._block_bytes
            self._hash.update(self._bytes[at : at + self._block_bytes])
            whole = self._hash.copy()
            whole.update(self._media)
            self._keys.append(key_of_name(whole.hexdigest()))
        return self._keys


def key_of_name(name: str) -> int:
    """The key of a folder's name."""
    return int(name[:16], 16)
