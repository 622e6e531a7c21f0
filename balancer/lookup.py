"""How far each replica holds a prompt, tier by tier.

Knows chains, the index and how its keys are read. Never knows requests, leases or what is expected after a decision: this is
what the replicas' own events say, and nothing else. Changes nothing but the order of least recent use in the index.

A tier continues where those before it end, as an engine does that loads from its CPU what its GPU lacks (vLLM 0.32,
``KVConnector.get_num_new_matched_tokens``: counted from the end of the GPU's own hit). So the figures of one replica never fall
from tier to tier, and the last is all that need not be computed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from balancer.core import PrefixHashes, Replica
from hashing.extras import Lora
from hashing.own import LearnedKeys
from hashing.recipes import Recipe
from indexer.hits import Every
from indexer.hybrid import HitRule
from indexer.index import CacheIndex, Keys, ReplicaId, Tier
from indexer.recognition import Recognition

MAX_BLOCKS: Final = 1 << 30
"""No limit: a chain ends by itself."""


class Match(msgspec.Struct, frozen=True, gc=False):
    """Leading tokens of one prompt that a replica holds: with its GPU alone, then with each further tier.

    ``tokens`` has one figure for each of the tiers that ``tiers_in_order`` names, in that order.
    """

    block_size: int
    tokens: tuple[int, ...]


def tiers_in_order(index: CacheIndex) -> list[Tier]:
    """GPU, then CPU, then whatever else there is: the order in which an engine looks."""
    return sorted(index.tiers, key=lambda tier: (tier != Tier(), tier.medium != "CPU", bool(tier.locality), tier.label))


def match(
    index: CacheIndex,
    recognitions: Mapping[ReplicaId, Recognition],
    replicas: Iterable[Replica],
    hashes: PrefixHashes,
    adapter_of: Callable[[Replica], Lora | None],
) -> dict[ReplicaId, Match]:
    """What each replica holds of the first prompt of ``hashes``; those that hold nothing are left out.

    Of a model with several cache groups it is what its full attention holds: all that may be hit, if the others allow it.
    """
    alike: dict[tuple[Recipe | LearnedKeys, Lora | None, HitRule | None], list[ReplicaId]] = {}
    for replica in replicas:
        recognition = recognitions[replica.id]
        if recognition.recipe is not None:
            alike.setdefault((recognition.recipe, adapter_of(replica), recognition.rule), []).append(replica.id)
    found: dict[ReplicaId, Match] = {}
    for (recipe, adapter, rule), members in alike.items():
        group, hashes_a_block = _full_attention(rule)
        for chain in hashes.chains(recipe, adapter)[:1]:
            size = recipe.block_size * hashes_a_block
            made: dict[tuple[int, ...], Match] = {}  # most replicas that hold something hold the same
            blocks_of = chain if hashes_a_block == 1 else Every(chain, hashes_a_block)
            for member, reached in reach(index, blocks_of, members, group).items():
                if reached not in made:
                    made[reached] = Match(size, tuple(blocks * size for blocks in reached))
                found[member] = made[reached]
    return found


def _full_attention(rule: HitRule | None) -> tuple[int, int]:
    """The cache group of full attention, and how many hashes one of its blocks covers."""
    full = None if rule is None else next((part for part in rule.parts if part.is_full), None)
    return (0, 1) if rule is None or full is None else (full.groups[0], full.block_size // rule.hash_size)


def reach(
    index: CacheIndex, chain: Keys, replicas: Sequence[ReplicaId], group: int = 0
) -> dict[ReplicaId, tuple[int, ...]]:
    """Leading blocks of the chain, one figure a tier; replicas that reach nothing in any tier are left out."""
    found: dict[ReplicaId, tuple[int, ...]] = {}
    for at, tier in enumerate(tiers_in_order(index)):
        table = index.tiers[tier]
        so_far: dict[tuple[int, ...], dict[int, ReplicaId]] = {}  # what the tiers before have -> bit here -> replica
        for bit, replica in table.holders(replicas).items():
            so_far.setdefault(found.get(replica, (0,) * at), {})[bit] = replica
        deepest = 0
        for before, members in so_far.items():
            start = before[-1] if before else 0
            rest = chain if not start else Rest(chain, start)
            for bits, blocks in table.depths(rest, MAX_BLOCKS, sum(members), group):
                if blocks:
                    deepest = max(deepest, start + blocks)
                    reached = (*before, start + blocks)
                    found.update((replica, reached) for bit, replica in members.items() if bits & bit)
        if table is index.gpu:
            index.touch(group, chain.keys(deepest)[:deepest])
        else:
            found.update((replica, (*has, has[-1])) for replica, has in found.items() if len(has) == at)
    return found


class Rest:
    """A chain without its first blocks."""

    def __init__(self, chain: Keys, start: int) -> None:
        self._chain = chain
        self._start = start

    def keys(self, count: int, /) -> Sequence[int]:
        return self._chain.keys(self._start + count)[self._start :]
