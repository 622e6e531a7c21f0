"""A prompt as the JSON text of its token ids: read once, and not at all where it was read before.

Knows the text of an array of ids and the keys that are made of them, by a recipe or as our own. Never knows who sends it.
Prompts grow from turn to turn and are sent whole each time, and to read a number takes a third of the time that it takes to
hash it. So the text is taken in pieces that end at the same places whenever it begins the same. What is remembered of a piece:
by itself, that it is a list of ids, and of how many; behind all the text before it, its keys.

The text enters as a seeded XXH3, as in ``hashing.memory``: a collision makes kvlb misjudge a prefix and nothing else.
"""

from array import array
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Annotated, Final, overload

import msgspec
from xxhash import xxh3_128_digest

from hashing.chain import hash_tokens, keys_of, pack
from hashing.extras import NO_EXTRAS, BlockExtras, Extras
from hashing.memory import ChainMemory
from hashing.own import LearnedKeys, follow, local_hashes, root
from hashing.recipes import Recipe

PIECE: Final = 16 * 1024
"""Bytes of text that are remembered together: about 2,700 token ids."""

MAX_ID: Final = (1 << 63) - 1
"""Highest id that is read here; nobody has a vocabulary that large."""

_COUNT: Final = Struct("<I")
_COUNTS: Final = Struct("<II")
_OWN: Final = Struct("<8xQQ")
_ENGINE: Final = b"t"
"""With these, names have lengths of their own: a text can be made to look like packed tokens, which others are named by."""

_MIDDLE: Final = b","
_END: Final = b"]"

_ids: Final = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]])


class Piece(msgspec.Struct, gc=False):
    """Where one piece of the text lies, under what it is remembered, and how many ids are in it."""

    begin: int
    end: int
    digest: bytes
    count: int


class TokenText(Sequence[int]):
    """The ids of one prompt, which are only read where somebody asks for them. ``read`` makes one."""

    __slots__ = ("_body", "_length", "_new", "_read", "memory", "pieces")

    def __init__(self, body: bytes, memory: ChainMemory) -> None:
        self._body = body
        self._length = 0
        self._read: dict[int, list[int]] = {}  # by where their piece begins
        self._new: list[tuple[bytes, bytes]] = []  # what is to be remembered of pieces by themselves
        self.memory = memory
        self.pieces: list[Piece] = []

    @classmethod
    def read(cls, body: bytes, begin: int, end: int, memory: ChainMemory) -> "TokenText | None":
        """What lies between these places of ``body``, brackets included; None for anything but a list of one id or more."""
        made = cls(body, memory)
        at, last = begin + 1, end - 1
        while at < last:
            cut = last
            if at + PIECE < last:
                cut = body.rfind(b",", at, at + PIECE) + 1 or last
            if not made._take(at, cut, is_last=cut == last):
                return None
            at = cut
        return made if made._length else None

    def _take(self, begin: int, end: int, *, is_last: bool) -> bool:
        """The next piece; whether it is a list of ids by itself."""
        memory = self.memory
        digest = xxh3_128_digest(memoryview(self._body)[begin:end], memory.seed)
        name = (_END if is_last else _MIDDLE) + digest  # the last one ends with an id, all others with a comma
        known = memory.store.get(name)
        if known is None:
            try:
                found = _ids.decode(b"[%b]" % self._body[begin : end if is_last else end - 1])
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return False
            if not found:
                return False
            self._read[begin] = found
            known = _COUNT.pack(len(found))
            self._new.append((name, known))
        (count,) = _COUNT.unpack(known)
        self.pieces.append(Piece(begin, end, digest, count))
        self._length += count
        return True

    def remember(self) -> None:
        """It is worth being known again: somebody hashes it."""
        for name, count in self._new:
            self.memory.store.put(name, count)
        self._new.clear()

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int, /) -> int: ...

    @overload
    def __getitem__(self, at: slice, /) -> list[int]: ...

    def __getitem__(self, at: int | slice, /) -> int | list[int]:
        return [token for piece in self.pieces for token in self.tokens(piece)][at]

    def __iter__(self) -> Iterator[int]:
        for piece in self.pieces:
            yield from self.tokens(piece)

    def tokens(self, piece: Piece) -> list[int]:
        """The ids of one piece; the list is kept and only to be read."""
        found = self._read.get(piece.begin)
        if found is None:
            text = self._body[piece.begin : piece.end]
            found = self._read[piece.begin] = _ids.decode(b"[%b]" % text.removesuffix(b","))
        return found


class TextKeys:
    """The keys of a prompt, read and hashed as far as they are asked for. Mutable: it remembers how far it came."""

    def __init__(self, ids: TokenText, block_size: int, identity: bytes) -> None:
        """``identity`` says by whom and with which extras it is hashed: under it, and the text, keys are remembered."""
        ids.remember()
        self._ids = ids
        self._block_size = block_size
        self._length = len(ids) // block_size
        self._identity = identity
        self._name = identity
        self._next = 0  # piece
        self._rest: Sequence[int] = ()  # ids behind the last full block
        self._keys: list[int] = []

    def __len__(self) -> int:
        """The number of full blocks."""
        return self._length

    def keys(self, count: int, /) -> list[int]:
        """The 64-bit keys of at least the first ``count`` blocks, or of all if there are fewer.

        The list is the chain's own and grows with later calls: callers only read it.
        """
        wanted = min(count, self._length)
        while len(self._keys) < wanted:
            self._read_piece(self._ids.pieces[self._next])
            self._next += 1
        return self._keys

    def _read_piece(self, piece: Piece) -> None:
        memory = self._ids.memory
        name = self._name + piece.digest
        known = memory.store.get(name)
        if known is None:
            known = self._hash(piece)
            memory.store.put(name, known)
        blocks, left = _COUNTS.unpack_from(known)
        end = _COUNTS.size + 8 * (blocks + left)
        numbers = array("Q")
        numbers.frombytes(known[_COUNTS.size : end])
        self._keys += numbers[:blocks]
        self._rest = numbers[blocks:]
        self._follow_on(known[end:])
        self._name = self._identity + xxh3_128_digest(name, memory.seed)

    def _hash(self, piece: Piece) -> bytes:
        """What is remembered of a piece: how many keys and ids left over there are, both, and the last digest."""
        tokens = [*self._rest, *self._ids.tokens(piece)]
        keys, digest = self._hash_blocks(tokens)
        rest = tokens[len(keys) * self._block_size :]
        return _COUNTS.pack(len(keys), len(rest)) + array("Q", [*keys, *rest]).tobytes() + digest

    def _hash_blocks(self, tokens: list[int]) -> tuple[Sequence[int], bytes]:
        """The keys of the full blocks that come next, and the digest of the last one, where another one needs it."""
        raise NotImplementedError

    def _follow_on(self, digest: bytes) -> None:
        """What comes next follows the block of this digest."""


class EngineKeys(TextKeys):
    """The keys that an engine has, as ``hashing.chain.Chain`` makes them; nothing but adapter and salt are ``extras``.

    Raises:
        RecipeError: the recipe's root cannot be known.
        UnhashableError: an extra lacks what the recipe hashes.
    """

    def __init__(self, recipe: Recipe, ids: TokenText, extras: Extras = NO_EXTRAS) -> None:
        self._recipe = recipe
        self._extras = BlockExtras(recipe, extras)
        self._parent = recipe.none_hash()
        super().__init__(ids, recipe.block_size, _ENGINE + self._extras.identity() + self._parent)

    def _hash_blocks(self, tokens: list[int]) -> tuple[Sequence[int], bytes]:
        first, blocks = len(self._keys), len(tokens) // self._block_size
        digests = hash_tokens(self._recipe, self._parent, tokens, self._extras.of(first, first + blocks))
        return (keys_of(digests), digests[-1]) if digests else ((), self._parent)

    def _follow_on(self, digest: bytes) -> None:
        self._parent = digest


class OwnKeys(TextKeys):
    """Keys of our own, as ``hashing.own.OwnChain`` makes them; nothing but adapter and salt are ``extras``.

    Raises:
        UnhashableError: an extra is not valid Unicode.
    """

    def __init__(self, learned: LearnedKeys, ids: TokenText, extras: Extras = NO_EXTRAS) -> None:
        self._root = root(extras.lora, extras.salt if learned.tells_extras else None)
        super().__init__(ids, learned.block_size, _OWN.pack(self._root, learned.block_size))

    def _hash_blocks(self, tokens: list[int]) -> tuple[Sequence[int], bytes]:
        parent = self._keys[-1] if self._keys else self._root
        return follow(parent, local_hashes(pack(tokens), self._block_size)), b""
