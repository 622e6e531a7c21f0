"""What a request adds to its blocks' hashes besides tokens: LoRA, multimodal items, cache salt, prompt
embeddings.

Knows which block gets which extra, in which order and in which release's form. Never knows tokens or digests.
Once built, ``BlockExtras`` answers for any range of blocks without a memory of earlier questions.

Identity matters, because pickle writes a reference when it meets an object twice. In vLLM a request's strings
arrive decoded from msgpack, each an object of its own; only tag literals are shared. Hence a copy of every
string and digest of the request, and plain literals for tags.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import repeat
from typing import Any

import msgspec

from hashing.errors import UnhashableError
from hashing.recipes import Recipe
from hashing.serialize import BlockExtra, Encodable


class Lora(msgspec.Struct, frozen=True):
    """An adapter. vLLM >= 0.31 hashes name and path, 0.11.1 - 0.30 the name, older ones the integer id.

    The path is what the engine loads from: ``root`` of the adapter's entry in ``GET /v1/models``.
    """

    name: str
    path: str | None = None
    id: int | None = None


class MultimodalItem(msgspec.Struct, frozen=True):
    """An image, video or audio at ``offset`` (its first placeholder token in the prompt), ``length`` tokens
    long.

    ``identifier`` is vLLM's ``mm_hash`` or the user's uuid; with LoRA on the vision tower,
    "<lora>:<mm_hash>".
    """

    identifier: str
    offset: int
    length: int


class Extras(msgspec.Struct, frozen=True):
    """All extras of one request. An empty salt counts as none, as in vLLM.

    ``embeds`` has one entry for each full block of the prompt: the SHA-256 of the block's slice of the prompt
    embeddings (vLLM 0.14: the slice's raw bytes). Positions given by embeddings have token id 0.
    """

    lora: Lora | None = None
    multimodal: tuple[MultimodalItem, ...] = ()
    salt: str | None = None
    embeds: tuple[bytes, ...] = ()


NO_EXTRAS = Extras()


class BlockExtras:
    """The extras of one request, cut into blocks. Immutable.

    Raises:
        UnhashableError: the recipe needs a fact about the adapter that is not given, or a string is not valid
        Unicode.
    """

    def __init__(self, recipe: Recipe, extras: Extras) -> None:
        self._recipe = recipe
        self._lora = _lora_keys(recipe, extras.lora)
        self._salt = _salt_keys(recipe, extras.salt)
        self._embeds = () if recipe.embeds_form == "absent" else extras.embeds
        self._items = [
            (_own("multimodal.identifier", item.identifier), item.offset, item.offset + item.length)
            # vLLM orders items by position before it hashes; ties keep the request's order.
            for item in sorted(extras.multimodal, key=lambda item: item.offset)
        ]

    def of(self, first: int, last: int) -> Iterator[BlockExtra]:
        """The extra of each block in [first, last).

        Raises:
            UnhashableError: there are prompt embeddings, but not for all these blocks.
        """
        if not self.is_uniform(first, last):
            return self._mixed(first, last)
        rest = repeat(self._lora or None, last - first)
        return _with_first(self._lora + self._salt, rest) if first == 0 < last and self._salt else rest

    def is_uniform(self, first: int, last: int) -> bool:
        """Whether LoRA and salt alone determine the extras of [first, last): no item, no embeddings there."""
        start, end = first * self._recipe.block_size, last * self._recipe.block_size
        return not self._embeds and not any(begin < end and start < stop for _, begin, stop in self._items)

    def identity(self) -> bytes:
        """32 bytes that are equal for two requests whose blocks hash alike wherever ``is_uniform`` holds."""
        described = msgspec.msgpack.encode((self._recipe, self._lora, self._salt))
        return sha256(described).digest()

    def _mixed(self, first: int, last: int) -> Iterator[BlockExtra]:
        if self._embeds and len(self._embeds) < last:
            raise UnhashableError(
                f"embeds: {len(self._embeds)} entries for {last} blocks; give one for each full block"
            )
        return self._mixed_blocks(first, last)

    def _mixed_blocks(self, first: int, last: int) -> Iterator[BlockExtra]:
        for block, items in zip(range(first, last), self._multimodal(first, last), strict=True):
            extra = self._lora + items
            if block == 0:
                extra += self._salt
            if self._embeds:
                extra += (self._embeds_key(self._embeds[block]),)
            yield extra or None

    def _multimodal(self, first: int, last: int) -> Iterator[tuple[Encodable, ...]]:
        """Walks items and blocks together as vLLM does: an unfinished item hides those after it.

        That, and the silence after the end of the *last* item, shows only where items overlap (audio within a
        video). Source: vLLM 0.32.0, ``_gen_mm_extra_hash_keys`` in ``vllm/v1/core/kv_cache_utils.py``.
        """
        size, items = self._recipe.block_size, self._items
        at = self._first_open_item(first * size)
        silent_from = items[-1][2] if items else 0
        for start in range(first * size, last * size, size):
            keys: list[Encodable] = []
            while start < silent_from and at < len(items) and items[at][1] < start + size:
                identifier, begin, stop = items[at]
                if start < stop:
                    keys.append(self._multimodal_key(identifier, begin - start))
                if stop > start + size:
                    break
                at += 1
            yield tuple(keys)

    def _first_open_item(self, start: int) -> int:
        """Where the walk stands at a block's start: at the first item that has not ended by then."""
        return next((at for at, (_, _, stop) in enumerate(self._items) if stop > start), len(self._items))

    def _multimodal_key(self, identifier: str, offset: int) -> Encodable:
        match self._recipe.multimodal_form:
            case "tagged":
                return ("mm", identifier, offset)
            case "offset":
                return (identifier, offset)
            case "id":
                return identifier

    def _embeds_key(self, digest: bytes) -> Encodable:
        own = bytes(memoryview(digest))
        return ("prompt_embeds", own) if self._recipe.embeds_form == "tagged" else own


def from_event(recipe: Recipe, published: Sequence[Any] | None, lora: Lora | None) -> BlockExtra:
    """What was hashed for a block, given its entry in the event's ``extra_keys``.

    Events of all releases carry the untagged form; since 0.31 that is not what is hashed. ``lora`` is the
    event's adapter (``lora_name``) with its path, which no event tells.

    Raises:
        UnhashableError: a shape that no release publishes, or the recipe needs a fact about the adapter that
        is not given.
    """
    if not published:
        return None
    if lora is not None and published[0] == lora.name:
        return _lora_keys(recipe, lora) + tuple(_hashed_form(recipe, key) for key in published[1:])
    return tuple(_hashed_form(recipe, key) for key in published)


def _hashed_form(recipe: Recipe, key: Any) -> Encodable:
    match key:
        case str():  # up to vLLM 0.18 also a multimodal identifier; those releases hash both as they are
            own = _own("extra_keys", key)
            return ("cache_salt", own) if recipe.salt_form == "tagged" else own
        case bytes():
            return ("prompt_embeds", key) if recipe.embeds_form == "tagged" else key
        case [str() as identifier, int() as offset]:
            own = _own("extra_keys", identifier)
            return ("mm", own, offset) if recipe.multimodal_form == "tagged" else (own, offset)
        case _:
            raise UnhashableError(f"extra_keys: {key!r} has no known shape; is this vLLM newer than kvlb knows?")


def _lora_keys(recipe: Recipe, lora: Lora | None) -> tuple[Encodable, ...]:
    if lora is None:
        return ()
    match recipe.lora_form:
        case "tagged":
            if lora.path is None:
                raise UnhashableError(
                    "lora.path: vLLM >= 0.31 hashes it; give `root` of the adapter's entry in GET /v1/models"
                )
            return (("lora", _own("lora.name", lora.name), _own("lora.path", lora.path)),)
        case "name":
            return (_own("lora.name", lora.name),)
        case "id":
            if lora.id is None:
                raise UnhashableError("lora.id: vLLM 0.11.0 hashes it; give the `lora_id` of the adapter's events")
            return (lora.id,)


def _salt_keys(recipe: Recipe, salt: str | None) -> tuple[Encodable, ...]:
    if not salt:
        return ()
    own = _own("salt", salt)
    return (("cache_salt", own),) if recipe.salt_form == "tagged" else (own,)


def _own(field: str, text: str) -> str:
    """A string object of its own, by the step that made vLLM's: decoding UTF-8.

    CPython keeps one object for each string of at most one Latin-1 character, so those are shared here as
    they are there.
    """
    try:
        return text.encode().decode()
    except UnicodeEncodeError:
        raise UnhashableError(f"{field}: {text!r} is not valid Unicode; vLLM cannot receive it either") from None


def _with_first(head: BlockExtra, rest: Iterator[BlockExtra]) -> Iterator[BlockExtra]:
    yield head
    next(rest, None)
    yield from rest
