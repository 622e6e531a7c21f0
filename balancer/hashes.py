"""A request's prompts as block hashes, for whichever recipe is asked for.

Knows token ids, what lies among them, salt and the memory of chains. Never knows replicas. Chains are made once for each recipe
and adapter, and hash no further than they are asked to.
"""

from collections.abc import Sequence

from balancer.media import NO_MEDIA, Media
from balancer.stages import UNTIMED, Stages
from hashing.chain import Chain
from hashing.errors import RecipeError, UnhashableError
from hashing.example import ExampleChain, ExampleKeys
from hashing.extras import Extras, Lora
from hashing.memory import ChainMemory
from hashing.own import LearnedKeys, OwnChain
from hashing.recipes import Recipe
from hashing.token_text import EngineKeys, OwnKeys, TokenText
from indexer.index import Keys


class PromptHashes:
    """The chains of one request's prompts (``balancer.core.PrefixHashes``). Remembers what it has made."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        salt: str | None,
        memory: ChainMemory | None,
        media: Sequence[Media] = (),
        stages: Stages = UNTIMED,
    ) -> None:
        self._prompts = prompts
        self._media = media or [NO_MEDIA] * len(prompts)
        self._salt = salt
        self._memory = memory
        self._stages = stages
        self._made: dict[tuple[Recipe | LearnedKeys, Lora | None], Sequence[Keys]] = {}

    def chains(self, recipe: Recipe | LearnedKeys, adapter: Lora | None) -> Sequence[Keys]:
        """One chain a prompt; none when a token or an extra has no hash under this recipe."""
        made = self._made.get((recipe, adapter))
        if made is None:
            made = self._made[recipe, adapter] = self._make(recipe, adapter)
        return made

    @property
    def prompts(self) -> Sequence[Sequence[int]]:
        """Token ids of each."""
        return self._prompts

    @property
    def salt(self) -> str | None:
        """The request's ``cache_salt``."""
        return self._salt

    def whole(self, recipe: Recipe, adapter: Lora | None) -> Chain | None:
        """The first prompt's chain with its digests, for those who name blocks by them; None where there is none."""
        media = self._media[0]
        known = self._prompts[0] if media.known_tokens is None else self._prompts[0][: media.known_tokens]
        try:
            extras = Extras(lora=adapter, multimodal=media.items, salt=self._salt)
            return Chain(recipe, list(known), extras, memory=self._memory)
        except (RecipeError, UnhashableError):
            return None

    def _make(self, recipe: Recipe | LearnedKeys, adapter: Lora | None) -> Sequence[Keys]:
        made: list[Keys] = []
        begin = self._stages.now()
        try:
            for tokens, media in zip(self._prompts, self._media, strict=True):
                if isinstance(tokens, TokenText) and media is NO_MEDIA and not isinstance(recipe, ExampleKeys):
                    made.append(_of_text(recipe, tokens, Extras(lora=adapter, salt=self._salt)))
                    continue
                known = tokens if media.known_tokens is None else tokens[: media.known_tokens]
                extras = Extras(lora=adapter, multimodal=media.items, salt=self._salt)
                if isinstance(recipe, ExampleKeys):
                    made.append(ExampleChain(recipe, known, extras))
                elif isinstance(recipe, LearnedKeys):
                    made.append(OwnChain(recipe, known, extras))
                else:
                    made.append(Chain(recipe, known, extras, memory=self._memory))
        except (RecipeError, UnhashableError):
            return []
        self._stages.hashed(begin)
        return made if self._stages is UNTIMED else [_Timed(chain, self._stages) for chain in made]


def _of_text(recipe: Recipe | LearnedKeys, ids: TokenText, extras: Extras) -> Keys:
    return OwnKeys(recipe, ids, extras) if isinstance(recipe, LearnedKeys) else EngineKeys(recipe, ids, extras)


class _Timed:
    """A chain that notes how long its hashing takes."""

    __slots__ = ("_chain", "_stages")

    def __init__(self, chain: Keys, stages: Stages) -> None:
        self._chain = chain
        self._stages = stages

    def keys(self, count: int, /) -> Sequence[int]:
        begin = self._stages.now()
        keys = self._chain.keys(count)
        self._stages.hashed(begin)
        return keys
