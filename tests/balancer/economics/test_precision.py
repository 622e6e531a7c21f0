"""``balancer/economics/precision.py``: bytes by data type, as vLLM 0.32 lays them out."""

import pytest

from balancer.economics.precision import NAMES, latent_bytes, vector_bytes
from balancer.errors import ConfigError


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("float32", 512),
        ("bfloat16", 256),
        ("float16", 256),
        ("fp8", 128),
        ("fp8_e5m2", 128),
        ("int8_per_token_head", 132),
        ("int4_per_token_head", 68),
        ("nvfp4", 72),
    ],
)
def test_a_head_of_128_numbers(precision: str, expected: float) -> None:
    assert vector_bytes(precision, 128) == expected


@pytest.mark.parametrize(
    ("precision", "expected"), [("bfloat16", 1152), ("fp8", 576), ("fp8_ds_mla", 656), ("nvfp4_ds_mla", 352)]
)
def test_a_latent_of_512_and_64(precision: str, expected: float) -> None:
    assert latent_bytes(precision, 576) == expected


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ConfigError, match="latent attention, which this model does not have"):
        vector_bytes("fp8_ds_mla", 128)
    with pytest.raises(ConfigError, match="int8_per_token_head is not for latent attention"):
        latent_bytes("int8_per_token_head", 576)
    for weigh in (vector_bytes, latent_bytes):
        with pytest.raises(ConfigError, match=r"kv_cache_dtype: 'int3' is unknown; use one of auto, float32"):
            weigh("int3", 128)


def test_each_name_weighs_something_in_one_of_the_two() -> None:
    for name in NAMES[1:]:
        weigh = latent_bytes if name.endswith("_mla") else vector_bytes
        assert weigh(name, 576) > 0
