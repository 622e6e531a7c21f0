"""``balancer/economics/model_config.py``: bytes per token of models that people run, from the fields of their config.json."""

from typing import Any

import pytest

from balancer.economics.model_config import cache_shape
from balancer.economics.shape import Layers
from balancer.errors import ConfigError

LLAMA: dict[str, Any] = {  # meta-llama/Llama-3.1-8B
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
DEEPSEEK: dict[str, Any] = {  # deepseek-ai/DeepSeek-V3
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
}
GEMMA3: dict[str, Any] = {  # google/gemma-3-27b-it, of which the text model is a part
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "vision_config": {"num_hidden_layers": 27},
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 128,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "sliding_window": 1024,
    },
}
QWEN3_NEXT: dict[str, Any] = {  # Qwen/Qwen3-Next-80B-A3B-Instruct
    "model_type": "qwen3_next",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "num_attention_heads": 16,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
}


def test_llama_3_1_8b_leaves_128_kib_a_token_and_half_of_it_in_8_bits() -> None:
    assert cache_shape(LLAMA).bytes_per_token == 128 * 1024
    assert cache_shape(LLAMA, "fp8").bytes_per_token == 64 * 1024
    assert cache_shape(LLAMA, "float32").bytes_per_token == 256 * 1024
    assert cache_shape(LLAMA, "int8_per_token_head").bytes_per_token == 32 * 8 * 2 * 132


def test_a_prompt_of_8000_tokens_is_just_under_a_gibibyte() -> None:
    assert cache_shape(LLAMA).size(8000) / 2**30 == pytest.approx(0.98, abs=0.005)
    assert cache_shape(LLAMA, "fp8").size(8000) * 2 == cache_shape(LLAMA).size(8000)


def test_the_latent_of_deepseek_is_one_for_all_heads() -> None:
    assert cache_shape(DEEPSEEK).bytes_per_token == 61 * 576 * 2
    assert cache_shape(DEEPSEEK, "fp8").bytes_per_token == 61 * 576
    assert cache_shape(DEEPSEEK, "fp8_ds_mla").bytes_per_token == 61 * 656


def test_an_indexer_of_sparse_attention_keeps_keys_of_its_own() -> None:
    sparse = DEEPSEEK | {"index_head_dim": 128}  # DeepSeek V3.2
    assert cache_shape(sparse, "fp8_ds_mla").bytes_per_token == 61 * (656 + 132)


def test_a_size_of_heads_may_be_told_or_follows_from_the_width() -> None:
    assert cache_shape(LLAMA | {"head_dim": 64}).bytes_per_token == 64 * 1024
    assert cache_shape(LLAMA | {"head_dim": None}).bytes_per_token == 128 * 1024
    assert cache_shape(LLAMA | {"head_dim": 192, "v_head_dim": 128}).bytes_per_token == 32 * 8 * (192 + 128) * 2


def test_heads_without_groups_have_each_their_own_and_multi_query_has_one() -> None:
    alone = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert cache_shape(alone).bytes_per_token == 4 * 128 * 1024
    falcon = alone | {"multi_query": True}
    assert cache_shape(falcon).bytes_per_token == 128 * 1024 / 8
    assert cache_shape(falcon | {"new_decoder_architecture": True, "num_kv_heads": 8}).bytes_per_token == 128 * 1024
    gpt2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "torch_dtype": "float16"}
    assert cache_shape(gpt2).bytes_per_token == 12 * 12 * 64 * 2 * 2


def test_five_of_six_layers_of_gemma_3_see_a_window() -> None:
    shape = cache_shape(GEMMA3)
    token = 16 * 128 * 2 * 2
    assert set(shape.layers) == {Layers(52 * token, 1024), Layers(10 * token)}
    assert shape.size(32_000) == (10 * 32_000 + 52 * 1024) * token


def test_a_window_may_be_of_all_layers_or_not_be_used() -> None:
    assert cache_shape(LLAMA | {"sliding_window": 4096}).layers == (Layers(128 * 1024, 4096),)
    assert cache_shape(LLAMA | {"sliding_window": 4096, "use_sliding_window": False}).layers == (Layers(128 * 1024),)
    assert cache_shape(LLAMA | {"sliding_window": 4096, "sliding_window_pattern": 4}).layers == (
        Layers(96 * 1024, 4096),
        Layers(32 * 1024),
    )


def test_kinds_of_layers_may_be_named_one_by_one() -> None:
    named = LLAMA | {"layer_types": ["sliding_attention", "full_attention"] * 16, "sliding_window": 128}  # gpt-oss
    assert cache_shape(named).layers == (Layers(64 * 1024, 128), Layers(64 * 1024))
    shared = named | {"num_kv_shared_layers": 8}  # Gemma 3n
    assert cache_shape(shared).layers == (Layers(48 * 1024, 128), Layers(48 * 1024))


def test_llama_4_sees_chunks_in_three_of_four_layers() -> None:
    chunked = LLAMA | {"attention_chunk_size": 8192}
    assert cache_shape(chunked).layers == (Layers(96 * 1024, 8192), Layers(32 * 1024))
    told = chunked | {"no_rope_layers": [1, 0] * 16}
    assert cache_shape(told).layers == (Layers(64 * 1024, 8192), Layers(64 * 1024))


def test_three_of_four_layers_of_qwen3_next_keep_a_state() -> None:
    shape = cache_shape(QWEN3_NEXT)
    assert shape.bytes_per_token == 12 * 2 * 256 * 2 * 2
    convolution, state = (2 * 16 * 128 + 32 * 128) * 3, 32 * 128 * 128
    assert sum(each.state_bytes for each in shape.layers) == 36 * 2 * (convolution + state)
    wide = cache_shape(QWEN3_NEXT | {"mamba_ssm_dtype": "float32"})
    assert sum(each.state_bytes for each in wide.layers) == 36 * (2 * convolution + 4 * state)


def test_mamba_2_by_a_pattern_and_mamba_1_by_a_period() -> None:
    nemotron = {
        "hybrid_override_pattern": "M-M*-",
        "conv_kernel": 4,
        "head_dim": 128,
        "mamba_head_dim": 64,
        "mamba_num_heads": 128,
        "n_groups": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "ssm_state_size": 128,
        "torch_dtype": "bfloat16",
    }
    shape = cache_shape(nemotron)
    assert shape.bytes_per_token == 8 * 128 * 2 * 2
    assert sum(each.state_bytes for each in shape.layers) == 2 * 2 * ((128 * 64 + 2 * 8 * 128) * 3 + 128 * 64 * 128)
    jamba = LLAMA | {
        "attn_layer_offset": 4,
        "attn_layer_period": 8,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_expand": 2,
    }
    shape = cache_shape(jamba)
    assert shape.bytes_per_token == 4 * 8 * 128 * 2 * 2
    assert sum(each.state_bytes for each in shape.layers) == 28 * 2 * (8192 * 3 + 8192 * 16)


def test_the_type_is_the_checkpoints_own_unless_it_asks_for_another() -> None:
    assert cache_shape(LLAMA | {"torch_dtype": "float32"}).bytes_per_token == 128 * 1024, "vLLM makes 16 bits of 32"
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert cache_shape(LLAMA | {"quantization_config": scheme}).bytes_per_token == 64 * 1024
    assert cache_shape(LLAMA | {"quantization_config": scheme}, "bfloat16").bytes_per_token == 128 * 1024
    modelopt = {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}
    assert cache_shape(LLAMA | {"quantization_config": modelopt}).bytes_per_token == 64 * 1024
    weights_alone = {"quant_method": "awq", "bits": 4}
    assert cache_shape(LLAMA | {"quantization_config": weights_alone}).bytes_per_token == 128 * 1024


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (
            "num_hidden_layers",
            r"num_hidden_layers: missing from the model's config.json \(n_layer, n_layers, num_layers would do\)",
        ),
        ("num_attention_heads", r"num_attention_heads: missing .* or give bytes_per_token instead"),
        ("hidden_size", "hidden_size: missing"),
    ],
)
def test_a_missing_field_is_named(missing: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cache_shape({key: value for key, value in LLAMA.items() if key != missing})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA | {"num_hidden_layers": "32"}, "num_hidden_layers: '32' is not a count"),
        (LLAMA | {"num_key_value_heads": 0}, "num_key_value_heads: 0 is not a count"),
        (LLAMA | {"num_key_value_heads": [8] * 32}, "num_key_value_heads: .* is not a count"),
        (LLAMA | {"torch_dtype": "float8"}, "torch_dtype: 'float8' is not one of"),
        (LLAMA | {"layer_types": ["full_attention"]}, "layer_types: not one name for each of num_hidden_layers"),
        (LLAMA | {"layer_types": ["quantum"] * 32}, "layer_types: 'quantum' is not known; give bytes_per_token"),
        (LLAMA | {"layer_types": ["sliding_attention"] * 32}, "sliding_window: missing"),
        (LLAMA | {"sliding_window": 9, "sliding_window_pattern": "LLLG"}, "sliding_window_pattern: 'LLLG'"),
        (LLAMA | {"hybrid_override_pattern": "M?"}, r"hybrid_override_pattern: '\?' is not known"),
        (LLAMA | {"mamba_d_state": 16}, "layer_types: missing, and the model has layers that keep a state"),
        (LLAMA | {"layer_types": ["mamba"] * 32}, "mamba_d_conv: missing"),
        (LLAMA | {"block_configs": [{}]}, "block_configs: layers that differ in this way are not known"),
        (LLAMA | {"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({key: value for key, value in DEEPSEEK.items() if key != "qk_rope_head_dim"}, "qk_rope_head_dim: missing"),
        (QWEN3_NEXT | {"mamba_ssm_dtype": "int8"}, "mamba_ssm_dtype: 'int8' is not one of"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_named(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cache_shape(config)
