"""Configurations: what cannot be is refused by name, and roots are random only where the release draws them."""

from typing import Any

import pytest

from simulations.fake.config import FakeConfig
from tests.simulations.fake.samples import config


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"model": ""}, "model"),
        ({"speed": 0}, "speed"),
        ({"data_parallel_size": 0}, "data_parallel_size"),
        ({"port": 70_000}, "port"),
        ({"event_port": -1}, "event_port"),
        ({"event_port": 5000, "replay_port": 5001, "data_parallel_size": 2}, "replay_port"),
        ({"num_gpu_blocks": 5}, "num_gpu_blocks"),
        ({"hash_algorithm": "md5"}, "algorithm"),
        ({"block_size": 0}, "block_size"),
        ({"vllm_version": "0.8.5"}, "0.8.5"),
        ({"vllm_version": "0.11.0", "hash_algorithm": "xxhash"}, "xxhash"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        FakeConfig(**changes)


def test_new_releases_hash_from_a_root_that_everyone_knows() -> None:
    assert config().engine(b"\1" * 32) == config().engine(b"\2" * 32)


@pytest.mark.parametrize("changes", [{"vllm_version": "0.22.0"}, {"hash_algorithm": "xxhash"}])
def test_where_the_root_is_drawn_it_differs_unless_a_seed_is_set(changes: dict[str, Any]) -> None:
    drawn = config(**changes)
    width = drawn.digest_bytes
    assert drawn.engine(b"\1" * width).recipe.none_hash() == b"\1" * width
    seeded = config(**changes, hash_seed="0")
    assert seeded.engine(b"\1" * width) == seeded.engine(b"\2" * width)
