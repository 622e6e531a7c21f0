"""Block hashes as events carry them -> the one key under which an index keeps them.

Knows both forms of vLLM's ``ExternalBlockHash``: the whole digest, and the unsigned integer of its last 8
bytes. Never knows which algorithm made them. Both forms of one hash give the same key, so differently
configured replicas meet in one index.
"""

from typing import Final

KEY_MASK: Final = (1 << 64) - 1


def key_of(hash: int | bytes) -> int:
    """The unsigned 64-bit key of a published block hash.

    Bytes give their last 8 bytes, big-endian. Integers are reduced modulo 2**64, so that a decoder which read
    the number as signed still finds the key. Source: vLLM 0.32.0, ``maybe_convert_block_hash`` in
    ``vllm/v1/core/kv_cache_utils.py``.
    """
    if isinstance(hash, int):
        return hash & KEY_MASK
    return int.from_bytes(hash[-8:], "big")
