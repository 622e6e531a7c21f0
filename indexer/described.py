"""What one event tells of its blocks: tokens, extras, adapter -> the links that lead from their parent to them.

Knows the shapes in which vLLM (0.11 - 0.32) and its offload tiers tell them. Never knows names, keys of parents or what was
told before. What has no known shape is described by nothing, and never raises.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from hashing.chain import pack
from hashing.errors import UnhashableError
from hashing.extras import Lora, from_event
from hashing.own import EXTRAS_FORM, link, local_hashes, root
from hashing.serialize import BlockExtra
from indexer.events import NIL, BlockStored
from indexer.places import is_on_gpu


class Description(msgspec.Struct, frozen=True, gc=False):
    """``links`` has one entry for each hash within the blocks; ``root`` is what the first follows, if it begins a prompt."""

    links: list[bytes]
    root: int | None


def describe(event: BlockStored, hash_block_size: int, adapters: Mapping[str, Lora]) -> Description | None:
    """The event's blocks, hashed every ``hash_block_size`` tokens.

    None when its tokens are not exactly those of its blocks (sparse groups and placeholders send more or none), or when
    something in them has no known shape.
    """
    try:
        tokens = dense_tokens(event)
        if tokens is None or not hash_block_size or event.block_size % hash_block_size:
            return None
        salt, extras = _extras(event)
        is_first = event.parent_block_hash is None
        if is_first and event.extra_keys == NIL and not is_on_gpu(event):
            return None  # offload tiers leave the salt out; the GPU's event of the same name has it
        begin = root(_lora(event, adapters), salt) if is_first else None
        locals_ = local_hashes(pack(tokens), hash_block_size)
        if extras is None:
            return Description(list(locals_), begin)
        if event.block_size != hash_block_size:
            return None
        return Description(list(map(link, locals_, extras)), begin)
    except (UnhashableError, msgspec.MsgspecError):
        return None


def _lora(event: BlockStored, adapters: Mapping[str, Lora]) -> Lora | None:
    if event.lora_name is not None:
        return adapters.get(event.lora_name) or Lora(event.lora_name)
    if event.lora_id is not None:  # vLLM 0.11: a number that no request and no listing names
        raise UnhashableError(f"lora_id: {event.lora_id} has no name")
    return None


def dense_tokens(event: BlockStored) -> list[int] | None:
    """The tokens if they are exactly those of the hashed blocks: sparse groups and placeholders send more or none.

    Raises:
        msgspec.MsgspecError: they are not a list of integers.
    """
    if event.block_size <= 0:
        return None
    tokens = event.tokens()
    return tokens if len(tokens) == len(event.block_hashes) * event.block_size else None


_LENGTHS: Final = {0xDC: 2, 0xDD: 4}
"""Bytes of the number of items of msgpack's longer arrays."""

_WIDTHS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
"""Bytes of msgpack's unsigned integers behind their first."""


def first_tokens(event: BlockStored) -> list[int] | None:
    """The tokens of the first block, as ``dense_tokens``; None where they are told in no usual way.

    The rest is not looked at: an event may have a hundred thousand of them.
    """
    data = memoryview(event.token_ids)
    header = data[0] if data else 0xC0
    if header & 0xF0 == 0x90:
        count, at = header & 0x0F, 1
    elif header in _LENGTHS:
        at = 1 + _LENGTHS[header]
        count = int.from_bytes(data[1:at], "big")
    else:
        return None
    if event.block_size <= 0 or count != len(event.block_hashes) * event.block_size:
        return None
    tokens = []
    try:
        for _ in range(event.block_size):
            value, width = data[at], 0
            if value > 0x7F:
                width = _WIDTHS[value]
                value = int.from_bytes(data[at + 1 : at + 1 + width], "big")
            tokens.append(value)
            at += 1 + width
    except LookupError:
        return None
    return tokens


def _extras(event: BlockStored) -> tuple[str | None, list[BlockExtra] | None]:
    """The salt that the event tells, and what lies in each block; None where nothing lies in any.

    Raises:
        UnhashableError: an extra of unknown shape, or in a block where it cannot be.
        msgspec.MsgspecError: the extras are not a list of lists.
    """
    published = event.extras()
    if not published:
        return None, None
    if len(published) != len(event.block_hashes):
        raise UnhashableError(f"extra_keys: {len(published)} entries for {len(event.block_hashes)} blocks")
    if not any(published):
        return None, None
    salt: str | None = None
    extras: list[BlockExtra] = []
    for at, entry in enumerate(published):
        rest = entry[1:] if entry and event.lora_name is not None and entry[0] == event.lora_name else entry
        told = from_event(EXTRAS_FORM, rest, None) or ()
        for text in (each for each in told if isinstance(each, str)):
            # A salt stands in the first block alone; up to vLLM 0.21 a bare text may be an image, whose offset is not told.
            if at or salt is not None or event.parent_block_hash is not None:
                raise UnhashableError(f"extra_keys: {text!r} is no salt of a first block")
            salt = text
        extras.append(tuple(each for each in told if not isinstance(each, str)) or None)
    return salt, extras if any(extras) else None
