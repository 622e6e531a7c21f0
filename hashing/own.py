"""Keys of our own, for blocks of an engine that hashes in a way nobody else can compute.

Knows tokens, extras and one fast hash. Never knows an engine's recipe, events or names. A key covers the whole prefix: it is
the hash of its block's link, seeded with the parent's key. A link is the local hash of the block's tokens, then what else lies
in the block; adapter and salt stand at the root of the chain, so that they are part of every key.

The local hash is NVIDIA Dynamo's (``LocalBlockHash``, ai-dynamo-runtime 1.6.1: XXH3 of the tokens as little-endian u32, seed
1337), so that whoever sends those instead of tokens is understood. Nothing here is secret: colliding prompts can be made on
purpose, and make kvlb misjudge a prefix; they can never change what an engine computes.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, Self

import msgspec
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from hashing.chain import pack
from hashing.errors import UnhashableError
from hashing.extras import NO_EXTRAS, BlockExtras, Extras, Lora
from hashing.recipes import Recipe
from hashing.serialize import BlockExtra

TOKENS_SEED: Final = 1337
WIDE_TOKENS_SEED: Final = 1338
"""For blocks with a token that needs more than 32 bits, which no engine has and any event may carry."""

_ROOT: Final = xxh3_64_intdigest(b"kvlb: the parent of first blocks")
_KEY_MASK: Final = (1 << 64) - 1

EXTRAS_FORM: Final = Recipe(lora_form="name", multimodal_form="offset", salt_form="plain", embeds_form="plain")
"""Extras as the events of every release tell them."""


class LearnedKeys(msgspec.Struct, frozen=True):
    """What prompts are hashed with to be found among keys that were learned; stands where a ``Recipe`` would.

    ``tells_extras`` is false where events name neither salts nor images (vLLM before 0.18): then a salt is left out, and a
    chain ends before its first image.
    """

    block_size: int = 16
    tells_extras: bool = True


class OwnChain:
    """The keys of one prompt, computed on demand. Mutable: it remembers what it has hashed.

    Cheap enough to need no memory of other chains: a stride's name costs a third of its keys.

    Raises:
        UnhashableError: a token is not an integer from 0 to 2**64 - 1, or an extra is not valid Unicode.
    """

    def __init__(self, keys: LearnedKeys, tokens: Sequence[int], extras: Extras = NO_EXTRAS) -> None:
        form = msgspec.structs.replace(EXTRAS_FORM, block_size=keys.block_size)
        self._extras = BlockExtras(form, Extras(multimodal=extras.multimodal, embeds=extras.embeds))
        self._tokens = pack(tokens)
        length = len(self._tokens)
        if not keys.tells_extras:
            length = min([length, *(item.offset for item in extras.multimodal)])
        self._begin(keys.block_size, length // keys.block_size, extras, keys.tells_extras)

    @classmethod
    def from_local_hashes(cls, block_size: int, hashes: Sequence[int], extras: Extras = NO_EXTRAS) -> Self:
        """The chain of full blocks whose local hashes are known, as signed or unsigned 64-bit integers.

        Of the extras, adapter and salt count; what lies in the blocks has to be in their hashes.
        """
        chain = cls.__new__(cls)
        chain._begin(block_size, len(hashes), extras, tells_extras=True)
        chain._keys = follow(chain._root, ((each & _KEY_MASK).to_bytes(8, "big") for each in hashes))
        return chain

    def _begin(self, block_size: int, length: int, extras: Extras, tells_extras: bool) -> None:
        self._block_size = block_size
        self._length = length
        self._root = root(extras.lora, extras.salt if tells_extras else None)
        self._keys: list[int] = []

    def __len__(self) -> int:
        """The number of full blocks."""
        return self._length

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self._block_size

    def keys(self, count: int) -> list[int]:
        """The keys of at least the first ``count`` blocks, or of all if there are fewer.

        The list is the chain's own and grows with later calls: callers only read it.

        Raises:
            UnhashableError: the prompt embeddings' extras do not reach that far.
        """
        first, last = len(self._keys), min(count, self._length)
        if first < last:
            parent = self._keys[-1] if self._keys else self._root
            self._keys += follow(parent, self._links(first, last))
        return self._keys

    def _links(self, first: int, last: int) -> Iterable[bytes]:
        size = self._block_size
        locals_ = local_hashes(self._tokens[first * size : last * size], size)
        if self._extras.is_uniform(first, last):
            return locals_
        return map(link, locals_, self._extras.of(first, last))


def root(lora: Lora | None, salt: str | None) -> int:
    """The parent of a first block.

    Raises:
        UnhashableError: a string is not valid Unicode.
    """
    if lora is None and not salt:
        return _ROOT
    try:
        told = msgspec.msgpack.encode((None if lora is None else (lora.name, lora.path), salt or None))
    except UnicodeEncodeError:
        raise UnhashableError("salt or lora: not valid Unicode; vLLM cannot receive it either") from None
    return xxh3_64_intdigest(told, _ROOT)


def local_hashes(tokens: "array[int]", block_size: int) -> Iterator[bytes]:
    """The local hash of each full block of packed tokens (``hashing.chain.pack``): 8 bytes, big-endian."""
    end = len(tokens) // block_size * block_size
    if tokens.typecode == "I":
        blocks = _cut(block_size * tokens.itemsize).iter_unpack(memoryview(tokens)[:end])
        return (xxh3_64_digest(block, TOKENS_SEED) for (block,) in blocks)
    return (_wide_hash(tokens[start : start + block_size]) for start in range(0, end, block_size))


@lru_cache(maxsize=64)
def _cut(size: int) -> Struct:
    return Struct(f"{size}s")


def _wide_hash(tokens: "array[int]") -> bytes:
    try:
        return xxh3_64_digest(array("I", tokens), TOKENS_SEED)
    except OverflowError:
        return xxh3_64_digest(tokens, WIDE_TOKENS_SEED)


def link(local: bytes, extra: BlockExtra) -> bytes:
    """What is hashed after the parent's key: the tokens' hash, and images (identifier, offset) or embeddings in the block."""
    return local + msgspec.msgpack.encode(extra) if extra else local


def follow(parent: int, links: Iterable[bytes]) -> list[int]:
    """The keys of the blocks that follow ``parent``, one after the other."""
    return [parent := xxh3_64_intdigest(each, parent) for each in links]
