"""``hashing/recipes.py``: roots and releases."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hashing.errors import RecipeError
from hashing.recipes import Algorithm, Recipe

ROOTS: list[tuple[Algorithm, str | None, str]] = [
    ("sha256", None, "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198"),
    ("sha256", "0", "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c"),
    ("sha256_cbor", None, "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0"),
    ("sha256_cbor", "0", "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"),
    ("xxhash", "0", "6fb31cc38bba6066183f7f2104b9c051"),
    ("xxhash_cbor", "0", "1ebe36576dcb573f26b99533a20aaeca"),
]


@pytest.mark.parametrize(("algorithm", "seed", "root"), ROOTS)
def test_roots_are_those_of_vllm(algorithm: Algorithm, seed: str | None, root: str) -> None:
    recipe = Recipe(algorithm, seed=seed)
    assert recipe.has_known_root
    assert recipe.none_hash().hex() == root
    assert recipe.digest_bytes == len(root) // 2


def test_a_given_root_beats_the_seed() -> None:
    assert Recipe(seed="0", root=b"r" * 32).none_hash() == b"r" * 32
    assert Recipe("xxhash", root=b"r" * 16).has_known_root


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe("xxhash"),
        Recipe("xxhash_cbor"),
        Recipe.for_version("0.28.0"),
        Recipe.for_version("0.11.0", algorithm="sha256_cbor"),
    ],
)
def test_a_root_drawn_at_random_is_never_guessed(recipe: Recipe) -> None:
    assert not recipe.has_known_root
    with pytest.raises(RecipeError, match=r"seed: .* set PYTHONHASHSEED"):
        recipe.none_hash()


def test_an_empty_seed_is_a_seed() -> None:
    assert Recipe(seed="").none_hash() != Recipe().none_hash()


@pytest.mark.parametrize(
    ("version", "forms"),
    [
        ("0.11.0", ("random", "id", "id", "plain", "absent")),
        ("0.11.1", ("random", "name", "id", "plain", "absent")),
        ("0.14.0", ("random", "name", "id", "plain", "plain")),
        ("v0.18.0", ("random", "name", "id", "plain", "plain")),
        ("0.22.0", ("random", "name", "offset", "plain", "plain")),
        ("0.28.1", ("random", "name", "offset", "plain", "plain")),
        ("0.30.0", ("fixed", "name", "offset", "plain", "plain")),
        ("0.31.0rc1", ("fixed", "tagged", "tagged", "tagged", "tagged")),
        ("0.32.0", ("fixed", "tagged", "tagged", "tagged", "tagged")),
        ("0.33.1.dev7+g123abc", ("fixed", "tagged", "tagged", "tagged", "tagged")),
        ("1.0", ("fixed", "tagged", "tagged", "tagged", "tagged")),
    ],
)
def test_each_release_has_its_forms(version: str, forms: tuple[str, ...]) -> None:
    recipe = Recipe.for_version(version, block_size=32, seed="7")
    found = (recipe.unseeded, recipe.lora_form, recipe.multimodal_form, recipe.salt_form, recipe.embeds_form)
    assert found == forms
    assert (recipe.block_size, recipe.seed) == (32, "7")


def test_the_default_is_the_newest_release() -> None:
    assert Recipe.for_version("0.32.0") == Recipe()
    assert {Recipe.for_version("0.32.0"): "found"}[Recipe()] == "found"


@pytest.mark.parametrize(("version", "field"), [("0.10.2", "version"), ("0.8.5", "version"), ("main", "version")])
def test_a_version_that_cannot_be_mirrored_is_refused(version: str, field: str) -> None:
    with pytest.raises(RecipeError, match=f"^{field}: "):
        Recipe.for_version(version)


def test_an_algorithm_that_the_release_lacks_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"^algorithm: .*0\.14"):
        Recipe.for_version("0.11.0", algorithm="xxhash", seed="0")


def test_contradictions_are_refused_by_field() -> None:
    with pytest.raises(RecipeError, match=r"^algorithm: 'md5'"):
        Recipe("md5")  # type: ignore[arg-type]  # as read from a metrics label
    with pytest.raises(RecipeError, match=r"^block_size: 0"):
        Recipe(block_size=0)
    with pytest.raises(RecipeError, match=r"^root: 16 bytes"):
        Recipe(root=b"r" * 16)
    with pytest.raises(RecipeError, match=r"^seed: "):
        Recipe("sha256_cbor", seed="\ud800").none_hash()


def test_the_hash_seed_of_this_process_has_no_influence() -> None:
    script = (
        "from hashing.chain import Chain, ChainMemory\n"
        "from hashing.extras import Extras, Lora\n"
        "from hashing.recipes import Recipe\n"
        "extras = Extras(lora=Lora('ad', '/m/ad'), salt='s')\n"
        "print(Chain(Recipe(), range(2000), extras, memory=ChainMemory()).keys(125))"
    )
    root = Path(__file__).parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=root,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "random")
    }
    assert len(outputs) == 1
    assert outputs.pop().count(b",") == 124
