"""What the numbers of a cache weigh, by vLLM's ``--kv-cache-dtype``.

Knows names of data types and their layouts. Never knows models.

Source: vLLM 0.32 (``CacheDType``; ``TritonAttentionBackend.customize_spec`` for scales of each token and head;
``nvfp4_kv_cache_full_dim``; ``MLAAttention`` for rows of 656 and 352 bytes).
"""

from typing import Final

from balancer.errors import ConfigError

FULL_WIDTH: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a number of the models' own types."""

_FP8: Final = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
_SCALED: Final = {"int8_per_token_head": 1.0, "fp8_per_token_head": 1.0, "int4_per_token_head": 0.5}
"""Bytes of a number; beside them one float32 for each key and each value of a head."""
_NVFP4: Final = frozenset({"nvfp4", "nvfp4_4over6"})
_ROWS: Final = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes of one token in one layer of DeepSeek's latent attention, whole rows."""

NAMES: Final = ("auto", *FULL_WIDTH, *sorted(_FP8), *_SCALED, *sorted(_NVFP4), *_ROWS)


def vector_bytes(precision: str, numbers: int) -> float:
    """Bytes of the key, or of the value, of one token in one head of one layer.

    Raises:
        ConfigError: nothing is known of this precision, or it is none of keys and values.
    """
    if precision in FULL_WIDTH:
        return numbers * FULL_WIDTH[precision]
    if precision in _FP8:
        return numbers
    if precision in _SCALED:
        return numbers * _SCALED[precision] + 4
    if precision in _NVFP4:
        return numbers // 2 + numbers // 16
    if precision in _ROWS:
        raise ConfigError(
            f"kv_cache_dtype: {precision} is for latent attention, which this model does not have; use fp8"
        )
    raise _unknown(precision)


def latent_bytes(precision: str, numbers: int) -> float:
    """Bytes of the latent and rotary part of one token in one layer of multi-head latent attention.

    Raises:
        ConfigError: nothing is known of this precision, or it is none of latents.
    """
    if precision in _ROWS:
        return _ROWS[precision]
    if precision in FULL_WIDTH or precision in _FP8:
        return vector_bytes(precision, numbers)
    if precision in NAMES:
        raise ConfigError(f"kv_cache_dtype: {precision} is not for latent attention; use auto, fp8 or fp8_ds_mla")
    raise _unknown(precision)


def _unknown(precision: str) -> ConfigError:
    return ConfigError(
        f"kv_cache_dtype: '{precision}' is unknown; use one of {', '.join(NAMES)}, or give bytes_per_token"
    )
