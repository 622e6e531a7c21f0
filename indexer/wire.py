"""msgpack payloads of vLLM's KV-event publisher -> events.

Knows both encodings: events as maps (vLLM >= 0.24) and as positional arrays (<= 0.22), hashes as integers or as bytes, and
batches with or without a rank. Never knows order, replicas or the index. One event that cannot be read costs that event,
not its batch; what was skipped is returned, never raised.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import xxhash

from hashing.external import key_of
from indexer.errors import WireError
from indexer.events import MAX_HASHES, NIL, AllBlocksCleared, BlockRemoved, BlockStored, CopyCount, KVEvent, Text

WireHash: TypeAlias = int | bytes
WireHashes: TypeAlias = Annotated[list[WireHash], msgspec.Meta(max_length=MAX_HASHES)]

_COUNTS: Final = b"remaining_copy_counts"

MAX_PAYLOAD: Final = 32 * 1024 * 1024
"""Bytes. A scheduler step of 128 k new tokens takes one; what is longer would keep a reader busy for seconds."""

MAX_EVENTS: Final = 2**17
"""Of one batch: vLLM makes one for each block that it evicts, some thousands in a step."""

MAX_ODD_EVENTS: Final = 250_000
"""Events of a batch that has to be read one by one, for the sake of those in it that cannot be read."""


class Batch(msgspec.Struct, frozen=True):
    """What one scheduler step published.

    ``timestamp`` is the engine's wall clock in seconds; ``rank`` the data-parallel rank or None when unsaid; ``skipped``
    has a reason for each event that could not be read. ``digest`` is that of the payload's bytes (``digest_of``).
    """

    timestamp: float
    events: list[KVEvent]
    rank: int | None = None
    skipped: tuple[str, ...] = ()
    digest: int = 0


# The common case, decoded straight into the events themselves: maps, with hashes as unsigned integers.
class _MapBatch(msgspec.Struct, array_like=True):
    timestamp: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    rank: int | None = None


# Every other case, with hashes in whichever form. The order of fields is vLLM's order of declaration: an array has no
# other names, and older publishers send fewer elements (0.9: five and one).
class _Stored(msgspec.Struct):
    block_hashes: WireHashes
    parent_block_hash: WireHash | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: int | None = None
    medium: Text | None = None
    lora_name: Text | None = None
    extra_keys: msgspec.Raw = NIL
    group_idx: int | None = None
    kv_cache_spec_kind: Text | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: Text | None = None
    ownership: Text | None = None
    session_id: Text | None = None


class _Removed(msgspec.Struct):
    block_hashes: WireHashes
    medium: Text | None = None
    group_idx: int | None = None
    locality: Text | None = None
    ownership: Text | None = None


class _StoredMap(_Stored, tag_field="type", tag="BlockStored"):
    pass


class _RemovedMap(_Removed, tag_field="type", tag="BlockRemoved"):
    remaining_copy_counts: list[CopyCount] | None = None  # maps alone: no publisher of arrays has it


class _StoredArray(_Stored, array_like=True, tag="BlockStored"):
    pass


class _RemovedArray(_Removed, array_like=True, tag="BlockRemoved"):
    pass


class _ClearedArray(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass


class _ArrayBatch(msgspec.Struct, array_like=True):
    timestamp: float
    events: list[_StoredArray | _RemovedArray | _ClearedArray]
    rank: int | None = None


class _RawBatch(msgspec.Struct, array_like=True):
    timestamp: float
    events: msgspec.Raw
    rank: Any = None


_map_batch = msgspec.msgpack.Decoder(_MapBatch)
_array_batch = msgspec.msgpack.Decoder(_ArrayBatch)
_raw_batch = msgspec.msgpack.Decoder(_RawBatch)
_raw_events = msgspec.msgpack.Decoder(list[msgspec.Raw])
_array_event = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_map_event = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | AllBlocksCleared)

_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)


def decode(payload: bytes) -> Batch:
    """One payload, in whichever encoding, as a batch of events.

    Raises:
        WireError: not even ``[timestamp, [event, ...], ...]`` can be read, or it is too long.
    """
    if len(payload) > MAX_PAYLOAD:
        raise WireError(f"not a batch of KV events: {len(payload):,} bytes; at most {MAX_PAYLOAD:,} are read")
    try:
        if _has_array_events(payload):
            array = _array_batch.decode(payload)
            events = [_event(item) for item in array.events]
            found = Batch(array.timestamp, events, array.rank, digest=digest_of(payload))
            return found if _is_bounded(payload, events) else _bounded(found)
        batch = _map_batch.decode(payload)
        if not _is_bounded(payload, batch.events):
            return _bounded(Batch(batch.timestamp, batch.events, batch.rank, digest=digest_of(payload)))
        skipped = _odd_counts(batch.events) if _COUNTS in payload else ()
        return Batch(batch.timestamp, batch.events, batch.rank, skipped, digest_of(payload))
    except _UNREADABLE:
        return _decode_one_by_one(payload)


def _is_bounded(payload: bytes, events: Sequence[KVEvent]) -> bool:
    """Whether a batch is certainly as small as one may be, without counting: a hash takes a byte at least."""
    return len(events) <= MAX_EVENTS and len(payload) <= MAX_HASHES


def _bounded(batch: Batch) -> Batch:
    """The batch up to the event that makes it more than may be applied in one go; a reason says what was left out."""
    room = MAX_HASHES
    for at, event in enumerate(batch.events):
        room -= 1 if isinstance(event, AllBlocksCleared) else len(event.block_hashes)
        if room < 0 or at >= MAX_EVENTS:
            left = f"{len(batch.events) - at:,} events: a batch of more than {MAX_HASHES:,} blocks or {MAX_EVENTS:,} events"
            kept = batch.events[:at]
            return Batch(batch.timestamp, kept, batch.rank, (*batch.skipped, left), batch.digest)
    return batch


def _odd_counts(events: Iterable[KVEvent]) -> tuple[str, ...]:
    """What is wrong with removals that do not say of each of their blocks how many copies are left."""
    removals = (
        event for event in events if isinstance(event, BlockRemoved) and event.remaining_copy_counts is not None
    )
    return tuple(
        f"remaining_copy_counts: {len(event.remaining_copy_counts or ())} of {len(event.block_hashes)} blocks"
        for event in removals
        if len(event.remaining_copy_counts or ()) != len(event.block_hashes)
    )


def digest_of(payload: bytes) -> int:
    """What a batch is known again by when it is sent once more, readable or not; 64 bits."""
    return xxhash.xxh3_64_intdigest(payload)


def _has_array_events(payload: bytes) -> bool:
    # [timestamp, [first event ...: a fixarray, a float64, an array header, then the first byte of the first event.
    if len(payload) < 12 or payload[1] != 0xCB:
        return False
    header = payload[10]
    at = 11 if header & 0xF0 == 0x90 else 13 if header == 0xDC else 15
    return _is_array(payload[at : at + 1])


def _is_array(data: bytes) -> bool:
    return bool(data) and (data[0] & 0xF0 == 0x90 or data[0] in {0xDC, 0xDD})


def _length(array: bytes) -> int:
    """How many items a msgpack array claims to have; nothing is read, so nothing is reserved for them."""
    width = {0xDC: 2, 0xDD: 4}.get(array[0], 0)
    return int.from_bytes(array[1 : 1 + width], "big") if width else array[0] & 0x0F


def _decode_one_by_one(payload: bytes) -> Batch:
    try:
        raw = _raw_batch.decode(payload)
        if _length(bytes(raw.events)) > MAX_ODD_EVENTS:
            raise WireError(f"not a batch of KV events: more than {MAX_ODD_EVENTS:,}, and some of them cannot be read")
        items = _raw_events.decode(raw.events)
    except _UNREADABLE as error:
        raise WireError(f"not a batch of KV events: {error}") from error
    events: list[KVEvent] = []
    skipped: list[str] = []
    for item in items:
        data = bytes(item)
        try:
            events.append(_event((_array_event if _is_array(data) else _map_event).decode(data)))
        except _UNREADABLE as error:
            skipped.append(str(error))
    rank = raw.rank if isinstance(raw.rank, int) else None
    return _bounded(Batch(raw.timestamp, events, rank, (*skipped, *_odd_counts(events)), digest_of(payload)))


def _event(item: _Stored | _Removed | _ClearedArray | AllBlocksCleared) -> KVEvent:
    match item:
        case _Stored():
            parent = item.parent_block_hash
            return BlockStored(
                [key_of(value) for value in item.block_hashes],
                None if parent is None else key_of(parent),
                item.token_ids,
                item.block_size,
                item.lora_id,
                item.medium,
                item.lora_name,
                item.extra_keys,
                item.group_idx,
                item.kv_cache_spec_kind,
                item.kv_cache_spec_sliding_window,
                item.locality,
                item.ownership,
                item.session_id,
            )
        case _Removed():
            keys = [key_of(value) for value in item.block_hashes]
            counts = item.remaining_copy_counts if isinstance(item, _RemovedMap) else None
            return BlockRemoved(keys, item.medium, item.group_idx, item.locality, item.ownership, counts)
        case _:
            return AllBlocksCleared()
