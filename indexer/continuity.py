"""Whether a replica's events go on being those of the engine whose keys were found.

Knows recipes and first blocks: each one that is told without extras is hashed anew and has to agree, or, where nobody can do
that, has the name that it had before; and its size is that of those before. Never knows streams or the index. One event that
disagrees is a doubt, for it may be the event that is wrong; a second one is another engine's, whose start nothing else has
told of. Agreement ends a doubt.
"""

from collections.abc import Sequence
from typing import Final

from hashing.chain import hash_blocks
from hashing.errors import RecipeError, UnhashableError
from hashing.external import key_of
from hashing.own import LearnedKeys
from hashing.recipes import Recipe
from indexer.described import first_tokens
from indexer.events import NIL, BlockStored, KVEvent
from indexer.forms import has_extras
from indexer.places import is_on_gpu

MAX_STEPS: Final = 256
"""Hashes within one block: hybrid models have blocks of some thousand tokens, hashed 16 or more at once."""

MAX_NAMES: Final = 4_096
"""First blocks whose names are kept of an engine with learned keys, some 150 bytes each: those that are stored most often."""

AGREED_AGAIN: Final = 20
"""First blocks that agree one after the other, and end the doubt of one that did not."""


class Continuity:
    """Changes with ``look``."""

    def __init__(self) -> None:
        self.doubt = ""
        """What speaks against it, in words for an operator; empty where nothing does."""
        self.is_broken = False
        """Whether these are another engine's events for certain."""
        self._against: set[int] = set()  # different first hashes that disagree
        self._agreed = 0
        self._names: dict[int, int] = {}  # hash of a first block's tokens -> the engine's name for it

    def look(self, events: Sequence[KVEvent], recipe: Recipe | LearnedKeys, *, is_hybrid: bool) -> bool:
        """Hold these events against what was found; returns whether the doubt has changed."""
        before = self.doubt
        for event in events:
            if isinstance(event, BlockStored) and event.block_hashes and is_on_gpu(event):
                difference = self._difference(event, recipe, is_hybrid=is_hybrid)
                if difference:
                    self._disagreed(event, difference)
                elif difference is not None:
                    self._agree()
        return self.doubt != before

    def _difference(self, event: BlockStored, recipe: Recipe | LearnedKeys, *, is_hybrid: bool) -> str | None:
        """What differs; empty where the event agrees, None where it says nothing."""
        if event.block_size != recipe.block_size and not is_hybrid:
            return f"an event has blocks of {event.block_size} tokens, where those before had {recipe.block_size}"
        if not _has_tokens_alone(event):
            return None
        return self._named(event) if isinstance(recipe, LearnedKeys) else _hashed(event, recipe)

    def _named(self, event: BlockStored) -> str | None:
        tokens, name = first_tokens(event), event.block_hashes[0]
        if tokens is None or (event.group_idx or 0):  # another group's blocks may be longer
            return None
        if self._names.setdefault(hash(tuple(tokens)), name) != name:
            return "a first block has another name than before"
        if len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]
        return ""

    def _disagreed(self, event: BlockStored, difference: str) -> None:
        self._agreed = 0
        self._against.add(event.block_hashes[0])
        self.doubt = f"{difference}: is it another engine's?"
        self.is_broken = self.is_broken or len(self._against) > 1

    def _agree(self) -> None:
        self._agreed += 1
        if self.doubt and not self.is_broken and self._agreed >= AGREED_AGAIN:
            self.doubt = ""
            self._against.clear()


def _hashed(event: BlockStored, recipe: Recipe) -> str | None:
    """As ``Continuity._difference``, by hashing the first block anew."""
    steps, rest = divmod(event.block_size, recipe.block_size)
    tokens = None if rest or not 0 < steps <= MAX_STEPS else first_tokens(event)
    if tokens is None:
        return None
    try:
        digests = hash_blocks(recipe, recipe.none_hash(), tokens, [None] * steps)
    except (RecipeError, UnhashableError):
        return None
    is_alike = key_of(digests[-1]) == event.block_hashes[0]
    return "" if is_alike else "a first block is hashed in another way than those before"


def _has_tokens_alone(event: BlockStored) -> bool:
    """Whether it begins a prompt, and tells that nothing but tokens is in its hash (vLLM before 0.18 does not)."""
    is_plain = event.parent_block_hash is None and event.lora_name is None and event.lora_id is None
    return is_plain and event.extra_keys != NIL and not has_extras(event)
