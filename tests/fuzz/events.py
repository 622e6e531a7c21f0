"""Fuzzed KV events: payloads of a publisher, and what a router makes of them.

Whatever bytes come: a payload is a batch or refused as a whole, a batch is applied without an exception, and afterwards the
index is sound, and holds nothing once the replicas are gone.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from balancer.caches import Caches
from balancer.core import Replica
from hashing.recipes import Recipe
from indexer.errors import WireError
from indexer.index import ReplicaId
from indexer.steps import Apply
from indexer.wire import decode
from tests.fuzz.words import halved, written

RECIPE: Final = Recipe(block_size=2)
A, B = ReplicaId("a"), ReplicaId("b")


def _pack(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def _stored(*hashes: Any, parent: Any = None, **more: Any) -> dict[str, Any]:
    tokens = list(range(2 * len(hashes)))
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": 2,
        **more,
    }


_WHOLE: Final = [
    [1.5, [_stored(1, 2)], 0],
    [1.5, [_stored(3, parent=2, medium="CPU", lora_name="l", extra_keys=[["l"]])], None],
    [1.5, [_stored(b"x" * 32, group_idx=1, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=4)]],
    [1.5, [{"type": "BlockRemoved", "block_hashes": [1, 2], "remaining_copy_counts": [0, 1]}]],
    [1.5, [{"type": "AllBlocksCleared"}]],
    [1.5, [["BlockStored", [1], None, [1, 2], 2, None, "GPU", None]], 0],
    [1.5, [["BlockRemoved", [1], "GPU"], ["AllBlocksCleared"]]],
]

_PARTS: Final[list[Any]] = [
    *(None, True, 0, 1, 2, 127, -1, 2**32, 2**64 - 1, 1.5, "", "GPU", "CPU", "DISK", b"", b"x" * 32, b"12345678"),
    *("type", "BlockStored", "BlockRemoved", "AllBlocksCleared", "block_hashes", "parent_block_hash", "token_ids"),
    *("block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
    *("remaining_copy_counts", "locality", "ownership", "session_id", [1, 2], [], {}, [["a"], None], [[1, 2]]),
    *("full_attention", "sliding_window", "kv_cache_spec_sliding_window", "remote", "shared"),
]

WORDS: Final = (
    *map(_pack, _PARTS),
    *map(_pack, _WHOLE),
    *(bytes([byte]) for byte in (0x80, 0x81, 0x85, 0x88, 0x91, 0x92, 0x93, 0x97, 0x99, 0xDC, 0xDD, 0xDE, 0xDF, 0xC1, 0xC7)),
    *(b"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91", b"\x92\xcb\x3f\xf8\0\0\0\0\0\0\x92", b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff"),
    *(_pack(_stored(1, 2)), _pack(_stored(5, parent=3)), _pack({"type": "BlockRemoved", "block_hashes": [1]})),
)  # fmt: skip


def _replica(name: ReplicaId) -> Replica:
    return Replica(id=name, endpoint=f"http://{name}", models=("m",), recipe=RECIPE)


def events(data: bytes) -> None:
    """Payloads of two engines."""
    at, data = halved(data)
    data = written(data, WORDS)
    at %= len(data) + 1
    caches = Caches(64)
    for name in (A, B):
        caches.put(_replica(name))
    for name, payload in ((A, data[:at]), (B, data[at:]), (A, data)):
        try:
            batch = decode(payload)
        except WireError:
            continue
        again = decode(payload)
        assert (again.digest, again.skipped, again.rank) == (batch.digest, batch.skipped, batch.rank)
        assert _told(again.events) == _told(batch.events)
        caches.observe(name, [Apply([batch])])
        caches.tick(1.0)
    caches.index.check()
    for name in (A, B):
        caches.remove(name)
    while caches.index.has_retired:
        caches.index.sweep()
    caches.index.check()
    assert caches.index.size == 0


def _told(events: Iterable[Any]) -> list[bytes]:
    return [_pack(event) for event in events]
