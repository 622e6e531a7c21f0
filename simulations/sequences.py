"""The tokens of one request inside a replica: its block keys, and the event that announces a range of its blocks.

Knows two kinds of prompt: tokens, hashed as the replica's recipe says, and ready-made keys (traces carry block ids, not
tokens). Never knows physical blocks or steps. Between calls ``keys`` covers every full block, generated tokens included, and no
key that was there ever changes.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from hashing.chain import Chain, continue_chain
from hashing.external import key_of
from hashing.extras import NO_EXTRAS, BlockExtras, Extras
from hashing.recipes import Recipe
from indexer.events import EMPTY, NIL, BlockStored

MEDIUM: Final = "GPU"
GROUP: Final = 0
SPEC_KIND: Final = "full_attention"

_encode = msgspec.msgpack.Encoder().encode


class TokenSequence(Protocol):
    """What the engine asks of a request's tokens; mutable, it grows as tokens are generated.

    ``keys`` may run ahead of the tokens, never behind the full blocks; callers only read it.
    """

    num_tokens: int
    keys: list[int]

    def append(self, token: int) -> None:
        """Add a generated token, and a key if it fills a block."""
        ...

    def stored(self, first: int, last: int, *, with_tokens: bool) -> BlockStored:
        """The event for the full blocks ``first`` (inclusive) to ``last`` (exclusive), as vLLM 0.32.0 writes it."""
        ...


class Prompt(Protocol):
    """A prompt that can be started."""

    def start(self, recipe: Recipe, request_id: str) -> TokenSequence: ...


class TokenPrompt(msgspec.Struct, frozen=True):
    """A prompt as token ids, with whatever else goes into its hashes."""

    tokens: Sequence[int]
    extras: Extras = NO_EXTRAS

    def start(self, recipe: Recipe, request_id: str) -> TokenSequence:
        """Hash the prompt.

        Raises:
            UnhashableError: a token or an extra cannot be hashed.
            ValueError: the prompt is given as embeddings, which this model of an engine leaves out.
        """
        if self.extras.embeds:
            raise ValueError("extras.embeds: prompts given as embeddings cannot be simulated; give token ids")
        return _HashedTokens(recipe, self.tokens, self.extras)


class KeyPrompt(msgspec.Struct, frozen=True):
    """A prompt as keys of its blocks, for traces that tell which blocks are equal but not what is in them.

    Attributes:
        num_tokens: length of the prompt.
        keys: one for each full block of the prompt, and more if it is known which blocks the generated tokens will fill (the
            next turn of the conversation tells). Blocks past the last key get a key of their own that no other request has.
    """

    num_tokens: int
    keys: Sequence[int]

    def start(self, recipe: Recipe, request_id: str) -> TokenSequence:
        """Begin the sequence.

        Raises:
            ValueError: a full block of the prompt has no key.
        """
        if len(self.keys) < self.num_tokens // recipe.block_size:
            raise ValueError(
                f"keys: {len(self.keys)} given, a prompt of {self.num_tokens} tokens has "
                f"{self.num_tokens // recipe.block_size} full blocks of {recipe.block_size}"
            )
        return _GivenKeys(recipe.block_size, self.num_tokens, self.keys, request_id)


class _HashedTokens:
    """Tokens whose keys are vLLM's own; mutable."""

    def __init__(self, recipe: Recipe, tokens: Sequence[int], extras: Extras) -> None:
        self._recipe = recipe
        self._extras = extras
        self._published = BlockExtras(_as_published(recipe), extras)
        self._tokens = list(tokens)
        self._chain = Chain(recipe, tokens, extras)
        self._last_digest: bytes | None = None  # known once a block has been filled by generated tokens
        self.num_tokens = len(self._tokens)
        self.keys = list(self._chain.keys(len(self._chain)))

    def append(self, token: int) -> None:
        self._tokens.append(token)
        self.num_tokens += 1
        if self.num_tokens % self._recipe.block_size == 0:
            self._fill_block()

    def stored(self, first: int, last: int, *, with_tokens: bool) -> BlockStored:
        size = self._recipe.block_size
        lora = self._extras.lora
        return BlockStored(
            block_hashes=list(self.keys[first:last]),
            parent_block_hash=self.keys[first - 1] if first else None,
            token_ids=msgspec.Raw(_encode(self._tokens[first * size : last * size])) if with_tokens else EMPTY,
            block_size=size,
            lora_id=lora.id if lora else None,
            medium=MEDIUM,
            lora_name=lora.name if lora else None,
            extra_keys=self._extra_keys(first, last) if with_tokens else NIL,
            group_idx=GROUP,
            kv_cache_spec_kind=SPEC_KIND,
        )

    def _fill_block(self) -> None:
        size, index = self._recipe.block_size, len(self.keys)
        digest = continue_chain(
            self._recipe, self._parent_digest(), self._tokens[-size:], self._extras, first_block_index=index
        )[0]
        self._last_digest = digest
        self.keys.append(key_of(digest))

    def _parent_digest(self) -> bytes:
        if self._last_digest is not None:
            return self._last_digest
        return self._chain.digest(len(self.keys) - 1) if self.keys else self._recipe.none_hash()

    def _extra_keys(self, first: int, last: int) -> msgspec.Raw:
        if self._extras == NO_EXTRAS:
            return msgspec.Raw(_encode([None] * (last - first)))
        return msgspec.Raw(_encode(list(self._published.of(first, last))))


class _GivenKeys:
    """Keys without tokens; mutable. Its events name no tokens, whatever is asked."""

    def __init__(self, block_size: int, num_tokens: int, keys: Sequence[int], request_id: str) -> None:
        self._block_size = block_size
        self._request_id = request_id
        self.num_tokens = num_tokens
        self.keys = list(keys)

    def append(self, token: int) -> None:
        self.num_tokens += 1
        if self.num_tokens // self._block_size > len(self.keys):
            self.keys.append(xxh3_64_intdigest(f"{self._request_id}/{len(self.keys)}".encode()))

    def stored(self, first: int, last: int, *, with_tokens: bool) -> BlockStored:
        return BlockStored(
            block_hashes=list(self.keys[first:last]),
            parent_block_hash=self.keys[first - 1] if first else None,
            token_ids=EMPTY,
            block_size=self._block_size,
            medium=MEDIUM,
            group_idx=GROUP,
            kv_cache_spec_kind=SPEC_KIND,
        )


def _as_published(recipe: Recipe) -> Recipe:
    """Events name extras without tags in every version, as vLLM 0.22 - 0.30 hashed them."""
    return msgspec.structs.replace(
        recipe, lora_form="name", multimodal_form="offset", salt_form="plain", embeds_form="absent"
    )
