"""How many tokens of a request each replica holds, as the engine itself would count them.

Knows the index, the blocks that are expected, and how each replica's keys are read. Never knows load, policy or time. Changes
nothing but the order of least recent use in the index.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from balancer import leaning
from balancer.core import Replica, RouteRequest
from hashing.extras import Lora
from hashing.own import LearnedKeys
from hashing.recipes import Recipe
from indexer.hits import matches, unnamed
from indexer.hybrid import HitRule
from indexer.index import CacheIndex, Keys, ReplicaId
from indexer.predicted import PredictedBlocks
from indexer.recognition import Recognition

_NOTHING: Final[Mapping[int, int]] = {}

DEFAULT_BLOCK_SIZE: Final = 16
"""vLLM's own default; for what is remembered of replicas that tell nothing."""


class Holding(msgspec.Struct, frozen=True):
    """What one replica's events have named of one request's prompts.

    ``missing`` are the keys (``indexer.hits.placed``) of blocks that a finished request leaves and no event has named yet;
    ``held_tokens`` are what the engine would take of its cache without them.
    """

    missing: list[int]
    held_tokens: int


class Matcher:
    """Matches requests against the index; ``recognitions`` are the caches' own and change under it."""

    def __init__(
        self, index: CacheIndex, predicted: PredictedBlocks, recognitions: Mapping[ReplicaId, Recognition]
    ) -> None:
        self._index = index
        self._predicted = predicted
        self._recognitions = recognitions

    def recipe(self, replica: Replica) -> Recipe | LearnedKeys | None:
        """What a prompt must be hashed with to be found among this replica's blocks; None where nothing is ever cached.

        While nobody can say how it hashes, what was sent there is remembered by a hash of our own.
        """
        if not replica.has_prefix_caching:
            return None
        known = self._recognitions[replica.id].recipe
        if known is not None:
            return known
        block_size = replica.recipe.block_size if replica.recipe is not None else DEFAULT_BLOCK_SIZE
        return LearnedKeys(block_size)

    def rule(self, replica: Replica) -> HitRule | None:
        """How a replica with several cache groups is hit; None where the length of one of full attention is all."""
        return self._recognitions[replica.id].rule

    def chains(self, request: RouteRequest, replica: Replica) -> Sequence[Keys]:
        """The request's prompts in the replica's own keys; none when they cannot be hashed, or nobody knows them."""
        recipe = self.recipe(replica) if request.prompt_lengths else None
        if recipe is None:
            return ()
        return request.hashes.chains(recipe, replica.adapter(request.model))

    def beginning(self, request: RouteRequest, replica: Replica) -> int:
        """How the first prompt begins, in the replica's own keys (``leaning.beginning``); 0 where nobody knows them."""
        recipe = self.recipe(replica)
        return 0 if recipe is None else leaning.beginning(self.chains(request, replica), recipe.block_size)

    def match(
        self, request: RouteRequest, replicas: Sequence[Replica], *, expecting: bool = True, touches: bool = True
    ) -> dict[ReplicaId, int]:
        """Tokens of the request that each replica holds or is expected to hold, summed over its prompts.

        What is expected does not count unless ``expecting``. What is found is used by that, unless it ``touches`` nothing.
        """
        also = self._predicted.holders if expecting else _NOTHING
        found: dict[ReplicaId, int] = {}
        if not request.reads_cache or not request.prompt_lengths:
            return found
        kinds: dict[tuple[Recipe | LearnedKeys, Lora | None, HitRule | None], list[Replica]] = {}
        for replica in replicas:
            recipe = self.recipe(replica)
            if recipe is not None:
                kinds.setdefault((recipe, replica.adapter(request.model), self.rule(replica)), []).append(replica)
        for (recipe, adapter, rule), alike in kinds.items():
            for chain, length in zip(request.hashes.chains(recipe, adapter), request.prompt_lengths, strict=False):
                if rule is None:
                    hits = self._plain(chain, length, recipe.block_size, alike, also, touches)
                else:
                    hits = self._hybrid(chain, length, rule, alike, also, touches)
                for holder, tokens in hits:
                    found[holder] = found.get(holder, 0) + tokens
        return found

    def _hybrid(
        self,
        chain: Keys,
        length: int,
        rule: HitRule,
        replicas: Sequence[Replica],
        also: Mapping[int, int],
        touches: bool,
    ) -> list[tuple[ReplicaId, int]]:
        gpu = self._index.gpu
        bits = {gpu.bit(replica.id): replica.id for replica in replicas}
        hits = matches(rule, gpu, chain, length, list(bits), also)
        if not touches:
            return [(bits[bit], tokens) for bit, tokens in hits]
        longest = max((tokens for _, tokens in hits), default=0)
        keys = chain.keys(longest // rule.hash_size)
        for groups, places in rule.kept(longest + 1):
            for group in groups:
                self._index.touch(group, [keys[at] for at in places])
        return [(bits[bit], tokens) for bit, tokens in hits]

    def _plain(
        self,
        chain: Keys,
        length: int,
        block_size: int,
        replicas: Sequence[Replica],
        also: Mapping[int, int],
        touches: bool,
    ) -> list[tuple[ReplicaId, int]]:
        gpu = self._index.gpu
        bits = {gpu.bit(replica.id): replica for replica in replicas}
        limit = usable_blocks(length, block_size)
        depths = gpu.depths(chain, limit, sum(bits), also=also)
        if touches:
            deepest = max((blocks for _, blocks in depths), default=0)
            self._index.touch(0, chain.keys(deepest)[:deepest])
        return [
            (replica.id, (blocks - replica.has_eagle) * block_size)
            for held, blocks in depths
            if blocks
            for bit, replica in bits.items()
            if held & bit
        ]

    def holding(self, request: RouteRequest, replica: Replica) -> Holding:
        """What the replica's own events say that it holds of the whole prompts; expectations do not count."""
        missing: list[int] = []
        tokens = 0
        recipe = self.recipe(replica) if request.prompt_lengths else None
        if recipe is None:
            return Holding(missing, tokens)
        rule, bit = self.rule(replica), self._index.gpu.bit(replica.id)
        for chain, length in zip(self.chains(request, replica), request.prompt_lengths, strict=False):
            size, blocks = recipe.block_size, length // recipe.block_size
            keys = chain.keys(blocks)[:blocks]
            if rule is not None:
                missing += unnamed(rule, self._index.gpu, bit, keys, length)
                tokens += dict(matches(rule, self._index.gpu, chain, length, [bit])).get(bit, 0)
                continue
            lacking = self._index.gpu.lacking(bit, 0, keys)
            leading = min(keys.index(lacking[0]) if lacking else len(keys), usable_blocks(length, size))
            tokens += max(0, leading - replica.has_eagle) * size
            missing += lacking
        return Holding(missing, tokens)


def usable_blocks(prompt_tokens: int, block_size: int) -> int:
    """How many leading blocks of a prompt vLLM can take from its cache: the last token is always computed anew.

    Source: vLLM 0.32.0, ``KVCacheManager.get_computed_blocks``: the lookup is capped at ``num_tokens - 1``.
    """
    return max(0, prompt_tokens - 1) // block_size
