"""Tokens -> the chain of block hashes that a replica would compute for them.

Knows full blocks only; a tail shorter than a block has no hash. Never knows who holds a block. A chain hashes
no more than it is asked for and nothing twice: its keys only ever grow, and each hash covers all tokens
before it.
"""

import operator
from array import array
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, Final

from hashing.errors import UnhashableError
from hashing.extras import NO_EXTRAS, BlockExtras, Extras
from hashing.memory import STRIDE, ChainMemory
from hashing.recipes import Recipe
from hashing.serialize import BLOCK_HASHERS, BlockExtra

__all__ = ["Chain", "ChainMemory", "continue_chain", "hash_blocks"]

# As ``hashing.external.key_of``, for many digests at once: skip all but the last 8 bytes.
_KEY_OF_DIGEST: Final = {width: Struct(f">{width - 8}xQ") for width in (16, 32)}


class Chain:
    """The block hashes of one prompt, computed on demand. Mutable: it remembers what it has hashed.

    Tokens are integers from 0 to 2**64 - 1 and are copied; bools and numpy integers count as the integers
    they equal, which is what vLLM's own request validation makes of them. With a ``memory``, strides that any
    chain has hashed before are not hashed again.

    Raises:
        RecipeError: the recipe's root cannot be known.
        UnhashableError: a token is no such integer, or an extra lacks what the recipe hashes.
    """

    def __init__(
        self,
        recipe: Recipe,
        tokens: Sequence[int],
        extras: Extras = NO_EXTRAS,
        *,
        memory: ChainMemory | None = None,
    ) -> None:
        self.recipe = recipe
        self._tokens = pack(tokens)
        self._length = len(self._tokens) // recipe.block_size
        self._extras = BlockExtras(recipe, extras)
        self._parent = recipe.none_hash()
        self._memory = memory
        self._identity = b"" if memory is None else self._extras.identity()
        self._keys: list[int] = []
        self._stride_parents = [self._parent]  # the digest before each stride reached so far

    def __len__(self) -> int:
        """The number of full blocks."""
        return self._length

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.recipe.block_size

    @property
    def token_count(self) -> int:
        """Tokens in the prompt, those of a last partial block included."""
        return len(self._tokens)

    @property
    def hashed(self) -> int:
        """How many leading blocks have been hashed or recalled so far."""
        return len(self._keys)

    def keys(self, count: int) -> list[int]:
        """The 64-bit keys of at least the first ``count`` blocks, or of all if there are fewer.

        The list is the chain's own and grows with later calls: callers only read it.

        Raises:
            UnhashableError: the prompt embeddings' extras do not reach that far.
        """
        wanted = min(count, self._length)
        while len(self._keys) < wanted:
            name = self._name_of_next_stride()
            if name is None or not self._recall(name):
                self._hash_until(min(wanted, len(self._keys) // STRIDE * STRIDE + STRIDE))
        return self._keys

    def digest(self, index: int) -> bytes:
        """The whole digest of block ``index``; hashes up to it, and again within its stride.

        Raises:
            IndexError: there is no such full block.
        """
        if not 0 <= index < self._length:
            raise IndexError(f"block {index} of a chain of {self._length}")
        self.keys(index + 1)
        stride, blocks = divmod(index + 1, STRIDE)
        parent, first = self._stride_parents[stride], stride * STRIDE
        return self._hash(parent, first, first + blocks)[-1] if blocks else parent

    def digests(self, count: int) -> list[bytes]:
        """The whole digests of the first ``count`` blocks, or of all if there are fewer; hashes all of them anew.

        Raises:
            UnhashableError: as ``keys``.
        """
        return self._hash(self.recipe.none_hash(), 0, min(count, self._length))

    def _name_of_next_stride(self) -> bytes | None:
        """Under what the memory may know the stride that comes next; None where it cannot."""
        first = len(self._keys)
        if self._memory is None or first % STRIDE or first + STRIDE > self._length:
            return None
        return self._name(first)

    def _name(self, first: int) -> bytes | None:
        if self._memory is None or not self._extras.is_uniform(first, first + STRIDE):
            return None
        size = self.recipe.block_size
        tokens = memoryview(self._tokens)[first * size : (first + STRIDE) * size]
        return self._memory.name(self._identity, self._stride_parents[-1], tokens)

    def _recall(self, name: bytes) -> bool:
        found = None if self._memory is None else self._memory.recall(name)
        if found is None:
            return False
        keys, self._parent = found
        self._keys.extend(keys)
        self._stride_parents.append(self._parent)
        return True

    def _hash_until(self, end: int) -> None:
        digests = self._hash(self._parent, len(self._keys), end)
        self._keys.extend(keys_of(digests))
        self._parent = digests[-1]
        if end % STRIDE == 0:
            self._remember(end - STRIDE)
            self._stride_parents.append(self._parent)

    def _remember(self, first: int) -> None:
        name = self._name(first)
        if self._memory is not None and name is not None:
            self._memory.remember(name, self._keys[first:], self._parent)

    def _hash(self, parent: bytes, first: int, last: int) -> list[bytes]:
        size = self.recipe.block_size
        return hash_tokens(self.recipe, parent, self._tokens[first * size : last * size], self._extras.of(first, last))


def continue_chain(
    recipe: Recipe,
    parent: bytes,
    tokens: Sequence[int],
    extras: Extras = NO_EXTRAS,
    first_block_index: int = 0,
) -> list[bytes]:
    """The digests of the full blocks in ``tokens``, which follow the block whose digest is ``parent``.

    ``extras`` are those of the whole prompt, with positions counted from its start; ``first_block_index``
    says where in the prompt ``tokens`` begin. For a first block, ``parent`` is ``recipe.none_hash()``.

    Raises:
        UnhashableError: as for ``Chain``.
    """
    last = first_block_index + len(tokens) // recipe.block_size
    return hash_blocks(recipe, parent, tokens, BlockExtras(recipe, extras).of(first_block_index, last))


def hash_blocks(recipe: Recipe, parent: bytes, tokens: Sequence[int], extras: Iterable[BlockExtra]) -> list[bytes]:
    """As ``continue_chain``, with the extra of each block given ready-made (``hashing.extras.from_event``).

    The result ends with the full blocks of ``tokens`` or with ``extras``, whichever is shorter.

    Raises:
        UnhashableError: a token is not an integer from 0 to 2**64 - 1.
    """
    return hash_tokens(recipe, parent, pack(tokens), extras)


def hash_tokens(recipe: Recipe, parent: bytes, tokens: Sequence[int], extras: Iterable[BlockExtra]) -> list[bytes]:
    """As ``hash_blocks``, of tokens that are known to be integers from 0 to 2**64 - 1."""
    hash_block = BLOCK_HASHERS[recipe.algorithm]
    digests = []
    for block, extra in zip(_blocks(tokens, recipe.block_size), extras, strict=False):
        parent = hash_block(parent, block, extra)
        digests.append(parent)
    return digests


def _blocks(tokens: Sequence[int], block_size: int) -> Iterable[tuple[int, ...]]:
    return zip(*[iter(tokens)] * block_size, strict=False)


def keys_of(digests: Sequence[bytes]) -> list[int]:
    """As ``hashing.external.key_of``, of one digest or more of one recipe."""
    key_of_digest = _KEY_OF_DIGEST[len(digests[0])]
    return [key for (key,) in key_of_digest.iter_unpack(b"".join(digests))]


def pack(tokens: Sequence[int]) -> "array[int]":
    # An array takes bytes for its own memory; as a sequence they are tokens below 256.
    items = list(tokens) if isinstance(tokens, (bytes, bytearray)) else tokens
    for typecode in ("I", "Q"):
        try:
            return array(typecode, items)
        except OverflowError:
            continue
        except TypeError:
            break
    index, token = next((pair for pair in enumerate(items) if not _is_token(pair[1])), (0, items))
    raise UnhashableError(f"tokens[{index}]: {token!r} is not a token id; give integers from 0 to 2**64 - 1")


def _is_token(token: Any) -> bool:
    try:
        return 0 <= operator.index(token) < 1 << 64
    except TypeError:
        return False
