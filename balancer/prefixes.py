"""Prompts in the forms that others ask by: JSON text of token ids, hashes of single blocks, or an engine's own keys.

Knows how each becomes chains of block keys (``balancer.core.PrefixHashes``). Never knows who asks or who holds a block. What a
prompt is wrong with is found when a chain comes to it.
"""

from collections.abc import Sequence

import msgspec

from hashing.chain import Chain
from hashing.errors import RecipeError, UnhashableError
from hashing.extras import Extras, Lora
from hashing.memory import ChainMemory
from hashing.own import LearnedKeys
from hashing.recipes import Recipe
from hashing.text import TextChain
from indexer.index import Keys


class TextHashes:
    """A prompt as the JSON text of its token ids."""

    def __init__(self, text: bytes, salt: str | None, memory: ChainMemory) -> None:
        self._text = text
        self._salt = salt
        self._memory = memory

    def chains(self, recipe: Recipe | LearnedKeys, adapter: Lora | None, /) -> Sequence[Keys]:
        """One chain; none where an adapter or a salt has no hash under this recipe.

        Raises:
            UnhashableError: what has to be read at once is no token id.
        """
        if isinstance(recipe, LearnedKeys):
            return (TextChain(self._text, recipe, adapter, self._salt, self._memory),)
        try:
            tokens = msgspec.json.decode(self._text, type=list[int])
        except msgspec.DecodeError as error:
            raise UnhashableError(f"tokens: {str(error)[:80]}; give integers") from error
        try:
            return (Chain(recipe, tokens, Extras(lora=adapter, salt=self._salt), memory=self._memory),)
        except RecipeError:
            return ()


class LocalHashes:
    """A prompt as the JSON text of its blocks' hashes, each of one block by itself, as Dynamo's clients make them.

    Only learned keys can be made from those: a recipe hashes the tokens themselves, and gets no chain.
    """

    def __init__(self, text: bytes, salt: str | None, memory: ChainMemory) -> None:
        self._text = text
        self._salt = salt
        self._memory = memory

    def chains(self, recipe: Recipe | LearnedKeys, adapter: Lora | None, /) -> Sequence[Keys]:
        if not isinstance(recipe, LearnedKeys):
            return ()
        return (TextChain(self._text, recipe, adapter, self._salt, self._memory, is_hashes=True),)


class GivenKeys:
    """A prompt as the keys that engines themselves have for its blocks: the same for whatever recipe is asked for."""

    def __init__(self, keys: Sequence[int]) -> None:
        self._keys = keys

    def chains(self, recipe: Recipe | LearnedKeys, adapter: Lora | None, /) -> Sequence[Keys]:
        return (self,)

    def keys(self, count: int, /) -> Sequence[int]:
        return self._keys
