"""Keys of our own from the JSON text of a prompt, without reading again what was read before.

Knows the text of an array of token ids, or of the local hashes of blocks, and the keys that ``hashing.own`` makes of them.
Never knows who sends it. Prompts grow from turn to turn and are sent whole each time, and reading a hundred thousand numbers
takes longer than everything that is done with them. So the text is taken in pieces that end at the same places whenever it
begins the same; what a piece gave is remembered under all the text so far.

The text enters as a seeded XXH3, as in ``hashing.memory``: a collision makes kvlb misjudge a prefix and nothing else.
"""

from array import array
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

import msgspec
from xxhash import xxh3_128_digest

from hashing.chain import pack
from hashing.errors import UnhashableError
from hashing.extras import Lora
from hashing.memory import ChainMemory
from hashing.own import LearnedKeys, follow, local_hashes, root

PIECE: Final = 16 * 1024
"""Bytes of text that are remembered together: about 2,700 token ids, or 800 hashes."""

_HEAD: Final = Struct("<QQI")
"""Before every name: what the chain begins with, and of what its links are made."""

_KEY_MASK: Final = (1 << 64) - 1
_COUNT: Final = Struct("<I")

_integers: Final = msgspec.json.Decoder(list[int])


class TextChain:
    """The keys of one prompt, read and hashed as far as they are asked for. Mutable: it remembers how far it came.

    ``text`` is a JSON array of integers whose syntax has been checked; ``is_hashes`` says that they are local hashes, signed or
    unsigned, rather than token ids. What cannot be read is found when it is reached.
    """

    def __init__(
        self,
        text: bytes,
        learned: LearnedKeys,
        lora: Lora | None,
        salt: str | None,
        memory: ChainMemory,
        *,
        is_hashes: bool = False,
    ) -> None:
        self._text = text
        self._at = text.index(b"[") + 1
        self._end = text.rindex(b"]")
        self._memory = memory
        self._block_size = 1 if is_hashes else learned.block_size
        self._is_hashes = is_hashes
        self._parent = root(lora, salt if learned.tells_extras else None)
        self._name = _HEAD.pack(self._parent, self._block_size, is_hashes)
        self._rest = b""  # text of the tokens behind the last full block
        self._keys: list[int] = []

    def keys(self, count: int, /) -> list[int]:
        """The keys of at least the first ``count`` blocks, or of all when there are fewer.

        The list is the chain's own and grows with later calls: callers only read it.

        Raises:
            UnhashableError: what is reached is no token id, or no hash.
        """
        while len(self._keys) < count and self._at < self._end:
            self._read_piece()
        return self._keys

    def _read_piece(self) -> None:
        cut = self._end
        if self._at + PIECE < self._end:
            cut = self._text.rfind(b",", self._at, self._at + PIECE) + 1 or self._end
        piece = self._text[self._at : cut]
        name = self._name + xxh3_128_digest(piece, self._memory.seed)
        known = self._memory.store.get(name)
        if known is None:
            known = self._hash(piece)
            self._memory.store.put(name, known)
        (count,) = _COUNT.unpack_from(known)
        keys = array("Q")
        keys.frombytes(known[_COUNT.size : _COUNT.size + 8 * count])
        self._keys += keys
        if count:
            self._parent = keys[-1]
        self._rest = known[_COUNT.size + 8 * count :]
        self._name = xxh3_128_digest(name, self._memory.seed)
        self._at = cut

    def _hash(self, piece: bytes) -> bytes:
        """What is remembered of a piece: the number of its keys, the keys, and the text of the tokens that are left over."""
        values = self._read((self._rest + piece).rstrip(b", \t\r\n"))
        used = len(values) // self._block_size * self._block_size
        keys = array("Q", follow(self._parent, self._links(values)))
        rest = b"".join(b"%d," % token for token in values[used:])
        return _COUNT.pack(len(keys)) + keys.tobytes() + rest

    def _read(self, text: bytes) -> list[int]:
        try:
            return _integers.decode(b"[%b]" % text)
        except msgspec.DecodeError as error:
            raise UnhashableError(f"tokens: {str(error)[:80]}; give integers") from error

    def _links(self, values: list[int]) -> Iterable[bytes]:
        if self._is_hashes:
            return _eight_bytes(values)
        return local_hashes(pack(values), self._block_size)


def _eight_bytes(hashes: list[int]) -> Iterator[bytes]:
    packed = array("Q", [each & _KEY_MASK for each in hashes])
    packed.byteswap()
    data = packed.tobytes()
    return (data[at : at + 8] for at in range(0, len(data), 8))
