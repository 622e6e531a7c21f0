"""Tokens that were said to be loadable or were to be loaded, against what the engine then reported; and what that teaches.

Knows decisions, the engine's figures, tiers and stores. Never knows load or policy. Storage tiers announce no removal (vLLM
0.32), and a reset of an engine's memory tier announces nothing: so a source that has failed to give the same block twice is
believed no more about the rest of that prompt. Where a store is looked at again and again anyway, only counts are kept.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final

from balancer.core import Decision, Replica, RouteRequest
from balancer.stores import SOURCE, Stores
from indexer.index import CacheIndex, Keys

MAX_SUSPECTS: Final = 10_000


class LoadAudit:
    """Changes with ``compare``. Counts are tokens by source and result.

    Of those that were to be loaded: ``loaded``, or ``missed``. Of those that the engine was told to leave there: ``left``, or
    ``taken`` all the same.
    """

    def __init__(self, index: CacheIndex, stores: Stores) -> None:
        self.tokens: Counter[tuple[str, str]] = Counter()
        self.dropped: Counter[str] = Counter()
        """By source: how often a chain was dropped there."""
        self._index = index
        self._stores = stores
        self._suspects: OrderedDict[tuple[str, str, int], None] = OrderedDict()

    def compare(self, decision: Decision, actual: int, request: RouteRequest, chain: Keys, block_size: int) -> None:
        """The engine has reported so many cached tokens, no fewer than its GPU was said to have."""
        if decision.hint:
            self._compare_left(decision, actual)
        at = decision.cached_tokens
        for load in decision.loads:
            end = at + load.tokens
            loaded = min(max(0, actual - at), load.tokens)
            self.tokens[load.source, "loaded"] += loaded
            self.tokens[load.source, "missed"] += load.tokens - loaded
            if loaded < load.tokens:
                first = max(at, actual) // block_size
                keys = chain.keys(end // block_size)[first : end // block_size]
                if keys and self._is_seen_again(load.source, decision.replica, keys[0]):
                    self.dropped[load.source] += 1
                    self._drop(load.source, decision.replica, request, max(at, actual), keys)
                return  # what lies behind was not asked for
            at = end

    def _compare_left(self, decision: Decision, actual: int) -> None:
        at, planned = decision.cached_tokens, decision.expected_tokens
        for load in decision.loadable:
            first, at = max(at, planned), at + load.tokens
            if first < at:
                taken = min(max(0, actual - first), at - first)
                self.tokens[load.source, "taken"] += taken
                self.tokens[load.source, "left"] += at - first - taken

    def _is_seen_again(self, source: str, replica: Replica, key: int) -> bool:
        suspect = (source, "" if source.startswith(SOURCE) else replica.id, key)
        if suspect in self._suspects:
            del self._suspects[suspect]
            return True
        self._suspects[suspect] = None
        if len(self._suspects) > MAX_SUSPECTS:
            self._suspects.popitem(last=False)
        return False

    def _drop(self, source: str, replica: Replica, request: RouteRequest, at: int, keys: Sequence[int]) -> None:
        if not source.startswith(SOURCE):
            for tier, table in self._index.tiers.items():
                if tier.label == source:
                    table.discard(replica.id, 0, keys)
            return
        store = self._stores.get(source.removeprefix(SOURCE))
        if store is None or store.traits.is_looked_at:
            return
        for namespace in self._stores.readable(store, replica):
            gone: Sequence[int] = keys
            if namespace.keys is not None:
                chains = request.hashes.chains(namespace.keys, replica.adapter(request.model))
                size = namespace.keys.block_size
                gone = chains[0].keys(request.prompt_tokens // size)[at // size :] if chains else ()
            self._index.stores.discard(namespace, gone)
