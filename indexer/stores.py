"""Which blocks lie in shared stores, which are no replica's own.

Knows stores by name, and namespaces in them: what one store keeps for one model under one kind of keys. Never knows replicas,
who may read a store, or how a store says what it has. Between calls: a key is held in a namespace exactly if it was last said
to be there, and nothing had to be let go. A store has one object a block, whoever has put it there: nothing is counted.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from hashing.own import LearnedKeys
from indexer.bound import Bound
from indexer.places import Keys, ReplicaId
from indexer.tiers import TierIndex

MAX_NAMESPACES: Final = 256
"""In all stores: models and layouts that anybody has named."""


class Namespace(msgspec.Struct, frozen=True):
    """One store's part for one model; ``model`` is empty where it may be any.

    ``keys`` is how a prompt is hashed to be found there; None where it has the names that the engines' own recipes give.
    ``part`` tells those apart that keep the same model's cache in another layout, of which an engine reads one.
    """

    store: str
    model: str = ""
    keys: LearnedKeys | None = None
    part: str = ""

    @property
    def label(self) -> str:
        return f"{self.store}/{self.model}" if self.model else self.store


class StoreIndex:
    """All stores' blocks. Changes with ``add``, ``discard``, ``clear`` and ``sweep``."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._table = TierIndex(bound)
        self._holders: dict[
            str, dict[Namespace, ReplicaId]
        ] = {}  # store -> its namespaces, by the names of their holders
        self._count = 0

    def __repr__(self) -> str:
        return f"<StoreIndex {', '.join(f'{store}: {self.blocks(store):,}' for store in self._holders)}>"

    def __bool__(self) -> bool:
        """Whether anything has ever been added."""
        return bool(self._holders)

    def namespaces(self, store: str) -> Sequence[Namespace]:
        """Those that have been added to, in that order."""
        return list(self._holders.get(store, ()))

    def add(self, namespace: Namespace, keys: Iterable[int], group: int = 0) -> bool:
        """These are there; False where the namespace or the group is one too many."""
        holder = self._holder(namespace)
        if holder is None:
            return False
        new = self._table.lacking(self._table.bit(holder), group, list(keys))
        return self._table.store(holder, group, new)

    def discard(self, namespace: Namespace, keys: Iterable[int], group: int = 0) -> int:
        """These are not, or no longer; returns how many of them were thought to be."""
        holder = self._holders.get(namespace.store, {}).get(namespace)
        return 0 if holder is None else self._table.discard(holder, group, keys)

    def clear(self, store: str) -> None:
        """Nothing is known to be in the store any more."""
        for holder in self._holders.get(store, {}).values():
            self._table.clear(holder)

    def blocks(self, store: str) -> int:
        """Different blocks that lie there."""
        return sum(self._table.blocks(holder) for holder in self._holders.get(store, {}).values())

    def holds(self, namespace: Namespace, key: int, group: int = 0) -> bool:
        """Whether this block lies there."""
        holder = self._holders.get(namespace.store, {}).get(namespace)
        return holder is not None and self._table.holds(holder, group, key)

    def depth(self, namespace: Namespace, chain: Keys, limit: int, group: int = 0) -> int:
        """How many leading blocks of the chain lie there, within ``limit``."""
        holder = self._holders.get(namespace.store, {}).get(namespace)
        if holder is None or not self._table.blocks(holder):
            return 0
        ((_, depth),) = self._table.depths(chain, limit, self._table.bit(holder), group)
        if self._bound.is_crowded:
            self._bound.touch(chain.keys(depth)[:depth])
        return depth

    @property
    def has_retired(self) -> bool:
        """Whether ``sweep`` has work to do."""
        return self._table.has_retired

    def sweep(self) -> None:
        """A slice of the work that clears have left."""
        self._table.sweep()

    def check(self) -> None:
        """Assert what holds between calls; looks at everything."""
        self._table.check()
        assert self._count == sum(map(len, self._holders.values())) <= MAX_NAMESPACES

    def _holder(self, namespace: Namespace) -> ReplicaId | None:
        known = self._holders.setdefault(namespace.store, {})
        if namespace not in known:
            if self._count >= MAX_NAMESPACES:
                return None
            self._count += 1
            known[namespace] = ReplicaId(f"{self._count}")
        return known[namespace]
