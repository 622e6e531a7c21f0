"""An engine's cache by requests: which blocks a request hits, takes and fills, and what is announced of it.

Knows the rules of vLLM 0.32.0's ``vllm/v1/core/kv_cache_manager.py`` for full attention. Never knows who is served when
(``simulations.engine``), or where blocks come from (``simulations.block_pool``).
"""

from collections.abc import Iterable

from indexer.events import BlockRemoved, BlockStored, KVEvent
from simulations.block_pool import BlockPool
from simulations.engine_live import Live
from simulations.engine_values import EngineConfig
from simulations.sequences import GROUP, MEDIUM


class EngineCache:
    """Mutable; ``events`` are those that nobody has fetched yet."""

    def __init__(self, config: EngineConfig) -> None:
        self.pool = BlockPool(config.num_gpu_blocks)
        self.events: list[KVEvent] = []
        self._config = config
        self._block_size = config.recipe.block_size

    def has_room(self, hits: list[int], num_tokens: int) -> bool:
        # A hit on a free block takes it from the free queue, so it costs as much as a new one.
        return self.num_blocks(num_tokens) - len(hits) + self.pool.count_free(hits) <= self.pool.num_free

    def reads(self, live: Live) -> bool:
        return self._config.has_prefix_caching and not live.request.skip_cache

    def find(self, live: Live) -> list[int]:
        if not self.reads(live):
            return []
        return self.pool.find(live.sequence.keys[: self.usable(live)])

    def usable(self, live: Live) -> int:
        """Blocks that can be hit: the last token is always computed, for its logits, and hits end on a block boundary."""
        return (live.sequence.num_tokens - 1) // self._block_size

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def grow(self, live: Live, num_blocks: int, num_tokens: int) -> None:
        if num_blocks > 0:
            blocks, evicted = self.pool.allocate(num_blocks)
            live.blocks += blocks
            self.events.extend(removed(evicted))
        self.cache_full(live, min(num_tokens, live.sequence.num_tokens))

    def cache_full(self, live: Live, num_tokens: int) -> None:
        first, last = live.num_cached_blocks, num_tokens // self._block_size
        if first < last and self._config.has_prefix_caching:
            self.pool.cache(live.blocks[first:last], live.sequence.keys[first:last])
            live.num_cached_blocks = last
            self.events.append(self._stored(live, first, last))

    def _stored(self, live: Live, first: int, last: int) -> BlockStored:
        return live.sequence.stored(first, last, with_tokens=self._config.announce_tokens)

    def free(self, live: Live) -> None:
        self.pool.free(reversed(live.blocks))
        live.blocks = []
        live.num_cached_blocks = 0


def removed(keys: Iterable[int]) -> list[KVEvent]:
    return [BlockRemoved(block_hashes=[key], medium=MEDIUM, group_idx=GROUP) for key in keys]
