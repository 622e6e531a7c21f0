"""What each replica could load of a prompt instead of computing it: from its own CPU and disk, and from shared stores.

Knows the index, how keys are read, chunks and stores. Never knows load, time or what a fetch costs: it says how much lies
where. A source continues where its GPU and the sources before it end; tiers are asked in the order in which an engine looks
(GPU, CPU, the rest), then stores in the order of the settings, and again as long as that leads further: the tiers of vLLM's
OffloadingConnector are looked through chunk by chunk.

Prompts of models with several cache groups, and lists of prompts, are left out: what is not known is not promised.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from balancer.core import Load, Replica, RouteRequest
from balancer.lookup import Rest, tiers_in_order
from balancer.matching import Matcher, usable_blocks
from balancer.stores import Reading, Store, Stores
from hashing.extras import Lora
from indexer.chunks import Chunks
from indexer.hits import Every
from indexer.index import CacheIndex, Keys, ReplicaId, Tier
from indexer.stores import Namespace

NO_LOADS: Final[Mapping[ReplicaId, tuple[Load, ...]]] = {}

NOTHING: Final[tuple[Load, ...]] = ()

MAX_ROUNDS: Final = 8
"""Through all sources: chunks of one prompt that lie by turns in two of them are rare."""


class Loader:
    """Asks the caches' own parts, which change under it. Changes nothing but the order of least recent use."""

    def __init__(self, index: CacheIndex, matcher: Matcher, stores: Stores, chunks: Mapping[ReplicaId, Chunks]) -> None:
        self._index = index
        self._matcher = matcher
        self._stores = stores
        self._chunks = chunks

    @property
    def has_any(self) -> bool:
        """Whether anything lies outside of GPUs; without that, nothing is looked for."""
        return bool(self._index.stores) or len(self._index.tiers) > 1

    def loads(
        self, request: RouteRequest, replicas: Sequence[Replica], cached: Mapping[ReplicaId, int]
    ) -> dict[ReplicaId, tuple[Load, ...]]:
        """For each replica that could load anything, from where and how many tokens; ``cached`` is what its GPU has."""
        found: dict[ReplicaId, tuple[Load, ...]] = {}
        if len(request.prompt_lengths) != 1 or not request.reads_cache:
            return found
        asked = _Asked(request, self._index, [replica.id for replica in replicas])
        tiers = tiers_in_order(self._index)
        for replica in replicas:
            loads = self._of(asked, replica, cached.get(replica.id, 0), tiers)
            if loads:
                found[replica.id] = loads
        return found

    def places(self, replica: Replica) -> list[str]:
        """From where its engine may load of any prompt: of what comes there before it looks, nobody knows yet."""
        own = [tier.label for tier in self._own(replica, tiers_in_order(self._index))]
        return own + [store.source for store in self._stores.attached(replica.id) if store.is_up]

    def _own(self, replica: Replica, tiers: Sequence[Tier]) -> list[Tier]:
        return [tier for tier in tiers if tier != Tier() and self._index.tiers[tier].blocks(replica.id)]

    def _of(self, asked: "_Asked", replica: Replica, cached: int, tiers: Sequence[Tier]) -> tuple[Load, ...]:
        recipe = self._matcher.recipe(replica)
        if recipe is None or self._matcher.rule(replica) is not None:
            return NOTHING
        own = self._own(replica, tiers)
        stores = [(store, self._stores.readable(store, replica)) for store in self._stores.attached(replica.id)]
        stores = [(store, namespaces) for store, namespaces in stores if namespaces and store.is_up]
        if not own and not stores:
            return NOTHING
        chains = self._matcher.chains(asked.request, replica)
        if not chains:
            return NOTHING
        chain, size, chunks = chains[0], recipe.block_size, self._chunks.get(replica.id)
        gained: dict[str, Load] = {}
        at = cached
        for _ in range(MAX_ROUNDS):
            before = at
            for tier in own:
                chunk = chunks.size(tier) if chunks is not None else 1
                behind = _Behind(chain, at, asked.length, size, chunk)
                reached = behind.reached(asked.in_tier(tier, replica.id, behind))
                at = _gain(gained, tier.label, at, reached, chunk * size)
            for store, namespaces in stores:
                adapter = replica.adapter(asked.request.model)
                found = [(_in_store(asked, store, each, chain, at, size, adapter), each) for each in namespaces]
                reached, fullest = max(found, key=lambda each: each[0])
                chunk = store.chunks.get(fullest, 1) * size if store.traits.reading is Reading.REST else 1
                at = _gain(gained, store.source, at, reached, chunk)
            if at == before or len(own) + len(stores) == 1:
                break
        return tuple(gained.values())


class _Behind:
    """The chunks of a chain that a source must have so that more than the first ``at`` tokens of so many are there.

    Source: vLLM 0.32.0, ``OffloadingConnectorScheduler._lookup_complete_chunks``: lookup begins with the chunk that the GPU's
    hit ends in, and less than a chunk is not loaded. All of a prompt may be loaded, and all of it is then told as cached,
    although its last token is computed anew.
    """

    def __init__(self, chain: Keys, at: int, tokens: int, size: int, chunk: int) -> None:
        self.chain = chain
        self.chunk = chunk
        self.first = at // (size * chunk)
        """The first of them."""
        whole = tokens // (size * chunk)
        self.count = whole - self.first if whole * size * chunk - at >= size * chunk else 0
        self._at = at
        self._tokens = size * chunk

    def keys(self) -> Keys:
        """The names of these chunks."""
        chunks = self.chain if self.chunk == 1 else Every(self.chain, self.chunk)
        return Rest(chunks, self.first) if self.first else chunks

    def reached(self, found: int) -> int:
        """How many tokens are there, where the first so many of the chunks are."""
        return (self.first + found) * self._tokens if found else self._at


class _Asked:
    """One request while it is looked for: what many replicas ask alike is looked up once."""

    def __init__(self, request: RouteRequest, index: CacheIndex, replicas: Sequence[ReplicaId]) -> None:
        self.request = request
        self.length = request.prompt_lengths[0]
        self._index = index
        self._replicas = replicas
        self._in_tiers: dict[tuple[Tier, int, int, int], list[tuple[int, int]]] = {}
        self._in_stores: dict[tuple[Namespace, int, int, int], int] = {}

    def in_tier(self, tier: Tier, replica: ReplicaId, behind: _Behind) -> int:
        """How many of the chunks lie in this tier of the replica."""
        table = self._index.tiers[tier]
        key = (tier, id(behind.chain), behind.first, behind.chunk)
        if key not in self._in_tiers:
            among = sum(table.holders(self._replicas))
            self._in_tiers[key] = table.depths(behind.keys(), behind.count, among) if behind.count else []
        bit = table.bit(replica)
        return next((chunks for bits, chunks in self._in_tiers[key] if bits & bit), 0)

    def in_store(self, namespace: Namespace, behind: _Behind) -> int:
        """How many of them lie in the store."""
        key = (namespace, id(behind.chain), behind.first, behind.chunk)
        if key not in self._in_stores:
            found = self._index.stores.depth(namespace, behind.keys(), behind.count) if behind.count else 0
            self._in_stores[key] = found
        return self._in_stores[key]

    def holds(self, namespace: Namespace, key: int) -> bool:
        return self._index.stores.holds(namespace, key)


def _in_store(
    asked: _Asked, store: Store, namespace: Namespace, chain: Keys, at: int, size: int, adapter: Lora | None
) -> int:
    """How many tokens of the prompt are there with what the store has; no more than ``at`` where that is nothing."""
    if namespace.keys is not None:
        chains = asked.request.hashes.chains(namespace.keys, adapter)
        if not chains:
            return at
        chain, size = chains[0], namespace.keys.block_size
    if store.traits.reading is Reading.PROMPT:
        blocks = max(0, asked.length - 2) // size  # one more token than others leaves out (ExampleConnector, vLLM 0.32)
        keys = chain.keys(blocks) if blocks else ()
        is_kept = len(keys) >= blocks > 0 and asked.holds(namespace, keys[blocks - 1])
        return blocks * size if is_kept else at
    chunk = store.chunks.get(namespace, 1)
    if store.traits.reading is Reading.WHOLE:
        behind = _Behind(chain, 0, usable_blocks(asked.length, size) * size, size, chunk)
    elif store.traits.reading is Reading.BUT_ONE:
        behind = _Behind(chain, 0, asked.length, size, chunk)
        return min(behind.reached(asked.in_store(namespace, behind)), asked.length - 1)
    else:
        behind = _Behind(chain, at, asked.length, size, chunk)
    return behind.reached(asked.in_store(namespace, behind))


def _gain(gained: dict[str, Load], source: str, at: int, reached: int, chunk: int) -> int:
    if reached <= at:
        return at
    before = gained[source].tokens if source in gained else 0
    gained[source] = Load(source, before + reached - at, chunk)
    return reached
