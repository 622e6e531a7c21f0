"""What a model keeps of a prompt, read from its ``config.json``.

Knows the fields that Hugging Face's configurations have for it, and vLLM 0.32's reading of them. Never opens a file. What is
not known for certain is refused with the name of the field, for whoever asks can give ``bytes_per_token`` instead.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from balancer.economics.precision import FULL_WIDTH, latent_bytes, vector_bytes
from balancer.economics.shape import CacheShape, Layers
from balancer.errors import ConfigError

FULL, WINDOW, CHUNK, STATE, NOTHING = "full", "window", "chunk", "state", "nothing"

_KINDS: Final = {
    FULL: ("full_attention", "attention", "global_attention", "indexed_attention"),
    WINDOW: ("sliding_attention", "sliding_window_attention", "sliding_window", "local_attention"),
    CHUNK: ("chunked_attention",),
    STATE: ("linear_attention", "mamba", "mamba2"),
    NOTHING: ("mlp", "moe"),
}
_KIND: Final = {name: kind for kind, names in _KINDS.items() for name in names}
_LETTERS: Final = {"*": FULL, "M": STATE, "-": NOTHING, "E": NOTHING}
"""Nemotron-H's ``hybrid_override_pattern``."""

_EVERY: Final = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Of so many layers the last one sees everything, in models whose configuration may not say so."""

_TEXT: Final = ("text_config", "llm_config", "language_config", "thinker_config")
_UNREAD: Final = (
    "block_configs",
    "compress_ratios",
    "global_head_dim",
    "linear_attn_config",
    "num_global_key_value_heads",
    "num_kv_heads_per_layer",
)
"""Fields of models whose layers differ in ways that are not known here."""

_REMEDY: Final = "give bytes_per_token instead"

_STATEFUL: Final = ("mamba_", "ssm_", "linear_num_")
"""How fields begin that only models have which keep a state."""

Config = Mapping[str, Any]


def cache_shape(config: Config, precision: str = "auto", source: str = "") -> CacheShape:
    """What the model of this ``config.json`` keeps; ``precision`` is the engine's ``--kv-cache-dtype``.

    ``auto`` is what the checkpoint asks for, else the model's own type (of float32, vLLM makes 16 bits).

    Raises:
        ConfigError: a field is missing or not understood; the message names it.
    """
    text = _text(config)
    for field in _UNREAD:
        if text.get(field):
            raise ConfigError(f"{field}: layers that differ in this way are not known; {_REMEDY}")
    if text.get("is_encoder_decoder"):
        raise ConfigError(f"is_encoder_decoder: an encoder's cache is not known; {_REMEDY}")
    own = _own_dtype(config, text)
    if precision == "auto":
        precision = _asked(config) or own
    kinds = _layer_kinds(text)
    if STATE not in kinds and any(name.startswith(_STATEFUL) for name in text):
        raise ConfigError(f"layer_types: missing, and the model has layers that keep a state; add it, or {_REMEDY}")
    found: list[Layers] = []
    token = None
    for kind in dict.fromkeys(kinds):
        count = kinds.count(kind)
        if kind == STATE:
            found.append(Layers(state_bytes=count * _state_bytes(text, own)))
        elif kind != NOTHING:
            token = _token_bytes(text, precision) if token is None else token
            found.append(Layers(count * token, _window(text, kind)))
    return CacheShape(tuple(found), source)


# Fields


def _text(config: Config) -> Config:
    """The part that is about text, of models that read pictures, too."""
    for name in _TEXT:
        if isinstance(config.get(name), Mapping):
            return _text(config[name])
    return config


def _number(config: Config, *names: str) -> int:
    """The first of these fields that is there.

    Raises:
        ConfigError: none is, or what is there is no count.
    """
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name}: {value!r} is not a count of 1 or more; {_REMEDY}")
        return value
    others = f" ({', '.join(names[1:])} would do)" if len(names) > 1 else ""
    raise ConfigError(f"{names[0]}: missing from the model's config.json{others}; add it, or {_REMEDY}")


def _own_dtype(config: Config, text: Config) -> str:
    for each in (text, config):
        for name in ("torch_dtype", "dtype"):
            value = each.get(name)
            if isinstance(value, str):
                value = value.removeprefix("torch.")
                if value not in FULL_WIDTH:
                    raise ConfigError(f"{name}: {value!r} is not one of {', '.join(FULL_WIDTH)}")
                return "bfloat16" if value == "float32" else value
    return "bfloat16"  # a checkpoint that does not say is loaded in 16 bits


def _asked(config: Config) -> str | None:
    """The precision that a quantised checkpoint asks for."""
    quantised = config.get("quantization_config")
    if not isinstance(quantised, Mapping):
        return None
    inner = quantised.get("quantization")
    scheme = quantised.get("kv_cache_scheme") or (inner.get("kv_cache_scheme") if isinstance(inner, Mapping) else None)
    name = quantised.get("kv_cache_quant_algo") or (
        inner.get("kv_cache_quant_algo") if isinstance(inner, Mapping) else None
    )
    if isinstance(scheme, Mapping):
        return {8: "fp8", 4: "nvfp4"}.get(scheme.get("num_bits", 0))
    if isinstance(name, str) and name.lower() in {"fp8", "nvfp4"}:
        return name.lower()
    return None


# Layers


def _layer_kinds(text: Config) -> list[str]:
    """What each layer that has a cache of its own keeps."""
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_letter(letter) for letter in pattern]
    layers = _number(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    kinds = _told(text, layers) or _patterned(text, layers)
    shared = text.get("num_kv_shared_layers") or 0  # Gemma 3n: the last layers read the cache of others
    return kinds[: layers - shared]


def _letter(letter: str) -> str:
    if letter not in _LETTERS:
        raise ConfigError(f"hybrid_override_pattern: {letter!r} is not known; {_REMEDY}")
    return _LETTERS[letter]


def _told(text: Config, layers: int) -> list[str]:
    """The kinds of layers where the configuration names each."""
    for field in ("layer_types", "layers_block_type"):
        names = text.get(field)
        if names is None:
            continue
        if not isinstance(names, Sequence) or len(names) != layers:
            raise ConfigError(f"{field}: not one name for each of num_hidden_layers; {_REMEDY}")
        unknown = [name for name in names if name not in _KIND]
        if unknown:
            raise ConfigError(f"{field}: {unknown[0]!r} is not known; {_REMEDY}")
        return [_KIND[name] for name in names]
    return []


def _patterned(text: Config, layers: int) -> list[str]:
    if text.get("full_attention_interval"):  # Qwen3-Next
        every = _number(text, "full_attention_interval")
        return [STATE if (at + 1) % every else FULL for at in range(layers)]
    if text.get("attn_layer_period"):  # Jamba
        every, offset = _number(text, "attn_layer_period"), text.get("attn_layer_offset", 0)
        return [FULL if at % every == offset else STATE for at in range(layers)]
    if text.get("attn_layer_indices"):  # Bamba
        full = set(text["attn_layer_indices"])
        return [FULL if at in full else STATE for at in range(layers)]
    if text.get("attention_chunk_size"):  # Llama 4
        return _chunked(text, layers)
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return [FULL] * layers
    pattern = text.get("sliding_window_pattern") or _EVERY.get(text.get("model_type", ""))
    if pattern is None:
        return [WINDOW] * layers
    if not isinstance(pattern, int):
        raise ConfigError(f"sliding_window_pattern: {pattern!r} is not a number of layers; {_REMEDY}")
    return [WINDOW if (at + 1) % pattern else FULL for at in range(layers)]


def _chunked(text: Config, layers: int) -> list[str]:
    """Layers with rotary positions see their chunk, those without see everything."""
    rotary = text.get("no_rope_layers")  # 1 for those that have them, for all the name
    if isinstance(rotary, Sequence) and len(rotary) == layers:
        return [CHUNK if each else FULL for each in rotary]
    every = _number(text, "no_rope_layer_interval") if text.get("no_rope_layer_interval") else 4
    return [CHUNK if (at + 1) % every else FULL for at in range(layers)]


def _window(text: Config, kind: str) -> int | None:
    if kind == WINDOW:
        return _number(text, "sliding_window")
    return _number(text, "attention_chunk_size") if kind == CHUNK else None  # at most, when the chunk is full


# Bytes


def _token_bytes(text: Config, precision: str) -> float:
    """Bytes of one token in one layer."""
    if text.get("kv_lora_rank"):
        rotary = _number(text, "qk_rope_head_dim")
        indexed = text.get("index_head_dim") or 0  # DeepSeek V3.2: 8 bits each, and a float32 for every 128
        return latent_bytes(precision, _number(text, "kv_lora_rank") + rotary) + indexed + indexed // 128 * 4
    heads = _kv_heads(text)
    key = _number(text, "head_dim") if text.get("head_dim") else _head_size(text)
    value = _number(text, "v_head_dim") if text.get("v_head_dim") else key
    return heads * (vector_bytes(precision, key) + vector_bytes(precision, value))


def _kv_heads(text: Config) -> int:
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1  # Falcon, StarCoder
    for name in ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups"):
        if text.get(name) is not None:
            return _number(text, name)
    return _number(text, "num_attention_heads", "n_head", "n_heads")  # each head has its own, as vLLM takes it


def _head_size(text: Config) -> int:
    heads = _number(text, "num_attention_heads", "n_head", "n_heads")
    return _number(text, "hidden_size", "n_embd", "d_model") // heads


def _state_bytes(text: Config, own: str) -> float:
    """Bytes of the state of one layer: of its convolution, and of what it remembers."""
    state_dtype = text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype") or own
    if state_dtype not in FULL_WIDTH:
        raise ConfigError(f"mamba_ssm_dtype: {state_dtype!r} is not one of {', '.join(FULL_WIDTH)}")
    convolution, state = _state_numbers(text)
    return convolution * FULL_WIDTH[own] + state * FULL_WIDTH[state_dtype]


def _state_numbers(text: Config) -> tuple[int, int]:
    """Numbers of the convolution's state and of the recurrent one (vLLM's ``MambaStateShapeCalculator``)."""
    if text.get("linear_num_value_heads"):  # gated delta net: Qwen3-Next
        keys, key = _number(text, "linear_num_key_heads"), _number(text, "linear_key_head_dim")
        values, value = _number(text, "linear_num_value_heads"), _number(text, "linear_value_head_dim")
        kernel = _number(text, "linear_conv_kernel_dim")
        return (2 * keys * key + values * value) * (kernel - 1), values * value * key
    heads = text.get("mamba_num_heads") or text.get("mamba_n_heads")
    kernel = _number(text, "mamba_d_conv", "conv_kernel")
    size = _number(text, "mamba_d_state", "ssm_state_size")
    if heads:  # Mamba 2: Nemotron-H, Bamba, Granite, Falcon H1
        count, width = (
            _number(text, "mamba_num_heads", "mamba_n_heads"),
            _number(text, "mamba_head_dim", "mamba_d_head"),
        )
        groups = _number(text, "mamba_n_groups", "n_groups")
        return (count * width + 2 * groups * size) * (kernel - 1), count * width * size
    inner = _number(text, "mamba_expand") * _number(text, "hidden_size")  # Mamba 1: Jamba
    return inner * (kernel - 1), inner * size
