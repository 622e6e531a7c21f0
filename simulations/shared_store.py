"""A shared store behind the engines of the detailed model: blocks of prompts that anybody has computed, a link away.

Knows keys, room, and what a router is told of such a store. Never knows engines or time. A block is there from the moment at
which its prompt was computed, at no cost, and is never counted twice. With a bound, what was computed or asked for the
longest time ago goes first, and of one prompt its end: what lies behind a gap is of no use to anybody.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from balancer.economics.hints import LENGTH_FIELD, TIERS_FIELD
from balancer.economics.links import Link
from balancer.economics.shape import CacheShape
from balancer.store_settings import StoreSettings as KnownSettings
from balancer.stores import Store as KnownStore
from balancer.stores import Traits
from indexer.events import EMPTY, BlockRemoved, BlockStored, KVEvent
from simulations.sequences import MEDIUM
from simulations.store import StoreSettings

NAME: Final = "shared"
"""Of the store, among the stores that a router knows."""


class SharedStore:
    """What lies there (``simulations.kv_connector.Connector``). Changes with ``put``."""

    __slots__ = ("_held", "_room", "_shape", "_size", "link")

    def __init__(self, settings: StoreSettings, block_size: int) -> None:
        self.link = Link(settings.gbits * 1e9 / 8, settings.latency)
        self._shape = CacheShape.uniform(settings.token_bytes)
        self._size = block_size
        self._room = None if settings.tokens is None else settings.tokens // block_size
        self._held: OrderedDict[int, None] = OrderedDict()  # the first one goes next

    def __len__(self) -> int:
        """Blocks that lie there."""
        return len(self._held)

    def reach(self, keys: Sequence[int], first: int, last: int, /) -> int:
        """How many of the blocks with these keys lie there, from number ``first`` on and without a gap, before ``last``."""
        held = self._held
        for at in range(first, last):
            if keys[at] not in held:
                return at - first
        return last - first

    def lacks(self, keys: Sequence[int]) -> int:
        """How many of these blocks do not lie there."""
        return sum([key not in self._held for key in keys])

    def put(self, keys: Sequence[int]) -> list[KVEvent]:
        """A prompt with these full blocks was computed, or found; what that changes, as the store's publisher would tell it."""
        held, room = self._held, self._room
        new = [key for key in keys if key not in held]
        if room is None:
            held.update(dict.fromkeys(new))
            return [_stored(new, self._size)] if new else []
        for key in reversed(keys):
            held[key] = None
            held.move_to_end(key)
        gone = [held.popitem(last=False)[0] for _ in range(len(held) - room)]
        never = set(gone).intersection(new)
        told: list[KVEvent] = []
        if len(never) < len(gone):
            told.append(BlockRemoved(block_hashes=[key for key in gone if key not in never], medium=MEDIUM))
        if len(never) < len(new):
            told.append(_stored([key for key in new if key not in never], self._size))
        return told

    def size(self, tokens: int) -> float:
        """Bytes of so many."""
        return self._shape.size(tokens)

    def seconds(self, tokens: int) -> float:
        """What it takes one replica to load so many."""
        return self.link.seconds(self._shape.size(tokens))


def known_store() -> KnownStore:
    """The store as a router knows it."""
    return KnownStore(KnownSettings(name=NAME), Traits())


def store_links(settings: StoreSettings) -> dict[str, Link]:
    """The way from there, as a router's economy knows it."""
    return {NAME: Link(settings.gbits * 1e9 / 8, settings.latency)}


def most_loaded(hint: Mapping[str, Any]) -> int | None:
    """What an engine takes such a hint for whose one tier is the store: tokens that it loads at most; None for all."""
    tiers, length = hint.get(TIERS_FIELD), hint.get(LENGTH_FIELD)
    assert length is None or isinstance(length, int), "it is a number of tokens"
    return 0 if tiers is not None and not tiers else length


def _stored(keys: list[int], block_size: int) -> BlockStored:
    return BlockStored(block_hashes=keys, parent_block_hash=None, token_ids=EMPTY, block_size=block_size, medium=MEDIUM)
