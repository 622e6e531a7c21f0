"""KV-cache events as vLLM's scheduler means them.

Knows the three events, their fields and their defaults (vLLM 0.11 - 0.32, ``vllm/distributed/kv_events.py``). Never knows
how they travelled (``wire.py``), in which order they belong (``stream.py``) or what they do to an index (``index.py``).

Field names are vLLM's own. ``token_ids`` and ``extra_keys`` stay undecoded msgpack: an index keyed by vLLM's own block hash
does not need them, and they are nine tenths of the bytes. ``tokens()`` and ``extras()`` decode on demand.
"""

from typing import Annotated, Any, Final, TypeAlias

import msgspec

EMPTY: Final = msgspec.Raw(b"\x90")  # msgpack: array of length 0
NIL: Final = msgspec.Raw(b"\xc0")

BlockKey: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""A block hash as an unsigned 64-bit integer, whichever form was published (see ``hashing.external``)."""

CopyCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
"""More than any engine has blocks."""

Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]
"""Names are kept, and told: whoever publishes them must not choose how much memory that takes."""

MAX_HASHES: Final = 2**18
"""In one event: the blocks of four million tokens, at 16 a block. More would keep whoever applies it from all else."""

BlockKeys: TypeAlias = Annotated[list[BlockKey], msgspec.Meta(max_length=MAX_HASHES)]

_tokens = msgspec.msgpack.Decoder(list[int])
_extras = msgspec.msgpack.Decoder(list[list[Any] | None] | None)


class BlockStored(msgspec.Struct, frozen=True, tag_field="type", tag="BlockStored", omit_defaults=True):
    """Full blocks that became cached; one copy of each hash in ``block_hashes``.

    ``token_ids`` may cover more tokens than the hashes do (sparse groups), or none (placeholders of offload tiers, which
    also send ``block_size`` 0): never zip the two without comparing lengths.
    """

    block_hashes: BlockKeys
    parent_block_hash: BlockKey | None
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

    def tokens(self) -> list[int]:
        """The token ids of the range that was stored.

        Raises:
            msgspec.MsgspecError: they are not a list of integers.
        """
        return _tokens.decode(self.token_ids)

    def extras(self) -> list[list[Any] | None] | None:
        """The extra keys, one entry per hash, in the untagged form that events keep in every version.

        Raises:
            msgspec.MsgspecError: they are not a list of lists.
        """
        return _extras.decode(self.extra_keys)


class BlockRemoved(msgspec.Struct, frozen=True, tag_field="type", tag="BlockRemoved", omit_defaults=True):
    """One copy of each hash is gone from the tier named by ``medium``.

    ``remaining_copy_counts``, where it is sent, says how many copies of each hash are left (proposed for vLLM in its pull
    request 48933; no release up to 0.32 sends it).
    """

    block_hashes: BlockKeys
    medium: Text | None = None
    group_idx: int | None = None
    locality: Text | None = None
    ownership: Text | None = None
    remaining_copy_counts: list[CopyCount] | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag_field="type", tag="AllBlocksCleared"):
    """The whole GPU tier of the publisher is empty; the event names neither medium nor group."""


KVEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared
