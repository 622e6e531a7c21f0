"""How one replica's block hashes are read: as its recipe says, once that is proven, or as learned from its own events.

Knows recipes, events and what a ``BlockStored`` proves: it carries the tokens, so hashing them again shows whether we hash as
the engine does. Never knows requests, order or what the index holds. Between calls: ``recipe`` is what a prompt's chain has to
be made with to be found among the keys that ``read`` has returned.

Three states. *unproven*: nothing has been seen that could prove the recipe; it is believed. *proven*: an event of this
incarnation was hashed anew and agreed, with the recipe as declared or with one found by trying the usual differences.
*learned*: none agreed (a random root, a newer vLLM, another engine), or nobody says what to try; then each event's tokens are
hashed with a recipe of our own, and its keys are translated. That needs no agreement at all, only the parents: a child whose
parent was never seen cannot be placed and is dropped.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import product
from typing import Any, Final, get_args

import msgspec

from hashing.chain import hash_blocks
from hashing.errors import RecipeError, UnhashableError
from hashing.external import key_of
from hashing.extras import from_event
from hashing.recipes import Algorithm, Recipe
from indexer.events import AllBlocksCleared, BlockStored, KVEvent
from indexer.index import GPU
from indexer.learned import OWN, LearnedBlocks, dense_tokens

FULL_ATTENTION: Final = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Values of ``kv_cache_spec_kind`` (vLLM 0.22 - 0.32) whose blocks are hit from block 0 on; older engines say nothing."""

USUAL_SEEDS: Final = (None, "0", "42")
"""Values of PYTHONHASHSEED that are tried when the declared one does not agree: unset, and those of most guides."""


class KeyState(StrEnum):
    """Whether a replica's keys are what we would compute."""

    UNPROVEN = "unproven"
    PROVEN = "proven"
    LEARNED = "learned"


class Recognition:
    """One replica's keys, read. Changes with ``declare``, ``read`` and ``forget``.

    ``declared`` is what the engine and the settings say, its root perhaps unknown; None when they do not say enough.
    """

    def __init__(self, declared: Recipe | None) -> None:
        self.declared = declared
        self.state: KeyState
        self.reason: str
        """What was found, in words for an operator; empty while there is nothing to say. Unproven: what speaks against it."""
        self.recipe: Recipe | None
        """What prompts are hashed with; None while nothing is known that could be right."""
        self.forget()

    def __repr__(self) -> str:
        return f"<Recognition {self.state}: {self.recipe}>"

    def declare(self, recipe: Recipe | None) -> None:
        """The engine or the settings say otherwise now; what an event has shown stands until the next incarnation."""
        is_news, self.declared = recipe != self.declared, recipe
        if is_news and self.state is KeyState.UNPROVEN:
            self.recipe, self.reason = _usable(recipe), ""

    def forget(self) -> None:
        """Another incarnation: perhaps of another version, certainly with an empty cache."""
        self.state, self.reason = KeyState.UNPROVEN, ""
        self.recipe = _usable(self.declared)
        self.learned = LearnedBlocks()
        self.is_hybrid = False
        """Whether it has caches besides one of full attention, whose hits follow a rule of their own."""
        self._void = 0  # blocks read before it was known that they had to be translated

    @property
    def unplaced(self) -> int:
        """Blocks that could not be translated: their parent was never seen, they came without tokens or too early."""
        return self._void + self.learned.unplaced

    def read(self, events: Sequence[KVEvent]) -> tuple[Sequence[KVEvent], bool]:
        """The events with the keys that the index uses, and whether all that was read before is void."""
        if self.state is KeyState.PROVEN:
            return events, False
        # Looked for only until the recipe is proven: vLLM announces all groups of a step in one batch.
        self.is_hybrid = self.is_hybrid or any(map(_is_of_another_group, events))
        is_first = self.state is KeyState.UNPROVEN
        if is_first:
            self._look_for_proof(events)
        if self.state is KeyState.LEARNED:
            if AllBlocksCleared() in events:
                self._void = 0
            return list(self.learned.read(events)), is_first
        if self.state is KeyState.UNPROVEN:
            self._count_void(events)
        return events, False

    # Proof

    def _look_for_proof(self, events: Sequence[KVEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStored) and _can_prove(event):
                self._prove(event)
                if self.state is not KeyState.UNPROVEN:
                    return

    def _prove(self, event: BlockStored) -> None:
        found = next((each for each in self._candidates(event.block_size) if _agrees(each, event)), None)
        if found is not None:
            self.state, self.recipe, self.reason = KeyState.PROVEN, found, _differences(self.declared, found)
            return
        tells_extras = event.extras() is not None
        if not tells_extras and self.recipe is not None:
            # vLLM before 0.18 publishes no extra keys: this may have been a prompt with a salt.
            self.reason = "an event disagrees with its recipe (of a prompt with a cache salt, or hash_seed is wrong)"
            return
        self.state = KeyState.LEARNED
        self.recipe = msgspec.structs.replace(OWN, block_size=event.block_size)
        if self.declared is None:
            self.reason = "how it hashes is not known; its keys are learned from its events"
        else:
            self.reason = "its hashes agree with no recipe that is known here; they are learned from its events"
        if not tells_extras:
            self.reason += ", which do not tell salted prompts from others (vLLM before 0.18)"

    def _candidates(self, block_size: int) -> Iterator[Recipe]:
        """The declared recipe first, then what most often differs from it.

        Nothing without one: a first block may well show algorithm and root, but not in which form later extras are hashed.
        """
        if self.declared is None:
            return
        yield msgspec.structs.replace(self.declared, block_size=block_size)
        for algorithm, seed in product(get_args(Algorithm), (self.declared.seed, *USUAL_SEEDS)):
            yield msgspec.structs.replace(
                self.declared, algorithm=algorithm, seed=seed, root=None, block_size=block_size
            )

    def _count_void(self, events: Sequence[KVEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                self._void += len(event.block_hashes)
            elif isinstance(event, AllBlocksCleared):
                self._void = 0


def _usable(declared: Recipe | None) -> Recipe | None:
    """The recipe, if prompts can be hashed with it."""
    try:
        return declared if declared is not None and declared.none_hash() else None
    except RecipeError:
        return None


def _is_of_another_group(event: KVEvent) -> bool:
    """Whether the event is about anything but the one full-attention cache that most models have."""
    if not isinstance(event, BlockStored) or (event.medium or GPU).upper() != GPU:
        return False
    return bool(event.group_idx) or event.kv_cache_spec_kind not in FULL_ATTENTION


def _can_prove(event: BlockStored) -> bool:
    """Whether the event begins a prompt of the base model on the GPU: then its first hash depends on the recipe alone.

    Only group 0 counts, as in matching: others may have another block size. An adapter's path is not in its events.
    """
    if event.parent_block_hash is not None or not event.block_hashes:
        return False
    if event.lora_name is not None or event.lora_id is not None:
        return False
    if event.group_idx or event.medium not in {None, GPU}:
        return False
    try:
        from_event(OWN, _first_extra(event), None)
        return dense_tokens(event) is not None
    except (UnhashableError, msgspec.MsgspecError):
        return False


def _agrees(candidate: Recipe, event: BlockStored) -> bool:
    """Whether the candidate gives the event's first hash; all others follow from it."""
    try:
        extra = from_event(candidate, _first_extra(event), None)
        tokens = event.tokens()[: candidate.block_size]
        digests = hash_blocks(candidate, candidate.none_hash(), tokens, [extra])
    except (RecipeError, UnhashableError):
        return False
    return [key_of(digest) for digest in digests] == event.block_hashes[:1]


def _first_extra(event: BlockStored) -> Sequence[Any] | None:
    published = event.extras()
    return published[0] if published else None


def _differences(declared: Recipe | None, found: Recipe) -> str:
    names = [name for name in Recipe.__struct_fields__ if getattr(declared, name) != getattr(found, name)]
    told = "; ".join(f"{name} is {getattr(found, name)!r}, not {getattr(declared, name)!r}" for name in names)
    return f"its first event says that {told}" if told else ""
