"""What vLLM keeps of prompts, for configurations on standard input: runs in vLLM's own interpreter, knows nothing of kvlb.

In: a JSON list of ``[config, cache_dtype]``. Out: for each, one line with what each kind of layer keeps: its ``layers``, and
``token_bytes`` or ``state_bytes`` of one of them, by vLLM's own specifications of caches.
"""

import json
import sys
import tempfile
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from vllm.config import CacheConfig, ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.models import ModelRegistry
from vllm.utils.torch_utils import get_dtype_size, kv_cache_dtype_str_to_dtype, resolve_kv_cache_dtype_string
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, get_kv_quant_mode


def kept(config: dict[str, Any], cache_dtype: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="auto", max_model_len=1024)
    name = resolve_kv_cache_dtype_string(cache_dtype, model)
    dtype = kv_cache_dtype_str_to_dtype(name, model)
    text = model.hf_text_config
    spec_class = MLAAttentionSpec if model.use_mla else FullAttentionSpec
    spec = spec_class(
        block_size=16,
        num_kv_heads=1 if model.use_mla else model.get_total_num_kv_heads(),
        head_size=model.get_head_size(),
        dtype=dtype,
        kv_quant_mode=get_kv_quant_mode(name),
    )
    shared = getattr(text, "num_kv_shared_layers", 0) or 0
    types = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    if types is None:
        types = [
            "sliding_attention" if getattr(text, "sliding_window", None) else "full_attention"
        ] * text.num_hidden_layers
    found = {
        "layers": Counter(types[: len(types) - shared]),
        "token_bytes": spec.page_size_bytes / 16,
        "window": getattr(text, "sliding_window", None),
        "chunk": getattr(text, "attention_chunk_size", None),
    }
    cls, _ = ModelRegistry.resolve_model_cls(model.architectures, model)
    if hasattr(cls, "get_mamba_state_shape_from_config"):
        vllm_config = VllmConfig(model_config=model, cache_config=CacheConfig(block_size=16))
        with set_current_vllm_config(vllm_config):
            shapes = cls.get_mamba_state_shape_from_config(vllm_config)
            dtypes = cls.get_mamba_state_dtype_from_config(vllm_config)
        found["state_bytes"] = sum(
            prod(shape) * get_dtype_size(each) for shape, each in zip(shapes, dtypes, strict=True)
        )
    return found


print(*(json.dumps(kept(*each)) for each in json.load(sys.stdin)), sep="\n")
