"""Shared stores: who reads from which, what events say of them, and which of them can be used.

Knows the settings, attached replicas, the index of stores and what events name. Never knows sockets, files or how a store is
asked (``balancer.connectors``). Between calls: what a replica's events tell of a store is the store's and nobody's own, and
outlives the replica; a store's publisher is never a replica.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from balancer.core import Replica
from balancer.store_settings import StoreSettings
from hashing.extras import Lora
from hashing.own import LearnedKeys
from indexer.chunks import Chunks
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.index import ReplicaId
from indexer.learned import LearnedBlocks
from indexer.places import GPU, tier_of
from indexer.stores import Namespace, StoreIndex
from indexer.stream import Apply, Forget, Lost, Replay, Standing, Step

MAX_ANNOUNCED: Final = 65_536
"""Events between two looks at a store."""

SOURCE: Final = "store:"
"""Before a store's name, where it is named among tiers and replicas."""


ANNOUNCED: Final = "announced"
"""The part of a store that is known by events alone until the next look."""


class Reading(StrEnum):
    """What an engine must find in a store to load any of it."""

    REST = "rest"  # the blocks behind those that its GPU has (vLLM's OffloadingConnector)
    WHOLE = "whole"  # all blocks from the first one on (Mooncake)
    BUT_ONE = "but_one"  # the same; of a prompt that is there to its end, all but the last token are loaded (LMCache)
    PROMPT = "prompt"  # what was kept of this very prompt (vLLM's ExampleConnector)


class Traits(msgspec.Struct, frozen=True):
    """What a connector says of its kind of store.

    ``tiers`` are those of replicas' events that speak of it, where the settings name none. ``has_own_hashes`` says that its
    events name blocks otherwise than the engines do, so that they are known by their tokens. One that ``is_looked_at`` again
    and again is not corrected by what engines fail to find there.
    """

    reading: Reading = Reading.REST
    tiers: tuple[str, ...] = ()
    has_own_hashes: bool = False
    is_looked_at: bool = False


class Store:
    """One of them. Changes with what is found out: ``problem`` is why it cannot be used, in words; empty while it can."""

    def __init__(self, settings: StoreSettings, traits: Traits) -> None:
        self.settings = settings if settings.tiers else msgspec.structs.replace(settings, tiers=traits.tiers)
        self.traits = traits
        self.problem = ""
        self.counts: Counter[str] = Counter()
        """What has happened, by name (``kvlb_store_events_total``)."""
        self.announced: list[tuple[Namespace, Sequence[int]]] = []
        """What events have said of a store that is looked at: it counts until the next look that began after it."""
        self.announced_before: list[tuple[Namespace, Sequence[int]]] = []
        self.chunks: dict[Namespace, int] = {}
        """Blocks that are kept together, where it is more than one."""

    def __repr__(self) -> str:
        return f"<Store {self.name}: {self.problem or 'up'}>"

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def source(self) -> str:
        """Its name among the places that tokens can be loaded from."""
        return SOURCE + self.name

    @property
    def is_up(self) -> bool:
        return not self.problem


_Told: TypeAlias = BlockStored | BlockRemoved


class Stores:
    """All of them. Changes with ``put``, ``remove``, ``divert``, ``observe`` and what its stores are told."""

    def __init__(self, index: StoreIndex, stores: Iterable[Store] = ()) -> None:
        self.index = index
        self._stores = {store.name: store for store in stores}
        self._attached: dict[ReplicaId, tuple[Store, ...]] = {}
        self._learned: dict[tuple[str, ReplicaId], LearnedBlocks] = {}

    def __repr__(self) -> str:
        return f"<Stores {', '.join(map(repr, self._stores.values()))}>"

    def __bool__(self) -> bool:
        return bool(self._stores)

    def __iter__(self) -> Iterator[Store]:
        return iter(self._stores.values())

    def get(self, name: str) -> Store | None:
        """The store of this name."""
        return self._stores.get(name)

    # Who reads from which

    def put(self, replica: Replica) -> None:
        """A replica is there, or is another one than before."""
        if self._stores:
            attached = (store for store in self if store.settings.is_attached(replica.endpoint))
            self._attached[replica.id] = tuple(attached)

    def remove(self, replica: ReplicaId) -> None:
        """The replica is gone; what its events told of stores stays."""
        self._attached.pop(replica, None)
        for key in [key for key in self._learned if key[1] == replica]:
            del self._learned[key]

    def attached(self, replica: ReplicaId) -> tuple[Store, ...]:
        """The stores that this replica reads from, whether they can be used or not."""
        return self._attached.get(replica, ())

    def readable(self, store: Store, replica: Replica) -> list[Namespace]:
        """What of the store is this replica's model's; its recipe is held against the keys themselves."""
        return [each for each in self.index.namespaces(store.name) if _is_of(each.model, replica)]

    def kinds(self) -> tuple[LearnedKeys, ...]:
        """How else than by replicas' recipes a prompt is hashed to be found in stores."""
        found = {
            each.keys: None for store in self for each in self.index.namespaces(store.name) if each.keys is not None
        }
        return tuple(found)

    # What they hold

    def divert(
        self, replica: Replica, events: Sequence[KVEvent], chunks: Chunks, *, is_learned: bool = False
    ) -> Sequence[KVEvent]:
        """Take what is said of stores; returns what the replica's events say of its own tiers.

        Of one whose keys are learned nobody knows whether others name blocks alike: what it tells counts for itself alone.
        """
        if not any(store.settings.tiers for store in self._attached.get(replica.id, ())):
            return events
        own: list[KVEvent] = []
        for event in events:
            if isinstance(event, AllBlocksCleared):
                own.append(event)
                continue
            store = self._spoken_of(replica.id, event)
            if store is None or (is_learned and not store.traits.has_own_hashes):
                own.append(event)
            else:
                self._take(store, replica, event, chunks.size(tier_of(event)))
        return own

    def observe(self, name: str, step: Step) -> None:
        """What a store's own publisher says, in order."""
        store = self._stores[name]
        match step:
            case Apply():
                for batch in step.batches:
                    store.counts["skipped"] += len(batch.skipped)
                    for event in batch.events:
                        if isinstance(event, AllBlocksCleared):
                            self.index.clear(name)
                        else:
                            self._keep(store, Namespace(name, store.settings.model), event)
            case Forget():
                store.counts["restarts"] += 1
                self.index.clear(name)
            case Lost():
                store.counts["lost_batches"] += step.last - step.first + 1
            case Standing():
                store.problem = step.problem if step.is_connected else "its event publisher cannot be reached"
            case Replay():
                raise AssertionError(f"{step} is for the source to obey")

    def _spoken_of(self, replica: ReplicaId, event: _Told) -> Store | None:
        if (event.medium is None or event.medium == GPU) and event.ownership is None and event.locality is None:
            return None
        fields = (event.medium, event.locality, event.ownership)
        return next((store for store in self._attached[replica] if store.settings.speaks_of(*fields)), None)

    def _take(self, store: Store, replica: Replica, event: _Told, chunk: int) -> None:
        model = store.settings.model or next(iter(replica.base_models), "")
        part = ANNOUNCED if store.traits.is_looked_at else ""
        if not store.traits.has_own_hashes:
            namespace = Namespace(store.name, model, None, part)
            if chunk > 1:
                store.chunks[namespace] = chunk
            self._keep(store, namespace, event)
            return
        learned = self._learned.setdefault((store.name, replica.id), LearnedBlocks(_by_name(replica.adapters)))
        # To the reader of names it is the only tier there is.
        plain = msgspec.structs.replace(event, medium=GPU, locality=None, ownership=None)
        for known in learned.read([plain]):
            if learned.hash_block_size and not isinstance(known, AllBlocksCleared):
                self._keep(store, Namespace(store.name, model, LearnedKeys(learned.hash_block_size)), known)

    def _keep(self, store: Store, namespace: Namespace, event: _Told) -> None:
        if store.traits.is_looked_at and isinstance(event, BlockStored):
            if len(store.announced) >= MAX_ANNOUNCED:
                return
            store.announced.append((namespace, event.block_hashes))
        if isinstance(event, BlockStored):
            is_kept = self.index.add(namespace, event.block_hashes, event.group_idx or 0)
            store.counts["stored" if is_kept else "dropped"] += len(event.block_hashes)
        else:
            self.index.discard(namespace, event.block_hashes, event.group_idx or 0)
            store.counts["removed"] += len(event.block_hashes)


def _is_of(model: str, replica: Replica) -> bool:
    return not model or model in replica.models or model == replica.root


def _by_name(adapters: Sequence[Lora]) -> dict[str, Lora]:
    return {each.name: each for each in adapters}
