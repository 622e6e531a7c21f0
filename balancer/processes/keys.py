"""A request's block hashes where hashing and matching are done in two processes.

Knows what a gateway makes of a prompt and sends, and what the brain makes of that. Never knows sockets or replicas. What the
gateway was not told to hash with, the brain does not find: that costs one request its prediction, and nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from balancer import leaning
from balancer.core import Prompt
from balancer.hashes import PromptHashes
from balancer.processes.frames import ProtocolError
from balancer.processes.protocol import KEY_BYTES, Chains, packed, unpacked
from hashing.errors import RecipeError, UnhashableError
from hashing.extras import Extras, Lora
from hashing.memory import ChainMemory
from hashing.own import LearnedKeys, OwnChain
from hashing.recipes import Recipe
from indexer.index import Keys

Kind: TypeAlias = Recipe | LearnedKeys

_ALL: Final = 1 << 62


class OwnHashes(PromptHashes):
    """A gateway's hashes of one request."""

    def __init__(self, prompts: Sequence[Prompt], salt: str | None, memory: ChainMemory) -> None:
        tokens, media = [each.tokens for each in prompts], [each.media for each in prompts]
        super().__init__(tokens, salt, memory, media)
        self._whole = prompts

    def told(self, wanted: Iterable[tuple[int, Kind, Lora | None]]) -> list[Chains]:
        """All full blocks in each of these ways; ``wanted`` has the number, the recipe and the adapter."""
        told = []
        for number, recipe, adapter in wanted:
            try:
                keys = [packed(chain.keys(_ALL)) for chain in self.chains(recipe, adapter)]
            except (RecipeError, UnhashableError):
                continue
            if keys:
                told.append(Chains(number, adapter, keys))
        return told

    def beginning(self, recipe: Kind, adapter: Lora | None) -> int:
        """The key of the first prompt's beginning (``balancer.matching.Matcher.beginning``); 0 where it has none."""
        return leaning.beginning(self.chains(recipe, adapter), recipe.block_size)

    def first(self) -> int:
        """A key of a prompt whose beginning is too short to be named otherwise (``balancer.leaning``): of all of it.

        The same for all requests with this prompt, salt and media; 0 where there is none.
        """
        if not self._whole or not len(self._whole[0].tokens):
            return 0
        prompt = self._whole[0]
        extras = Extras(multimodal=prompt.media.items, salt=self._salt)
        try:
            return OwnChain(LearnedKeys(len(prompt.tokens)), prompt.tokens, extras).keys(1)[0]
        except UnhashableError:
            return 0


class GivenHashes:
    """The brain's hashes of one request (``balancer.core.PrefixHashes``), as a gateway has told them."""

    __slots__ = ("_told",)

    def __init__(self, told: Sequence[Chains], recipes: Mapping[int, Kind]) -> None:
        """``recipes`` are those that a number stands for.

        Raises:
            ProtocolError: keys are cut off.
        """
        self._told = {
            (recipe, each.adapter): [_Given(keys) for keys in each.keys]
            for each in told
            if (recipe := recipes.get(each.recipe)) is not None
        }

    def chains(self, recipe: Kind, adapter: Lora | None, /) -> Sequence[Keys]:
        """One chain for each prompt, or none where the gateway has not hashed in this way."""
        return self._told.get((recipe, adapter), ())


class _Given:
    """The keys of one prompt."""

    __slots__ = ("_keys", "_packed")

    def __init__(self, given: bytes) -> None:
        if len(given) % KEY_BYTES:
            raise ProtocolError("a key is cut off")
        self._packed = given
        self._keys: list[int] | None = None

    def keys(self, count: int, /) -> list[int]:
        """All there are: they have been made."""
        if self._keys is None:
            self._keys = unpacked(self._packed)
        return self._keys
