"""Payloads for tests, in the forms that vLLM has sent over the years, and an index to apply them to.

Knows the order and the defaults of fields: maps as vLLM 0.32, arrays as 0.22, 0.18 and 0.11. Never knows how kvlb reads
them.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from indexer.events import EMPTY, BlockRemoved, BlockStored
from indexer.index import MAX_BLOCKS, CacheIndex, ReplicaId
from indexer.wire import Batch

TIMESTAMP = 1_764_000_000.25
Hash = int | bytes


def payload(*events: Any, timestamp: float = TIMESTAMP, rank: Any = 0) -> bytes:
    return msgspec.msgpack.encode([timestamp, list(events), rank])


def stored_map(hashes: Sequence[Hash], parent: Hash | None = None, **more: Any) -> dict[str, Any]:
    """vLLM 0.32: required fields always, the others when they say something."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": [1, 2, 3, 4],
        "block_size": 4,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed_map(hashes: Sequence[Hash], **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **more}


CLEARED_MAP = {"type": "AllBlocksCleared"}
CLEARED_ARRAY = ["AllBlocksCleared"]


def stored_array(hashes: Sequence[Hash], parent: Hash | None = None, length: int = 12) -> list[Any]:
    """The first ``length`` elements, tag included: 12 as vLLM 0.22, 9 as 0.18, 7 as 0.11, 6 as 0.9."""
    tail = [None, "GPU", None, [None] * len(hashes), 0, "full_attention", None]
    return ["BlockStored", list(hashes), parent, [1, 2, 3, 4], 4, *tail][:length]


def removed_array(hashes: Sequence[Hash], length: int = 4) -> list[Any]:
    """4 elements as vLLM 0.22, 3 as 0.11 and 0.18, 2 as 0.9."""
    return ["BlockRemoved", list(hashes), "GPU", 0][:length]


def stored(*hashes: int, medium: str | None = "GPU", group: int | None = None) -> BlockStored:
    return BlockStored(list(hashes), None, EMPTY, 4, medium=medium, group_idx=group)


def removed(*hashes: int, medium: str | None = "GPU", group: int | None = None) -> BlockRemoved:
    return BlockRemoved(list(hashes), medium, group)


def batch(*hashes: int, timestamp: float = TIMESTAMP) -> Batch:
    """A batch that stores these blocks."""
    return Batch(timestamp, [stored(*hashes)])


def index_of(*replicas: ReplicaId, max_blocks: int = MAX_BLOCKS) -> CacheIndex:
    """An empty index of these replicas."""
    index = CacheIndex(max_blocks)
    for replica in replicas:
        index.add(replica)
    return index
