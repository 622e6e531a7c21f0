"""What an engine with a given recipe announces of its blocks, built as vLLM 0.32 builds it. Never knows how events are read."""

from collections.abc import Sequence
from typing import Any

import msgspec

from hashing.chain import Chain
from hashing.extras import NO_EXTRAS, BlockExtras, Extras, Lora
from hashing.own import LearnedKeys, OwnChain
from hashing.recipes import Recipe
from indexer.events import NIL, BlockRemoved, BlockStored

SIZE = 4
ROOT = b"\x07" * 32
DECLARED = Recipe.for_version("0.32.0", block_size=SIZE)
RANDOM = msgspec.structs.replace(DECLARED, root=ROOT)
"""An engine whose root nobody can know."""

PUBLISHED = Recipe(lora_form="name", multimodal_form="offset", salt_form="plain", embeds_form="plain")
"""The form in which every release tells the extras."""

TOKENS = list(range(100, 140))
LORA = Lora("sql", "/adapters/sql", 3)


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def stored(
    recipe: Recipe,
    tokens: Sequence[int] = TOKENS,
    first: int = 0,
    last: int | None = None,
    extras: Extras = NO_EXTRAS,
    **changes: Any,
) -> BlockStored:
    """What an engine with this recipe announces of blocks [first, last) of a prompt, as vLLM 0.32 does."""
    chain = Chain(recipe, tokens, extras)
    keys, size = chain.keys(len(chain)), recipe.block_size
    last = len(chain) if last is None else last
    published = BlockExtras(msgspec.structs.replace(PUBLISHED, block_size=size), extras)
    plain = BlockStored(
        block_hashes=list(keys[first:last]),
        parent_block_hash=keys[first - 1] if first else None,
        token_ids=raw(list(tokens[first * size : last * size])),
        block_size=size,
        lora_id=extras.lora.id if extras.lora else None,
        medium="GPU",
        lora_name=extras.lora.name if extras.lora else None,
        extra_keys=raw(list(published.of(first, last))),
        group_idx=0,
    )
    return msgspec.structs.replace(plain, **changes)


def removed(event: BlockStored) -> BlockRemoved:
    """All blocks of the event at once."""
    return BlockRemoved(event.block_hashes, event.medium, event.group_idx, event.locality, event.ownership)


def silent(recipe: Recipe, extras: Extras = NO_EXTRAS, tokens: Sequence[int] = TOKENS) -> BlockStored:
    """As vLLM before 0.18: without the extra keys."""
    return stored(recipe, tokens, extras=extras, extra_keys=NIL)


def wanted(tokens: Sequence[int] = TOKENS, extras: Extras = NO_EXTRAS) -> list[int]:
    """The learned keys by which a request's blocks are looked for."""
    chain = OwnChain(LearnedKeys(SIZE), tokens, extras)
    return list(chain.keys(len(chain)))
