"""How far each replica holds a prompt, tier by tier.

Knows chains, the index and how its keys are read. Never knows requests, leases or what is expected after a decision: this is
what the replicas' own events say, and nothing else. Changes nothing but the order of least recent use in the index.

A tier continues where those before it end, as an engine does that loads from its CPU what its GPU lacks (vLLM 0.32,
``KVConnector.get_num_new_matched_tokens``: counted from the end of the GPU's own hit). So the figures of one replica never fall
from tier to tier, and the last is all that need not be computed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from balancer.core import PrefixHashes, Replica
from hashing.extras import Extras, Lora
from hashing.own import LearnedKeys, OwnChain
from hashing.recipes import Recipe
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
    """What each replica holds of the first prompt of ``hashes``; those that hold nothing are left out."""
    alike: dict[tuple[Recipe | LearnedKeys, Lora | None], list[ReplicaId]] = {}
    for replica in replicas:
        recipe = recognitions[replica.id].recipe
        if recipe is not None:
            alike.setdefault((recipe, adapter_of(replica)), []).append(replica.id)
    found: dict[ReplicaId, Match] = {}
    for (recipe, adapter), members in alike.items():
        for chain in hashes.chains(recipe, adapter)[:1]:
            size = recipe.block_size
            for member, reached in reach(index, chain, members).items():
                found[member] = Match(size, tuple(blocks * size for blocks in reached))
    return found


def reach(index: CacheIndex, chain: Keys, replicas: Sequence[ReplicaId]) -> dict[ReplicaId, list[int]]:
    """Leading blocks of the chain, one figure a tier; replicas that reach nothing in any tier are left out."""
    found: dict[ReplicaId, list[int]] = {}
    for at, tier in enumerate(tiers_in_order(index)):
        table = index.tiers[tier]
        starts: dict[int, dict[int, ReplicaId]] = {}  # blocks that the tiers before have -> bit here -> replica
        for replica in replicas:
            if table.blocks(replica):
                start = found[replica][-1] if replica in found else 0
                starts.setdefault(start, {})[table.bit(replica)] = replica
        deepest = 0
        for start, members in starts.items():
            rest = chain if not start else _Rest(chain, start)
            for bits, blocks in table.depths(rest, MAX_BLOCKS, sum(members)):
                deepest = max(deepest, start + blocks)
                if blocks:
                    for bit in _each(bits):
                        reached = found.setdefault(members[bit], [0] * at)
                        reached.append(start + blocks)
        if table is index.gpu:
            index.touch(0, chain.keys(deepest)[:deepest])
        for reached in found.values():
            if len(reached) == at:
                reached.append(reached[-1])
    return found


class _Rest:
    """A chain without its first blocks."""

    def __init__(self, chain: Keys, start: int) -> None:
        self._chain = chain
        self._start = start

    def keys(self, count: int, /) -> Sequence[int]:
        return self._chain.keys(self._start + count)[self._start :]


class GivenKeys:
    """A prompt as the keys that engines themselves have for its blocks: the same for whatever recipe is asked for."""

    def __init__(self, keys: Sequence[int]) -> None:
        self._keys = keys

    def chains(self, recipe: Recipe | LearnedKeys, adapter: Lora | None, /) -> Sequence[Keys]:
        return (self,)

    def keys(self, count: int, /) -> Sequence[int]:
        return self._keys


class LocalHashes:
    """A prompt as the hashes of its blocks' tokens, each by itself, as Dynamo's clients make them.

    Only learned keys can be made from those: a recipe hashes the tokens themselves, and gets no chain.
    """

    def __init__(self, hashes: Sequence[int], salt: str | None) -> None:
        self._hashes = hashes
        self._salt = salt

    def chains(self, recipe: Recipe | LearnedKeys, adapter: Lora | None, /) -> Sequence[Keys]:
        if not isinstance(recipe, LearnedKeys):
            return ()
        extras = Extras(lora=adapter, salt=self._salt)
        return (OwnChain.from_local_hashes(recipe.block_size, self._hashes, extras),)


def _each(bits: int) -> Iterator[int]:
    while bits:
        bit = bits & -bits
        yield bit
        bits ^= bit
