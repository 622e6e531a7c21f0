"""What a connector loads into an engine's blocks: what it can, whether that fits, and for whom something is on its way.

Knows vLLM 0.32.0's requests that wait for a connector (``WAITING_FOR_REMOTE_KVS``). Never knows links or time, or who goes on
when (``simulations.engine``). A block that is on its way for one request is not loaded for another one.
"""

from collections.abc import Sequence

from simulations.engine_cache import EngineCache, removed
from simulations.engine_live import Live
from simulations.engine_values import EngineConfig
from simulations.kv_connector import Connector


class Loads:
    """Mutable.

    Attributes:
        loading: those that a connector loads blocks for, or has, until they run.
        given_up: they have ended, and what is being loaded for them has not come yet.
    """

    def __init__(self, config: EngineConfig, cache: EngineCache, connector: Connector | None) -> None:
        self.loading: dict[str, Live] = {}
        self.given_up: dict[str, Live] = {}
        self._coming: set[int] = set()  # keys of blocks that are being loaded
        self._connector = connector
        self._cache = cache
        self._block_size = config.recipe.block_size

    @property
    def is_any_coming(self) -> bool:
        """Whether blocks that others may want, too, are being loaded."""
        return bool(self._coming)

    def find(self, live: Live, num_hits: int) -> int | None:
        """Tokens behind its hit that a connector can load: of another engine, once, all; else full blocks.

        vLLM's NixlConnector and OffloadingConnector count them so. None while some of these blocks are being loaded for
        another request: it waits for them, and hits them then.
        """
        if live.request.remote_tokens and not live.was_preempted:
            return max(0, min(live.request.remote_tokens, live.sequence.num_tokens) - num_hits * self._block_size)
        live.coming = ()
        if self._connector is None or not self._cache.reads(live):
            return 0
        last = live.sequence.num_tokens // self._block_size
        if live.request.max_load_tokens is not None:
            last = min(last, num_hits + live.request.max_load_tokens // self._block_size)
        if last <= num_hits:
            return 0
        found = self._connector.reach(live.sequence.keys, num_hits, last)
        if found and not self._coming.isdisjoint(live.sequence.keys[num_hits : num_hits + found]):
            return None
        live.coming = live.sequence.keys[num_hits : num_hits + found]
        return found * self._block_size

    def begin(self, live: Live, hits: list[int], tokens: int, running: Sequence[Live]) -> bool:
        """Give a request that hits these blocks those that so many tokens are loaded into. Returns whether there are as many.

        It makes no headway while it holds them, and is not preempted: so it must leave enough for those that have begun.
        """
        num_hits, pool = len(hits), self._cache.pool
        num_ready = num_hits * self._block_size + tokens
        count = self._cache.num_blocks(num_ready) - num_hits
        if count > pool.num_free - pool.count_free(hits) - self._reserved(running):
            return False
        pool.reference(hits)
        blocks, evicted = pool.allocate(count)
        self._cache.events.extend(removed(evicted))
        live.blocks = hits + blocks
        live.num_cached_blocks = num_hits
        live.num_computed = num_ready
        live.is_loading = True
        self._coming.update(live.coming)
        self.loading[live.id] = live
        return True

    def end(self, request_id: str) -> bool:
        """What was loaded for this request has come. Returns whether anything was."""
        live = self.loading.get(request_id)
        if live is None:
            live = self.given_up.pop(request_id, None)
            if live is None:
                return False
            self._cache.free(live)
        self._coming.difference_update(live.coming)
        live.is_loading, live.coming = False, ()
        return True

    def leave(self, live: Live) -> bool:
        """The request has ended. Returns whether it was among these."""
        if self.loading.pop(live.id, None) is None:
            return False
        if live.is_loading:  # somebody writes into its blocks
            self.given_up[live.id] = live
        return True

    def _reserved(self, running: Sequence[Live]) -> int:
        """Blocks that those still need who have begun and have more than their newest token to compute."""
        begun = [*self.loading.values(), *[live for live in running if live.num_missing > 1]]
        return sum([self._cache.num_blocks(live.sequence.num_tokens) - len(live.blocks) for live in begun])
