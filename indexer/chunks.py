"""How many blocks an offload tier keeps together, as its events show it.

Knows where blocks lie in their chains, from what GPU events tell, and what other tiers name. Never knows tokens or what an
index holds. vLLM's OffloadingConnector (0.32, ``block_size`` of its extra config) keeps chunks of some blocks, and loads only
whole ones. By default it names a chunk by its last block alone, in a *placeholder* without tokens: then the size is the
greatest number that the places of all of them are multiples of. With ``self_describing_kv_events`` an event names all blocks
of a chunk.
"""

from collections.abc import Iterable
from itertools import islice
from math import gcd
from typing import Final

from indexer.events import BlockStored, KVEvent
from indexer.places import Tier, is_on_gpu, tier_of

MAX_PLACES: Final = 65_536
"""Blocks whose place is remembered, some 100 bytes each: a chunk is offloaded soon after its blocks were computed."""

FORGOTTEN_AT_ONCE: Final = 4_096

MAX_TIERS: Final = 8
"""As many as the index keeps of one replica."""


class Chunks:
    """Those of one replica. Changes with ``read`` and ``forget``."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # name -> blocks of its chain, itself included
        self._sizes: dict[Tier, int] = {}
        self._is_asked = False  # whether places are of any use

    def __repr__(self) -> str:
        return f"<Chunks {', '.join(f'{tier.label}: {size}' for tier, size in self._sizes.items())}>"

    def size(self, tier: Tier) -> int:
        """Blocks in a chunk; 1 while nothing has shown that there are more."""
        return self._sizes.get(tier) or 1

    def read(self, events: Iterable[KVEvent]) -> None:
        """Learn from these events, which have the engine's own names."""
        for event in events:
            if not isinstance(event, BlockStored) or not event.block_hashes:
                continue
            if is_on_gpu(event):
                if self._is_asked and not event.group_idx:
                    self._place(event)
            elif event.block_size > 0:
                self._show(tier_of(event), len(event.block_hashes))
            else:
                self._is_asked = True
                for name in event.block_hashes:
                    if (place := self._places.get(name)) is not None:
                        self._show(tier_of(event), place)

    def forget(self) -> None:
        """Another life of the engine, perhaps with other chunks."""
        self._places.clear()
        self._sizes.clear()
        self._is_asked = False

    def _show(self, tier: Tier, blocks: int) -> None:
        if tier in self._sizes or len(self._sizes) < MAX_TIERS:
            self._sizes[tier] = gcd(self._sizes.get(tier, 0), blocks)

    def _place(self, event: BlockStored) -> None:
        before = 0 if event.parent_block_hash is None else self._places.get(event.parent_block_hash)
        if before is None:
            return
        self._places.update((name, before + at) for at, name in enumerate(event.block_hashes, 1))
        if len(self._places) > MAX_PLACES:
            for name in list(islice(self._places, len(self._places) - MAX_PLACES + FORGOTTEN_AT_ONCE)):
                del self._places[name]
