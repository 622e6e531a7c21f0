"""One block -> the bytes that vLLM hashes -> its digest.

Knows the two serialisations (pickle protocol 5, canonical CBOR) and the two hash functions behind vLLM's four
algorithms. Never knows what the extras mean. Pickle is sensitive to the *identity* of strings: whoever builds
extras decides which objects are shared (``extras.py``); here they go in as they come.
"""

import pickle
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Final, Literal, TypeAlias

from xxhash import xxh3_128_digest

Algorithm: TypeAlias = Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]
"""Values of vLLM's ``--prefix-caching-hash-algo``."""

Encodable: TypeAlias = "int | str | bytes | tuple[Encodable, ...] | None"
BlockExtra: TypeAlias = tuple[Encodable, ...] | None
"""The third member of what is hashed for a block; None when the block has no extras."""

BlockHasher: TypeAlias = Callable[[bytes, tuple[int, ...], BlockExtra], bytes]
"""(parent digest, the block's tokens, its extra) -> the block's digest."""

DIGEST_BYTES: Final[dict[Algorithm, int]] = {"sha256": 32, "sha256_cbor": 32, "xxhash": 16, "xxhash_cbor": 16}

# vLLM asks for pickle.HIGHEST_PROTOCOL, which is 5 from Python 3.8 to 3.14; a later 6 must not change
# our hashes.
PICKLE_PROTOCOL: Final = 5

# Above the vocabularies in common use; a bound (29 MB when full), because the ids come from clients.
_REMEMBERED_INTS: Final = 1 << 18


def pickled(value: Encodable) -> bytes:
    return pickle.dumps(value, PICKLE_PROTOCOL)


def cbor(value: Encodable) -> bytes:
    """Canonical CBOR (RFC 8949, 4.2) of the few types that a block consists of; integers within 64 bits."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _head(3, len(text)) + text
    return _head(4, len(value)) + b"".join(map(cbor, value))


@lru_cache(maxsize=1024)
def _head(major: int, argument: int) -> bytes:
    kind = major << 5
    if argument < 24:
        return bytes((kind | argument,))
    for code, width in ((24, 1), (25, 2), (26, 4)):
        if argument < 1 << 8 * width:
            return bytes((kind | code,)) + argument.to_bytes(width, "big")
    return bytes((kind | 27,)) + argument.to_bytes(8, "big")


class _EncodedInts(dict[int, bytes]):
    """CBOR of token ids, remembered: a lookup costs a tenth of the encoding."""

    def __missing__(self, value: int) -> bytes:
        encoded = cbor(value)
        if value < _REMEMBERED_INTS:
            self[value] = encoded
        return encoded


_encoded_int = _EncodedInts().__getitem__


def _cbor_block(parent: bytes, tokens: tuple[int, ...], extra: BlockExtra) -> bytes:
    tail = b"\xf6" if extra is None else cbor(extra)
    head = b"\x83" + _head(2, len(parent)) + parent + _head(4, len(tokens))
    return b"".join((head, *map(_encoded_int, tokens), tail))


def _sha256(parent: bytes, tokens: tuple[int, ...], extra: BlockExtra) -> bytes:
    return sha256(pickle.dumps((parent, tokens, extra), PICKLE_PROTOCOL)).digest()


def _sha256_cbor(parent: bytes, tokens: tuple[int, ...], extra: BlockExtra) -> bytes:
    return sha256(_cbor_block(parent, tokens, extra)).digest()


def _xxhash(parent: bytes, tokens: tuple[int, ...], extra: BlockExtra) -> bytes:
    return xxh3_128_digest(pickle.dumps((parent, tokens, extra), PICKLE_PROTOCOL))


def _xxhash_cbor(parent: bytes, tokens: tuple[int, ...], extra: BlockExtra) -> bytes:
    return xxh3_128_digest(_cbor_block(parent, tokens, extra))


BLOCK_HASHERS: Final[dict[Algorithm, BlockHasher]] = {
    "sha256": _sha256,
    "sha256_cbor": _sha256_cbor,
    "xxhash": _xxhash,
    "xxhash_cbor": _xxhash_cbor,
}


def seed_digest(algorithm: Algorithm, seed: str) -> bytes:
    """The root (vLLM's NONE_HASH) that an engine derives from its seed string."""
    serialized = cbor(seed) if algorithm.endswith("_cbor") else pickled(seed)
    return sha256(serialized).digest() if algorithm.startswith("sha256") else xxh3_128_digest(serialized)
