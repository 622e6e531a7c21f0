"""KV events -> the msgpack payload that one vLLM release would publish for them.

Knows both encodings (maps since 0.24, arrays before) and both forms of hashes. Never knows sockets or sequence numbers. Events
hold 64-bit keys; for the form in bytes the digests are computed again from the events themselves and kept as long as their
blocks are cached.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from hashing.chain import hash_blocks
from hashing.external import key_of
from hashing.extras import Lora, from_event
from hashing.recipes import Recipe
from indexer.events import NIL, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from simulations.fake.releases import Release

WireHash: TypeAlias = int | bytes


# Fields in vLLM's order; those without a default are written even when they are nil.
class _Stored(msgspec.Struct, tag_field="type", tag="BlockStored", omit_defaults=True):
    block_hashes: list[WireHash]
    parent_block_hash: WireHash | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: msgspec.Raw | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class _Removed(msgspec.Struct, tag_field="type", tag="BlockRemoved", omit_defaults=True):
    block_hashes: list[WireHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class EventEncoder:
    """One publisher's encoder; mutable where hashes go out as bytes, for it remembers digests then."""

    def __init__(
        self,
        release: Release,
        recipe: Recipe,
        *,
        has_int_hashes: bool = True,
        lora_paths: Mapping[str, str] | None = None,
    ) -> None:
        self._release = release
        self._digests = None if has_int_hashes else _Digests(recipe, lora_paths or {})
        self._encode = msgspec.msgpack.Encoder().encode

    def encode(self, timestamp: float, events: Iterable[KVEvent], rank: int) -> bytes:
        """The payload of one batch; ``timestamp`` in seconds since the epoch."""
        write = self._as_map if self._release.has_map_events else self._as_array
        return self._encode((timestamp, [write(event) for event in events], rank))

    def _as_map(self, event: KVEvent) -> msgspec.Struct:
        match event:
            case BlockStored():
                hashes, parent = self._stored_hashes(event)
                return _Stored(
                    hashes,
                    parent,
                    event.token_ids,
                    event.block_size,
                    event.lora_id,
                    event.medium,
                    event.lora_name,
                    None if event.extra_keys == NIL else event.extra_keys,
                    event.group_idx,
                    event.kv_cache_spec_kind,
                    event.kv_cache_spec_sliding_window,
                    event.locality,
                    event.ownership,
                    event.session_id,
                )
            case BlockRemoved():
                return _Removed(
                    self._removed_hashes(event), event.medium, event.group_idx, event.locality, event.ownership
                )
            case AllBlocksCleared():
                self._cleared()
                return event

    def _as_array(self, event: KVEvent) -> list[Any]:
        match event:
            case BlockStored():
                hashes, parent = self._stored_hashes(event)
                fields = [
                    hashes,
                    parent,
                    event.token_ids,
                    event.block_size,
                    event.lora_id,
                    event.medium,
                    event.lora_name,
                    event.extra_keys,
                    event.group_idx,
                    event.kv_cache_spec_kind,
                    event.kv_cache_spec_sliding_window,
                ]
                return ["BlockStored", *fields[: self._release.num_stored_fields]]
            case BlockRemoved():
                removed = ["BlockRemoved", self._removed_hashes(event), event.medium]
                return [*removed, event.group_idx] if self._release.num_stored_fields >= 9 else removed
            case AllBlocksCleared():
                self._cleared()
                return ["AllBlocksCleared"]

    def _stored_hashes(self, event: BlockStored) -> tuple[list[WireHash], WireHash | None]:
        if self._digests is None:
            return list(event.block_hashes), event.parent_block_hash
        return self._digests.stored(event)

    def _removed_hashes(self, event: BlockRemoved) -> list[WireHash]:
        if self._digests is None:
            return list(event.block_hashes)
        return [self._digests.removed(key) for key in event.block_hashes]

    def _cleared(self) -> None:
        if self._digests is not None:
            self._digests.clear()


class _Digests:
    """The whole digests of one replica's cached blocks, by key; mutable."""

    def __init__(self, recipe: Recipe, lora_paths: Mapping[str, str]) -> None:
        self._recipe = recipe
        self._lora_paths = lora_paths
        self._known: dict[int, bytes] = {}
        self._copies: Counter[int] = Counter()

    def stored(self, event: BlockStored) -> tuple[list[WireHash], WireHash | None]:
        parent = None if event.parent_block_hash is None else self._known[event.parent_block_hash]
        lora = None
        if event.lora_name is not None:
            lora = Lora(event.lora_name, self._lora_paths.get(event.lora_name), event.lora_id)
        published = event.extras() or [None] * len(event.block_hashes)
        extras = [from_event(self._recipe, each, lora) for each in published]
        digests = hash_blocks(self._recipe, parent or self._recipe.none_hash(), event.tokens(), extras)
        for digest in digests:
            self._known[key_of(digest)] = digest
            self._copies[key_of(digest)] += 1
        return list(digests), parent

    def removed(self, key: int) -> bytes:
        digest = self._known[key]
        self._copies[key] -= 1
        # A block may be evicted before its child is stored again, so the digest outlives the block by a while.
        if len(self._known) > 2 * len(+self._copies) + 4096:
            self._known = {key: self._known[key] for key in +self._copies}
        return digest

    def clear(self) -> None:
        self._copies.clear()
