"""A request's prompts as block hashes, for whichever recipe is asked for.

Knows token ids, salt and the memory of chains. Never knows replicas. Chains are made once for each recipe and adapter, and hash
no further than they are asked to.
"""

from collections.abc import Sequence

from hashing.chain import Chain
from hashing.errors import RecipeError, UnhashableError
from hashing.extras import Extras, Lora
from hashing.memory import ChainMemory
from hashing.own import LearnedKeys, OwnChain
from hashing.recipes import Recipe
from indexer.index import Keys


class PromptHashes:
    """The chains of one request's prompts (``balancer.core.PrefixHashes``). Remembers what it has made."""

    def __init__(self, prompts: Sequence[Sequence[int]], salt: str | None, memory: ChainMemory | None) -> None:
        self._prompts = prompts
        self._salt = salt
        self._memory = memory
        self._made: dict[tuple[Recipe | LearnedKeys, Lora | None], Sequence[Keys]] = {}

    def chains(self, recipe: Recipe | LearnedKeys, adapter: Lora | None) -> Sequence[Keys]:
        """One chain a prompt; none when a token or an extra has no hash under this recipe."""
        made = self._made.get((recipe, adapter))
        if made is None:
            made = self._made[recipe, adapter] = self._make(recipe, Extras(lora=adapter, salt=self._salt))
        return made

    def _make(self, recipe: Recipe | LearnedKeys, extras: Extras) -> Sequence[Keys]:
        try:
            if isinstance(recipe, LearnedKeys):
                return [OwnChain(recipe, tokens, extras) for tokens in self._prompts]
            return [Chain(recipe, tokens, extras, memory=self._memory) for tokens in self._prompts]
        except (RecipeError, UnhashableError):
            return []
