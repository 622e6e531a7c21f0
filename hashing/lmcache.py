"""Names that LMCache gives to chunks of a prompt, where they can be computed.

Knows tokens and one of its hashes (LMCache 0.5.6, ``TokenDatabase._hash_tokens`` with ``pre_caching_hash_algorithm``
``sha256_cbor``; its root is vLLM's). Never knows salts, adapters or media: nor does LMCache's name of a chunk. Its default,
Python's own ``hash``, begins with a number that each process draws.
"""

from collections.abc import Sequence
from hashlib import sha256

from hashing.recipes import DEFAULT_SEED
from hashing.serialize import cbor, seed_digest


def chunk_hashes(tokens: Sequence[int], chunk_size: int, seed: str | None = None) -> list[int]:
    """The hash of each full chunk, all tokens before it included; ``seed`` is PYTHONHASHSEED where it is set.

    Without one it is the root of vLLM 0.30 and later; before, it is drawn at random.
    """
    before = _folded(seed_digest("sha256_cbor", DEFAULT_SEED if seed is None else seed))
    hashes = []
    for start in range(0, len(tokens) - chunk_size + 1, chunk_size):
        before = _folded(sha256(cbor((before, tuple(tokens[start : start + chunk_size]), ()))).digest())
        hashes.append(before)
    return hashes


def _folded(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")
