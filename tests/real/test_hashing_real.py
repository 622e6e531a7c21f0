"""kvlb's hashes against those of vLLM 0.32.0's own functions, on random requests with all kinds of extras."""

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from hashing.chain import Chain, hash_blocks
from hashing.external import key_of
from hashing.extras import Extras, Lora, MultimodalItem, from_event
from hashing.recipes import Algorithm, Recipe
from tests.real.environment import vllm_python

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).with_name("vllm_hashes.py")
SEEDS = [None, "0", "random", "4294967295", "süß"]
BLOCKS_A_GROUP = 150

# Short and repeated on purpose: pickle tells equal strings from shared ones, and CPython shares those of one character.
TEXTS = ["a", "s", "é", "ab", "mm", "lora", "cache_salt", "prompt_embeds", "漢字", "x" * 255, "ü" * 128, "y" * 300]


class Case(msgspec.Struct):
    block_size: int
    tokens: list[int]
    lora: Lora | None
    multimodal: list[MultimodalItem]
    salt: str | None
    embeds: list[list[float]] | None


class Group(msgspec.Struct):
    algorithm: Algorithm
    seed: str | None
    cases: list[Case]


def token(draw: random.Random) -> int:
    return draw.randrange(draw.choice([256, 1 << 16, 200_000, 1 << 31, 1 << 32, 1 << 40]))


def items(draw: random.Random, length: int) -> list[MultimodalItem]:
    """Items by position, as vLLM orders them; some overlap, as audio within a video does."""
    found = [
        MultimodalItem(draw.choice(TEXTS), draw.randrange(length), draw.randint(1, 1 + length // 2))
        for _ in range(draw.randint(1, 6))
    ]
    return sorted(found, key=lambda item: item.offset)


def case(draw: random.Random) -> Case:
    block_size = draw.choice([1, 2, 3, 4, 16, 32])
    length = block_size * draw.randint(1, 12) + draw.randrange(block_size)
    has_embeds = draw.random() < 0.2
    return Case(
        block_size=block_size,
        tokens=[0] * length if has_embeds else [token(draw) for _ in range(length)],
        lora=Lora(draw.choice(TEXTS), draw.choice(TEXTS), draw.randint(1, 99)) if draw.random() < 0.4 else None,
        multimodal=items(draw, length) if draw.random() < 0.5 else [],
        salt=draw.choice([*TEXTS, ""]) if draw.random() < 0.4 else None,
        embeds=[[draw.random(), 1.0] for _ in range(length)] if has_embeds else None,
    )


def cases(draw: random.Random) -> Iterator[Case]:
    blocks = 0
    while blocks < BLOCKS_A_GROUP:
        drawn = case(draw)
        blocks += len(drawn.tokens) // drawn.block_size
        yield drawn


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    draw = random.Random(20)
    pairs = [(algorithm, seed) for algorithm in get_args(Algorithm) for seed in SEEDS]
    return [Group(algorithm, seed, list(cases(draw))) for algorithm, seed in pairs]


@pytest.fixture(scope="module")
def judged(groups: list[Group]) -> list[dict[str, Any]]:
    """vLLM's answer for each group."""
    command = [str(vllm_python()), str(SCRIPT)]
    done = subprocess.run(command, input=msgspec.json.encode(groups), capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout, object_hook=bytes_of)
    return answers


def bytes_of(value: dict[str, Any]) -> Any:
    return bytes.fromhex(value["hex"]) if set(value) == {"hex"} else value


def compared(groups: list[Group], judged: list[dict[str, Any]]) -> Iterator[tuple[Recipe, Case, dict[str, Any]]]:
    for group, answer in zip(groups, judged, strict=True):
        # An xxhash engine without a seed draws its root: the one case in which it must be told.
        is_drawn = group.seed is None and group.algorithm.startswith("xxhash")
        root = bytes.fromhex(answer["root"]) if is_drawn else None
        for one, truth in zip(group.cases, answer["answers"], strict=True):
            recipe = Recipe.for_version("0.32.0", algorithm=group.algorithm, block_size=one.block_size, seed=group.seed)
            yield msgspec.structs.replace(recipe, root=root), one, truth


def test_the_comparison_is_large_enough(groups: list[Group]) -> None:
    assert sum(len(one.tokens) // one.block_size for group in groups for one in group.cases) >= 2000


def test_roots_are_vllms(groups: list[Group], judged: list[dict[str, Any]]) -> None:
    for group, answer in zip(groups, judged, strict=True):
        recipe = Recipe(group.algorithm, seed=group.seed)
        assert not recipe.has_known_root or recipe.none_hash().hex() == answer["root"]


def test_chains_of_requests_are_vllms(groups: list[Group], judged: list[dict[str, Any]]) -> None:
    for recipe, one, truth in compared(groups, judged):
        embeds = tuple(keys[-1] for keys in truth["extra_keys"]) if one.embeds else ()
        chain = Chain(recipe, one.tokens, Extras(one.lora, tuple(one.multimodal), one.salt, embeds))
        assert [chain.digest(index).hex() for index in range(len(chain))] == truth["hashes"], (recipe, one)
        assert chain.keys(len(chain)) == truth["published"] == [key_of(key) for key in truth["published"]]


def test_chains_of_events_are_vllms(groups: list[Group], judged: list[dict[str, Any]]) -> None:
    for recipe, one, truth in compared(groups, judged):
        extras = [from_event(recipe, keys, one.lora) for keys in truth["extra_keys"] or []]
        found = hash_blocks(recipe, recipe.none_hash(), one.tokens, extras)
        assert [digest.hex() for digest in found] == truth["hashes"], (recipe, one, truth["extra_keys"])
