"""``indexer/recognition.py`` of replicas with several cache groups: how they hash, and when their hits can be told."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from hashing.chain import Chain
from hashing.extras import NO_EXTRAS, Extras, Lora
from hashing.recipes import Recipe
from indexer.events import BlockStored
from indexer.groups import Untold
from indexer.hybrid import MAMBA
from indexer.learned import LearnedBlocks
from indexer.recognition import KeyState, Recognition

TOKENS = list(range(500, 692))  # 192 tokens
DECLARED = Recipe.for_version("0.32.0", block_size=32)
LORA = Lora("sql", "/adapters/sql")


def fine(step: int, **changes: Any) -> Recipe:
    return msgspec.structs.replace(DECLARED, block_size=step, **changes)


def stored(
    recipe: Recipe,
    size: int,
    *,
    tokens: Sequence[int] = TOKENS,
    kept: Sequence[int] | None = None,
    extras: Extras = NO_EXTRAS,
    **fields: Any,
) -> BlockStored:
    """What a group with blocks of ``size`` announces of a prompt; ``kept`` are those of its blocks that stay."""
    chain = Chain(recipe, tokens, extras)
    keys = chain.keys(len(chain))[size // recipe.block_size - 1 :: size // recipe.block_size]
    kept = range(len(keys)) if kept is None else kept
    lora, salt = extras.lora, extras.salt
    told = [[*([lora.name] if lora else []), *([salt] if salt and not at else [])] or None for at in kept]
    plain = BlockStored(
        [keys[at] for at in kept],
        None,
        _raw(list(tokens[: len(keys) * size])),
        size,
        medium="GPU",
        extra_keys=_raw(told),
        lora_name=lora.name if lora else None,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    return msgspec.structs.replace(plain, **fields)


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def window(recipe: Recipe, size: int, kept: Sequence[int] | None = None, **fields: Any) -> BlockStored:
    told = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 64}
    return stored(recipe, size, kept=kept, **{**told, **fields})


def mamba(recipe: Recipe, size: int, **fields: Any) -> BlockStored:
    return stored(recipe, size, **{"group_idx": 1, "kv_cache_spec_kind": MAMBA, **fields})


def seen(*events: BlockStored, declared: Recipe | None = DECLARED, adapters: Sequence[Lora] = ()) -> Recognition:
    recognition = Recognition(declared, adapters)
    recognition.read(events)
    return recognition


@pytest.mark.parametrize(
    ("step", "events"),
    [
        (32, [stored(fine(32), 32), window(fine(32), 32)]),
        (16, [stored(fine(16), 32), window(fine(16), 16)]),
        (16, [stored(fine(16), 48), window(fine(16), 32)]),
        (8, [stored(fine(8), 32), window(fine(8), 16)]),  # --prefix-match-unit 8
        (16, [stored(fine(16), 64), mamba(fine(16), 64)]),
        (1, [stored(fine(1), 32), window(fine(1), 16)]),
        (32, [window(fine(32), 32, group_idx=0)]),
    ],
)
def test_the_step_of_the_hashes_is_found(step: int, events: list[BlockStored]) -> None:
    recognition = seen(*events)
    assert recognition.state is KeyState.PROVEN
    assert recognition.recipe == fine(step)
    assert recognition.reason == ""  # that blocks are longer than steps is no difference from what was declared
    assert recognition.doubt == ""
    assert recognition.rule is not None
    assert recognition.rule.hash_size == step


def test_a_seed_is_found_together_with_the_step() -> None:
    recipe = fine(16, seed="0")
    recognition = seen(stored(recipe, 32), window(recipe, 16))
    assert (recognition.state, recognition.recipe) == (KeyState.PROVEN, recipe)
    assert recognition.reason == "its events say that seed is '0', not None"


@pytest.mark.parametrize("extras", [Extras(salt="mine"), Extras(lora=LORA), Extras(lora=LORA, salt="mine")])
def test_salts_and_adapters_prove_in_steps_too(extras: Extras) -> None:
    recognition = seen(
        stored(fine(16), 64, extras=extras), window(fine(16), 16, kept=[], extras=extras), adapters=[LORA]
    )
    assert (recognition.state, recognition.recipe) == (KeyState.PROVEN, fine(16))


def test_an_image_in_a_block_of_several_steps_proves_nothing() -> None:
    """An event tells which block it is in, not which step."""
    image = _raw([[["abc", 20]], *[None] * 5])
    recognition = seen(stored(fine(16), 32, extra_keys=image), window(fine(16), 16, kept=[]))
    assert recognition.state is KeyState.UNPROVEN
    assert "no event has shown yet" in recognition.doubt


def test_sparse_spans_prove_nothing() -> None:
    """A window announces the tokens of the whole range, and few hashes or none."""
    recognition = seen(window(fine(16), 16, kept=[10, 11]), window(fine(16), 16, kept=[]))
    assert recognition.state is KeyState.UNPROVEN
    assert recognition.rule is None


def test_a_window_that_keeps_all_proves_as_well_as_any() -> None:
    assert seen(window(fine(16), 16), stored(fine(16), 32, kept=[1, 2])).state is KeyState.PROVEN


def test_a_group_that_comes_after_the_proof_is_heeded() -> None:
    recognition = seen(stored(DECLARED, 32))
    assert (recognition.state, recognition.rule, recognition.doubt) == (KeyState.PROVEN, None, "")
    recognition.read([window(DECLARED, 32)])
    assert recognition.rule is not None
    recognition.read([window(fine(16), 16, group_idx=2)])
    assert "no multiple" in recognition.doubt


def test_what_only_may_be_a_whole_block_is_no_promise_yet() -> None:
    """A short prompt is stored by its end alone, which looks like a block of one step."""
    short = TOKENS[:16]
    recognition = seen(stored(fine(16), 16, tokens=short), mamba(fine(16), 16, tokens=short))
    assert (recognition.state, recognition.recipe) == (KeyState.PROVEN, fine(16))
    assert "no whole block" in recognition.doubt
    recognition.read([stored(fine(16), 64), mamba(fine(16), 64)])
    assert recognition.doubt == ""
    assert recognition.rule is not None
    assert [part.block_size for part in recognition.rule.parts] == [64, 64]


def test_another_incarnation_may_have_other_groups() -> None:
    recognition = seen(stored(DECLARED, 32), window(DECLARED, 32))
    recognition.forget()
    assert (recognition.rule, recognition.doubt, recognition.is_hybrid) == (None, "", False)


def test_unknown_roots_are_learned_in_steps() -> None:
    foreign = fine(16, root=b"r" * 32)
    recognition = seen(stored(foreign, 16), window(foreign, 32, kept=[4, 5]))
    assert recognition.state is KeyState.LEARNED
    assert recognition.rule is not None
    assert recognition.rule.hash_size == 16
    assert (recognition.doubt, recognition.unplaced) == ("", 0)
    recognition.read([window(foreign, 32, kept=[3], tokens=TOKENS[::-1])])
    assert recognition.unplaced == 1, "a window tells no place of its own"


def test_a_draft_model_is_heeded_whenever_it_is_told() -> None:
    recognition = seen(stored(DECLARED, 32), window(DECLARED, 32))
    recognition.declare(DECLARED, (), Untold(has_eagle=True))
    assert "draft" in recognition.doubt
    assert recognition.rule is not None
    assert all(part.is_eagle for part in recognition.rule.parts)


def test_hostile_block_sizes_cost_little() -> None:
    huge = msgspec.structs.replace(stored(DECLARED, 32), block_size=1 << 62)
    recognition = seen(msgspec.structs.replace(window(DECLARED, 32), block_size=1 << 61), huge)
    assert recognition.state is KeyState.UNPROVEN
    assert recognition.doubt


def test_another_process_goes_on_with_the_same_rule() -> None:
    one, other = seen(stored(fine(16), 32), window(fine(16), 16)), Recognition(DECLARED)
    image = one.export()
    assert image is not None
    other.restore(image, LearnedBlocks())
    assert (other.recipe, other.rule, other.doubt) == (one.recipe, one.rule, "")
    assert other.rule is not None
