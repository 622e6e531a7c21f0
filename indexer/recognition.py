"""How one replica's block hashes are read: as its recipe says, once that is proven, or as learned from its own events.

Knows recipes, events and what a ``BlockStored`` proves: it carries the tokens, so hashing them again shows whether we hash as
the engine does. Never knows requests, order or the index. Between calls: ``recipe`` is what a prompt's chain has to be made
with to be found among the keys that ``read`` has returned.

Three states. *unproven*: nothing has been seen that could prove the recipe; it is believed. *proven*: an event of this
incarnation was hashed anew and agreed, with the recipe as declared or with one found by trying the usual differences.
*learned*: none agreed (a random root, a newer vLLM, another engine); then each event's tokens are hashed with a recipe of our
own, and its keys are translated. That needs no agreement at all, only the parents: a child whose parent was never seen cannot
be placed and is dropped.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import product
from typing import Final, get_args

import msgspec

from hashing.chain import hash_blocks
from hashing.errors import RecipeError, UnhashableError
from hashing.external import key_of
from hashing.extras import Lora, from_event
from hashing.recipes import Algorithm, Recipe
from hashing.serialize import BlockExtra
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent

OWN: Final = Recipe(
    algorithm="xxhash",
    seed="kvlb learned keys",
    lora_form="name",
    multimodal_form="offset",
    salt_form="plain",
    embeds_form="plain",
)
"""For learned keys: extras in the untagged form that events of every release carry, the fastest algorithm, our own root."""

USUAL_SEEDS: Final = (None, "0", "42")
"""Values of PYTHONHASHSEED that are tried when the declared one does not agree: unset, and those of most guides."""


class KeyState(StrEnum):
    """Whether a replica's keys are what we would compute."""

    UNPROVEN = "unproven"
    PROVEN = "proven"
    LEARNED = "learned"


class Recognition:
    """One replica's keys, read. Changes with ``read`` and ``forget``.

    ``declared`` is what the engine and the settings say, or None when they do not say enough.
    """

    def __init__(self, declared: Recipe | None) -> None:
        self.declared = declared
        self._start_over()

    def _start_over(self) -> None:
        self.state = KeyState.UNPROVEN
        self.reason = ""
        """What was found, in words for an operator; empty while there is nothing to say."""
        self.recipe: Recipe | None = self.declared
        self.unplaced = 0
        """Blocks that could not be translated, because their parent was never seen or they came without tokens."""
        self._digests: dict[int, bytes] = {}  # learned: the engine's key -> our digest
        self._copies: dict[int, int] = {}  # learned: the engine's key -> copies beyond the first

    def __repr__(self) -> str:
        return f"<Recognition {self.state}: {self.recipe}>"

    def declare(self, recipe: Recipe | None) -> None:
        """The engine or the settings say otherwise now; what an event has proven stands until the next incarnation."""
        self.declared = recipe
        if self.state is KeyState.UNPROVEN:
            self.recipe = recipe

    def forget(self) -> None:
        """Another incarnation: perhaps of another version, certainly with an empty cache."""
        self._start_over()

    def read(self, events: Sequence[KVEvent]) -> tuple[Sequence[KVEvent], bool]:
        """The events with the keys that the index uses, and whether all that was read before is void."""
        if self.state is KeyState.PROVEN:
            return events, False
        if self.state is KeyState.UNPROVEN:
            proof = next((event for event in events if isinstance(event, BlockStored) and _can_prove(event)), None)
            if proof is None:
                return events, False
            self.state = self._prove(proof)
            if self.state is not KeyState.LEARNED:
                return events, False
            return list(self._translate_all(events)), True
        return list(self._translate_all(events)), False

    # Proof

    def _prove(self, event: BlockStored) -> KeyState:
        tokens = event.tokens()
        for candidate in self._candidates(event.block_size):
            if _keys(candidate, candidate.none_hash(), tokens, [None] * len(event.block_hashes)) == event.block_hashes:
                self.reason = _differences(self.declared, candidate)
                self.recipe = candidate
                return KeyState.PROVEN
        if event.extras() is None and self.declared is not None:
            return (
                KeyState.UNPROVEN
            )  # vLLM before 0.18 publishes no extra keys: this may have been a prompt with a salt
        self.reason = "its hashes agree with no recipe that is known here; they are learned from its events"
        self.recipe = msgspec.structs.replace(OWN, block_size=event.block_size)
        return KeyState.LEARNED

    def _candidates(self, block_size: int) -> Iterator[Recipe]:
        """The declared recipe first, then what most often differs from it."""
        base = self.declared or Recipe()
        if self.declared is not None and base.has_known_root:
            yield msgspec.structs.replace(base, block_size=block_size)
        for algorithm, seed in product(get_args(Algorithm), (base.seed, *USUAL_SEEDS)):
            try:
                candidate = msgspec.structs.replace(
                    base, algorithm=algorithm, seed=seed, root=None, block_size=block_size
                )
            except RecipeError:
                continue
            if candidate.has_known_root:
                yield candidate

    # Translation

    def _translate_all(self, events: Sequence[KVEvent]) -> Iterator[KVEvent]:
        for event in events:
            match event:
                case BlockStored():
                    yield self._stored(event)
                case BlockRemoved():
                    yield self._removed(event)
                case AllBlocksCleared():
                    self._digests.clear()
                    self._copies.clear()
                    yield event

    def _stored(self, event: BlockStored) -> BlockStored:
        digests = self._hash(event)
        keys = []
        for name, digest in zip(event.block_hashes, digests, strict=False):
            if name in self._digests:
                self._copies[name] = self._copies.get(name, 0) + 1
            self._digests[name] = digest
            keys.append(key_of(digest))
        self.unplaced += len(event.block_hashes) - len(keys)
        return msgspec.structs.replace(event, block_hashes=keys, parent_block_hash=None)

    def _hash(self, event: BlockStored) -> Sequence[bytes]:
        """Our digests of the event's blocks; none where they have no place, known ones where it brings no tokens."""
        if not _is_dense(event):
            known = [self._digests.get(name) for name in event.block_hashes]
            return [digest for digest in known if digest is not None] if all(known) else []
        recipe = msgspec.structs.replace(OWN, block_size=event.block_size)
        parent = recipe.none_hash() if event.parent_block_hash is None else self._digests.get(event.parent_block_hash)
        if parent is None:
            return []
        try:
            return hash_blocks(recipe, parent, event.tokens(), self._extras(recipe, event))
        except (UnhashableError, msgspec.MsgspecError):
            return []

    def _extras(self, recipe: Recipe, event: BlockStored) -> list[BlockExtra]:
        lora = None if event.lora_name is None else Lora(event.lora_name)
        published = event.extras()
        if published is None:  # vLLM before 0.18 does not publish extra keys: the adapter is all that is known
            return [from_event(recipe, None if lora is None else [lora.name], lora)] * len(event.block_hashes)
        return [from_event(recipe, entry, lora) for entry in published]

    def _removed(self, event: BlockRemoved) -> BlockRemoved:
        keys = []
        for name in event.block_hashes:
            digest = self._digests.get(name)
            if digest is None:
                continue
            keys.append(key_of(digest))
            others = self._copies.get(name, 0)
            if others > 1:
                self._copies[name] = others - 1
            elif others:
                del self._copies[name]
            else:
                del self._digests[name]
        return msgspec.structs.replace(event, block_hashes=keys)


def _is_dense(event: BlockStored) -> bool:
    """Whether the tokens are exactly those of the hashed blocks: sparse groups and placeholders send more or none."""
    try:
        return event.block_size > 0 and len(event.tokens()) == len(event.block_hashes) * event.block_size
    except msgspec.MsgspecError:
        return False


def _can_prove(event: BlockStored) -> bool:
    """Whether the event begins a prompt, in plain text: then its hashes depend on the recipe alone."""
    if (
        event.parent_block_hash is not None
        or event.lora_name is not None
        or not event.block_hashes
        or not _is_dense(event)
    ):
        return False
    try:
        extras = event.extras()
    except msgspec.MsgspecError:
        return False
    return not any(extras or ())


def _keys(recipe: Recipe, parent: bytes, tokens: Sequence[int], extras: Sequence[BlockExtra]) -> list[int]:
    try:
        return [key_of(digest) for digest in hash_blocks(recipe, parent, tokens, extras)]
    except UnhashableError:
        return []


def _differences(declared: Recipe | None, found: Recipe) -> str:
    if declared is None:
        return f"its recipe was found from its first event: {found.algorithm}, block size {found.block_size}"
    if declared == found:
        return ""
    names = [name for name in Recipe.__struct_fields__ if getattr(declared, name) != getattr(found, name)]
    told = "; ".join(f"{name} is {getattr(found, name)!r}, not {getattr(declared, name)!r}" for name in names)
    return f"its first event says that {told}"
