"""Runs in vLLM's interpreter: the bytes that its own event classes give -> ``events_vllm_<version>.json`` beside this file.

Knows vLLM 0.32.0's ``KVEventBatch``, its three events and how its publisher encodes them. Never knows kvlb. Each case has
the payload as hex and, beside it, what was put in. To record anew: ``<vLLM's python> tests/golden/record_events.py``.
"""

# mypy: ignore-errors
# The checker's environment has no vLLM, and this file is never imported from there.

import json
from pathlib import Path

import msgspec
import vllm
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

TIMESTAMP = 1_764_000_000.25
DIGEST = bytes.fromhex("2f310d760d759dff04c4d10761d61d07721dd5f28f17b0b2b1aca189072f77a2")
SHORT_DIGEST = bytes.fromhex("00112233445566778899aabbccddeeff")

# As a live engine sent it (one full-attention group, block size 32).
LIVE = {
    "block_hashes": [11290800355336220572],
    "parent_block_hash": None,
    "token_ids": list(range(1, 33)),
    "block_size": 32,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}
FULL = {
    "block_hashes": [1, 2**63, 2**64 - 1],
    "parent_block_hash": 2**63 + 5,
    "token_ids": [0, 65_535, 128_000, 2**31 - 1] * 3,
    "block_size": 4,
    "lora_id": 3,
    "medium": "CPU",
    "lora_name": "adapter",
    "extra_keys": [("adapter", ("f" * 64, 3), "salt"), (("f" * 64, -1),), None],
    "group_idx": 2,
    "kv_cache_spec_kind": "sliding_window",
    "kv_cache_spec_sliding_window": 64,
    "locality": "REMOTE",
    "ownership": "tier",
    "session_id": "session",
}
BARE = {
    "block_hashes": [],
    "parent_block_hash": None,
    "token_ids": [],
    "block_size": 0,
    "lora_id": None,
    "medium": None,
    "lora_name": None,
}
BYTES = dict(LIVE, block_hashes=[DIGEST], parent_block_hash=DIGEST)
SHORT_BYTES = dict(LIVE, block_hashes=[SHORT_DIGEST])

CASES = {
    "stored, as a live engine": [("BlockStored", LIVE)],
    "stored, every field": [("BlockStored", FULL)],
    "stored, nothing but what is required": [("BlockStored", BARE)],
    "stored, sha256 digests as bytes": [("BlockStored", BYTES)],
    "stored, xxhash digests as bytes": [("BlockStored", SHORT_BYTES)],
    "removed": [("BlockRemoved", {"block_hashes": [7], "medium": "GPU", "group_idx": 0})],
    "removed, every field": [
        (
            "BlockRemoved",
            {
                "block_hashes": [DIGEST, SHORT_DIGEST],
                "medium": "STORAGE",
                "group_idx": 1,
                "locality": "LOCAL",
                "ownership": "tier",
            },
        )
    ],
    "cleared, then stored, in one batch": [("AllBlocksCleared", {}), ("BlockStored", LIVE)],
    "removed one by one, then stored": [
        *(("BlockRemoved", {"block_hashes": [hash], "medium": "GPU", "group_idx": 0}) for hash in (5, 6)),
        ("BlockStored", LIVE),
    ],
    "no events": [],
}
CLASSES = {"BlockStored": BlockStored, "BlockRemoved": BlockRemoved, "AllBlocksCleared": AllBlocksCleared}


def record(rank):
    for name, events in CASES.items():
        batch = KVEventBatch(ts=TIMESTAMP, events=[CLASSES[tag](**fields) for tag, fields in events])
        batch.data_parallel_rank = rank
        yield {
            "name": f"{name}; rank {rank}",
            "timestamp": TIMESTAMP,
            "rank": rank,
            "events": [dict(fields, type=tag) for tag, fields in events],
            "payload": msgspec.msgpack.encode(batch).hex(),
        }


if __name__ == "__main__":
    recorded = {"vllm": vllm.__version__, "cases": [*record(0), *record(None)]}
    target = Path(__file__).with_name(f"events_vllm_{vllm.__version__}.json")
    text = json.dumps(recorded, indent=1, default=lambda value: {"hex": value.hex()})
    target.write_text(text + "\n")
