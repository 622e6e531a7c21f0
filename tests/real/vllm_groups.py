"""Cache groups of hybrid models for vLLM's own classes, and vLLM's own lookup among blocks that a test has put there.

Run by vLLM's interpreter; nothing of this project is imported, and vLLM only when it runs. ``vllm_scheduler.py`` makes its
groups here; by itself it judges single lookups::

    python vllm_groups.py < cases.json > hits.json

**Group**: ``{"kind": "full_attention" | "mla_attention" | "sliding_window" | "mamba" | "chunked_local_attention",
"block_size", "window", "eagle": bool}``; a Mamba group may have ``"mode": "all"`` instead of ``"align"``.
**Case**: ``{"groups": [group, ...], "hash_size", "hit_size", "tokens", "held": [[place, ...], ...], "eagle": bool}``; ``held``
has for each group the places in the chain of hashes whose block it holds. The answer is the list of hits in tokens.
"""

import json
import os
import sys
from typing import Any

Group = dict[str, Any]


def make_groups(groups: list[Group]) -> list[Any]:
    """vLLM's ``KVCacheGroupSpec`` of each."""
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    return [
        KVCacheGroupSpec([f"layer {at}"], _spec(group), is_eagle_group=group.get("eagle", False))
        for at, group in enumerate(groups)
    ]


def _spec(group: Group) -> Any:
    import torch
    from vllm.v1 import kv_cache_interface as specs

    attention = {"block_size": group["block_size"], "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    match group["kind"]:
        case "full_attention":
            return specs.FullAttentionSpec(**attention)
        case "mla_attention":
            return specs.MLAAttentionSpec(**attention)
        case "sliding_window":
            return specs.SlidingWindowSpec(**attention, sliding_window=group["window"])
        case "chunked_local_attention":
            return specs.ChunkedLocalAttentionSpec(**attention, attention_chunk_size=group["window"])
        case "mamba":
            return specs.MambaSpec(
                block_size=group["block_size"],
                shapes=((4, 4),),
                dtypes=(torch.float32,),
                mamba_cache_mode=group.get("mode", "align"),
            )
    raise ValueError(group["kind"])


def hit(case: dict[str, Any]) -> int:
    """What vLLM's coordinator finds in a cache that holds exactly these blocks."""
    from vllm.v1.core.kv_cache_coordinator import get_kv_cache_coordinator
    from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id
    from vllm.v1.kv_cache_interface import KVCacheConfig

    config = KVCacheConfig(num_blocks=2, kv_cache_tensors=[], kv_cache_groups=make_groups(case["groups"]))
    coordinator = get_kv_cache_coordinator(
        config,
        max_model_len=100_000,
        max_in_flight_tokens=1_000,
        use_eagle=case["eagle"],
        enable_caching=True,
        enable_kv_cache_events=False,
        dcp_world_size=1,
        pcp_world_size=1,
        scheduler_block_size=case["hit_size"],
        hash_block_size=case["hash_size"],
    )
    hashes = [BlockHash(place.to_bytes(32, "big")) for place in range(case["tokens"] // case["hash_size"])]
    pool = coordinator.block_pool
    for group, places in enumerate(case["held"]):
        for place in places:
            name = make_block_hash_with_group_id(hashes[place], group)
            pool.cached_block_hash_to_block.insert(name, pool.blocks[1])
    return int(coordinator.find_longest_cache_hit(hashes, case["tokens"] - 1)[1])


def main() -> int:
    # vLLM logs to stdout and asks the network for models unless told otherwise.
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with answer:
        json.dump([hit(case) for case in json.load(sys.stdin)], answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
