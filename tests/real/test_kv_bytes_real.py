"""Bytes that models keep, read from their configurations, against vLLM's own specifications of caches.

Run by ``scripts/test-real tests/real/test_kv_bytes_real.py``.
"""

import json
from collections import Counter
from typing import Any, Final

import pytest

from balancer.economics.model_config import cache_shape
from balancer.economics.shape import Layers
from tests.real.records import run_script

pytestmark = pytest.mark.real

COMMON: Final = {"max_position_embeddings": 4096, "torch_dtype": "bfloat16", "vocab_size": 1000}
LLAMA: Final[dict[str, Any]] = COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 100,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
}
DEEPSEEK: Final[dict[str, Any]] = COMMON | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
GEMMA3: Final[dict[str, Any]] = COMMON | {
    "architectures": ["Gemma3ForCausalLM"],
    "head_dim": 128,
    "hidden_size": 5376,
    "model_type": "gemma3_text",
    "num_attention_heads": 32,
    "num_hidden_layers": 62,
    "num_key_value_heads": 16,
    "sliding_window": 1024,
}
QWEN3_NEXT: Final[dict[str, Any]] = COMMON | {
    "architectures": ["Qwen3NextForCausalLM"],
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "model_type": "qwen3_next",
    "num_attention_heads": 16,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
}
JAMBA: Final[dict[str, Any]] = COMMON | {
    "architectures": ["JambaForCausalLM"],
    "attn_layer_offset": 4,
    "attn_layer_period": 8,
    "hidden_size": 4096,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "model_type": "jamba",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
}
CASES: Final = {
    "llama": (LLAMA, "auto"),
    "llama in 8 bits": (LLAMA, "fp8"),
    "llama without groups": ({key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}, "auto"),
    "deepseek": (DEEPSEEK, "auto"),
    "gemma 3": (GEMMA3, "auto"),
    "qwen3 next": (QWEN3_NEXT, "auto"),
    "jamba": (JAMBA, "auto"),
}


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, Any]]:
    lines = run_script("vllm_kv_bytes.py", list(CASES.values())).splitlines()
    return dict(zip(CASES, map(json.loads, lines), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_model_keeps_what_vllm_says_that_it_keeps(told: dict[str, dict[str, Any]], name: str) -> None:
    config, precision = CASES[name]
    # vLLM's CPU build keeps what Mamba layers remember in 32 bits, whatever the model says.
    shape = cache_shape(config | {"mamba_ssm_dtype": "float32"} if "state_bytes" in told[name] else config, precision)
    by_vllm = told[name]
    expected = Counter[Layers]()
    for kind, count in by_vllm["layers"].items():
        if kind in {"full_attention", "attention"}:
            expected[Layers(count * by_vllm["token_bytes"])] += 1
        elif kind == "sliding_attention":
            expected[Layers(count * by_vllm["token_bytes"], by_vllm["window"])] += 1
        else:
            expected[Layers(state_bytes=count * by_vllm["state_bytes"])] += 1
    assert Counter(shape.layers) == expected
