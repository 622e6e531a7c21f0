"""Runs in vLLM's interpreter: requests as JSON on stdin -> what vLLM itself hashes for them, as JSON on stdout.

Knows vLLM 0.32.0's ``Request``, its block hasher and its event form of extra keys. Never knows kvlb, which judges the
answer in another process. Bytes travel as ``{"hex": ...}``.
"""

import json
import os
import sys
from typing import Any

import torch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils as core
from vllm.v1.request import Request


def request_of(case: dict[str, Any]) -> Request:
    lora = case["lora"]
    embeds = case["embeds"]
    return Request(
        request_id="request",
        prompt_token_ids=case["tokens"],
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        prompt_embeds=None if embeds is None else torch.tensor(embeds),
        mm_features=[
            MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier=item["identifier"],
                mm_position=PlaceholderRange(offset=item["offset"], length=item["length"]),
            )
            for item in case["multimodal"]
        ],
        lora_request=lora and LoRARequest(lora["name"], lora["id"], lora["path"]),
        cache_salt=case["salt"],
    )


def answer(case: dict[str, Any], algorithm: str) -> dict[str, Any]:
    size, request = case["block_size"], request_of(case)
    hashes = core.get_request_block_hasher(size, get_hash_fn_by_name(algorithm))(request)
    extras, item = [], 0
    for start in range(0, len(hashes) * size, size):
        extra, item = core.generate_block_hash_extra_keys(request, start, start + size, item)
        extras.append(extra)
    return {
        "hashes": [digest.hex() for digest in hashes],
        "published": [core.maybe_convert_block_hash(digest) for digest in hashes],
        "extra_keys": core.to_event_extra_keys(extras),
    }


def answers(group: dict[str, Any]) -> dict[str, Any]:
    os.environ.pop("PYTHONHASHSEED", None)
    if group["seed"] is not None:
        os.environ["PYTHONHASHSEED"] = group["seed"]
    core.init_none_hash(get_hash_fn_by_name(group["algorithm"]))
    return {
        "root": core.NONE_HASH.hex(),
        "answers": [answer(case, group["algorithm"]) for case in group["cases"]],
    }


if __name__ == "__main__":
    done = [answers(group) for group in json.load(sys.stdin)]
    json.dump(done, sys.stdout, default=lambda value: {"hex": value.hex()})
