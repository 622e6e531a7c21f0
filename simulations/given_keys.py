"""Keys that are made already, as a router takes them: of a trace, which has no tokens to hash.

Knows lists of keys, and the event by which a replica shows that its keys are such. Never knows where keys come from.
"""

from collections.abc import Sequence

import msgspec

from hashing.chain import Chain
from hashing.extras import Lora
from hashing.own import LearnedKeys
from hashing.recipes import Recipe
from indexer.events import BlockStored
from indexer.index import Keys


class GivenKeys:
    """The keys of a prompt as they are, whatever the recipe."""

    __slots__ = ("_chains",)

    def __init__(self, keys: list[int]) -> None:
        self._chains = [_Chain(keys)]

    def chains(self, recipe: Recipe | LearnedKeys, adapter: Lora | None, /) -> Sequence[Keys]:
        return self._chains


class _Chain:
    __slots__ = ("_keys",)

    def __init__(self, keys: list[int]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self, count: int, /) -> list[int]:
        return self._keys


def proof(recipe: Recipe) -> BlockStored:
    """One block, with tokens, hashed by the recipe: whoever reads it takes the replica's keys for what this recipe makes."""
    tokens = list(range(recipe.block_size))
    chain = Chain(recipe, tokens)
    return BlockStored(
        block_hashes=list(chain.keys(1)),
        parent_block_hash=None,
        token_ids=msgspec.Raw(msgspec.msgpack.encode(tokens)),
        block_size=recipe.block_size,
        medium="GPU",
        extra_keys=msgspec.Raw(msgspec.msgpack.encode([None])),
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
