"""How one replica's block hashes are read: as its recipe says, once that is proven, or as learned from its own events.

Knows recipes, events and what a ``BlockStored`` proves: it carries the tokens, so hashing them again shows whether we hash as
the engine does. Never knows requests, order or what the index holds. Between calls: ``recipe`` is what a prompt's chain has to
be made with to be found among the keys that ``read`` has returned.

Three states. *unproven*: nothing has been seen that could prove the recipe; it is believed. *proven*: an event of this
incarnation was hashed anew and agreed, with the recipe as declared or with one found by trying the usual differences.
*learned*: none agreed (a random root, a newer vLLM, another engine), or nobody says what to try; then its blocks get keys of
our own, made from their tokens (``learned.py``). That needs no agreement at all, only the parents.

A replica with several cache groups hashes in steps that all of their block sizes are multiples of: proof finds the step, too,
and with it the rule of its hits (``hybrid.py``).

Some events may disagree and refute nothing: those of vLLM before 0.18 do not say whether there was a salt, and an adapter may
have been loaded from another path since. Only when several have disagreed, and none has agreed, are keys learned.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import product
from typing import Any, Final, get_args

import msgspec

from hashing.chain import hash_blocks
from hashing.errors import RecipeError, UnhashableError
from hashing.external import key_of
from hashing.extras import Lora, from_event
from hashing.own import EXTRAS_FORM, LearnedKeys
from hashing.recipes import Algorithm, Recipe
from indexer.continuity import MAX_STEPS, Continuity
from indexer.described import dense_tokens
from indexer.events import BlockStored, KVEvent
from indexer.forms import Forms
from indexer.groups import NOTHING, CacheGroups, GroupsImage, Untold
from indexer.hybrid import HitRule, hash_sizes
from indexer.learned import LearnedBlocks
from indexer.places import is_on_gpu

USUAL_SEEDS: Final = (None, "0", "42")
"""Values of PYTHONHASHSEED that are tried when the declared one does not agree: unset, and those of most guides."""

MAX_DOUBTS: Final = 8
"""Different first blocks that disagree without proving anything, after which keys are learned."""


class KeyState(StrEnum):
    """Whether a replica's keys are what we would compute."""

    UNPROVEN = "unproven"
    PROVEN = "proven"
    LEARNED = "learned"


class RecognitionImage(msgspec.Struct, frozen=True):
    """How a replica's keys are read, once that is known; ``learned`` where they are learned, ``recipe`` where not."""

    reason: str
    recipe: Recipe | None = None
    learned: LearnedKeys | None = None
    unplaced: int = 0
    groups: GroupsImage = GroupsImage()
    odd: str = ""


class Recognition:
    """One replica's keys, read. Changes with ``declare``, ``read``, ``restore`` and ``forget``.

    ``declared`` is what the engine and the settings say, its root perhaps unknown; None when they do not say enough.
    ``adapters`` are those that it serves, with their paths, which events do not tell; nor do they tell ``untold``.
    """

    def __init__(self, declared: Recipe | None, adapters: Sequence[Lora] = (), untold: Untold = NOTHING) -> None:
        self.declared = declared
        self.untold = untold
        self.adapters = {each.name: each for each in adapters}
        self.state: KeyState
        self.reason: str
        """What was found, in words for an operator; empty while there is nothing to say. Unproven: what speaks against it."""
        self.recipe: Recipe | LearnedKeys | None
        """What prompts are hashed with; None while nothing is known that could be right."""
        self.learned: LearnedBlocks
        """Its blocks by names, as long as the recipe is not proven: so that nothing is missed if it never is."""
        self.groups: CacheGroups
        """Its cache groups, as far as its events have told of them."""
        self.rule: HitRule | None
        """How they are hit; None where the length of one of full attention is all, and where nobody can say."""
        self.doubt: str
        """Why hits cannot be told from what is known of its keys and groups, in words for an operator; empty where they can."""
        self.forget()

    def __repr__(self) -> str:
        return f"<Recognition {self.state}: {self.recipe}>"

    def declare(self, recipe: Recipe | None, adapters: Sequence[Lora] = (), untold: Untold = NOTHING) -> None:
        """The engine or the settings say otherwise now; what an event has shown stands until the next incarnation."""
        self.untold = self.groups.untold = untold
        named = {each.name: each for each in adapters}
        is_news = (recipe, named) != (self.declared, self.adapters)
        self.declared, self.adapters, self.learned.adapters = recipe, named, named
        if is_news and self.state is KeyState.UNPROVEN:
            self._doubt_nothing()
        self._judge_groups()

    def forget(self) -> None:
        """Another incarnation: perhaps of another version, certainly with an empty cache."""
        self.state = KeyState.UNPROVEN
        self.learned = LearnedBlocks(self.adapters)
        self.groups = CacheGroups(self.untold)
        self._doubt_nothing()
        self._judge_groups()

    def _doubt_nothing(self) -> None:
        self.recipe, self.reason = _usable(self.declared), ""
        self._doubts: dict[int, BlockStored] = {}
        self._forms = Forms()
        self.continuity = Continuity()
        self._odd = ""  # what speaks against the recipe although it is proven
        self._tells_extras = True

    def export(self) -> RecognitionImage | None:
        """What the events of this incarnation have shown, but for the names of blocks; None while they have shown nothing."""
        if self.state is KeyState.UNPROVEN:
            return None
        recipe, learned = (None, self.recipe) if isinstance(self.recipe, LearnedKeys) else (self.recipe, None)
        return RecognitionImage(
            self.reason, recipe, learned, self.unplaced, self.groups.export(), self._odd or self.continuity.doubt
        )

    def restore(self, image: RecognitionImage, learned: LearnedBlocks) -> None:
        """The same, in another process, with the names of blocks: as if its events had been read here."""
        self.reason, self._odd = image.reason, image.odd
        self.groups.restore(image.groups)
        self.recipe = image.learned or image.recipe
        self.state = KeyState.PROVEN if image.learned is None else KeyState.LEARNED
        self.learned = learned
        if image.learned is not None:
            learned.adapters, learned.hash_block_size = self.adapters, image.learned.block_size
            learned.restore_unplaced(image.unplaced)
        self._judge_groups()

    @property
    def unplaced(self) -> int:
        """Blocks that are there and have no key, for their parent was never seen or they came without tokens."""
        return self.learned.unplaced if self.state is KeyState.LEARNED else 0

    @property
    def strangers(self) -> int:
        """Blocks that were removed under learned keys and had never been stored; the index counts them under all others."""
        return self.learned.strangers if self.state is KeyState.LEARNED else 0

    @property
    def is_vague(self) -> bool:
        """Whether different prompts may have the same key: what is found is a hint and no promise."""
        return isinstance(self.recipe, LearnedKeys) and not self.recipe.tells_extras

    def read(self, events: Sequence[KVEvent]) -> tuple[Sequence[KVEvent], bool]:
        """The events with the keys that the index uses, and whether all that was read before is void.

        When it is, the events store all that is known to be there.
        """
        is_news, before = self.groups.read(events), self.state
        passed = (events, False) if before is KeyState.PROVEN else self._read(events)
        if self.recipe is not None and (self.state is KeyState.PROVEN or before is KeyState.LEARNED):
            is_news |= self.continuity.look(events, self.recipe, is_hybrid=self.groups.is_hybrid)
        if self.state is KeyState.PROVEN:
            is_news |= self._look_at_forms(events if before is KeyState.PROVEN else [*self._doubts.values(), *events])
        if is_news or self.state is not before:
            self._judge_groups()
        return passed

    def _read(self, events: Sequence[KVEvent]) -> tuple[Sequence[KVEvent], bool]:
        if self.state is KeyState.LEARNED:
            return self.learned.read(events), False
        self.state = found = self._look_for_proof(events)
        if found is KeyState.PROVEN:
            self.learned = LearnedBlocks()
            return events, False
        self.learned.read(events)
        if found is KeyState.UNPROVEN:
            return events, False
        self.recipe = LearnedKeys(self.learned.hash_block_size, self._tells_extras)
        return list(self.learned.restate()), True

    def _look_at_forms(self, events: Sequence[KVEvent]) -> bool:
        """Hold kinds of extras that are seen for the first time against the recipe; returns whether that says anything new."""
        is_news = False
        for event in events:
            if not isinstance(event, BlockStored) or self.groups.is_hybrid or not self._forms.concerns(event):
                continue
            assert isinstance(self.recipe, Recipe)
            try:
                shown = self._forms.shown_by(event, self.recipe, self.adapters)
            except (UnhashableError, msgspec.MsgspecError):
                continue
            if shown is None:
                self._odd = "an event's salt, image or embedding is hashed in a way that is not known here"
                is_news = True
            elif shown != self.recipe:
                self.recipe, self.reason = shown, _differences(self.declared, shown, "")
                is_news = True
        return is_news

    @property
    def is_hybrid(self) -> bool:
        """Whether it has caches besides one of full attention, whose hits follow a rule of their own."""
        return self.groups.is_hybrid

    def _judge_groups(self) -> None:
        """What the groups that are known by now mean for hits."""
        self.rule, self.doubt = None, self._odd or self.continuity.doubt
        if not self.groups.is_hybrid:
            return
        if self.state is KeyState.UNPROVEN or self.recipe is None:
            self.doubt = self.doubt or (
                "it has other caches than one of full attention, and no event has shown yet how they are hashed"
            )
            return
        self.rule = self.groups.rule(self.recipe.block_size)
        self.doubt = self.doubt or self.groups.doubt(self.recipe.block_size)

    # Proof

    def _look_for_proof(self, events: Sequence[KVEvent]) -> KeyState:
        for event in events:
            if isinstance(event, BlockStored) and self._can_prove(event):
                found = next((each for each in self._candidates(event) if self._agrees(each, event)), None)
                if found is not None:
                    self.recipe = found
                    self.reason = _differences(self.declared, found, "block_size" if self.groups.is_hybrid else "")
                    return KeyState.PROVEN
                if self._is_refuted_by(event):
                    return KeyState.LEARNED
            elif not self.reason and _has_odd_tokens(event):
                self.reason = "its events name tokens in a form that no prompt has (pairs, as of some draft models)"
        return KeyState.UNPROVEN

    def _is_refuted_by(self, event: BlockStored) -> bool:
        """Whether no recipe can be right, now that the event agrees with none."""
        self._tells_extras = event.extras() is not None
        if self.recipe is not None and (doubt := self._doubt(event)):
            self.reason = doubt
            self._doubts[event.block_hashes[0]] = event
            if len(self._doubts) < MAX_DOUBTS:
                return False
        if self.declared is None:
            self.reason = "how it hashes is not known; its keys are learned from its events"
        else:
            self.reason = "its hashes agree with no recipe that is known here; they are learned from its events"
        if not self._tells_extras:
            self.reason += ", which do not tell salted prompts from others (vLLM before 0.18)"
        return True

    def _doubt(self, event: BlockStored) -> str:
        """Why the event may disagree with a recipe that is right; empty where it may not."""
        if not self._tells_extras:
            return "an event disagrees with its recipe (of a prompt with a cache salt, or hash_seed is wrong)"
        if event.lora_name is not None:
            return f"an event of the adapter '{event.lora_name}' disagrees with its recipe (or with the adapter's path)"
        return ""

    def _can_prove(self, event: BlockStored) -> bool:
        """Whether the event begins a prompt on the GPU: then its first hash depends on the recipe and on what is known.

        An adapter has to be one whose path is known. Where a block may be hashed in steps, an image in it is of no use: which
        of the steps it is in is not told.
        """
        if event.parent_block_hash is not None or not event.block_hashes:
            return False
        if not is_on_gpu(event) or not self._has_known_path(event):
            return False
        try:
            from_event(EXTRAS_FORM, extra := _first_extra(event), None)
            if self.groups.is_hybrid and not all(isinstance(item, str) for item in extra or ()):
                return False
            return dense_tokens(event) is not None
        except (UnhashableError, msgspec.MsgspecError):
            return False

    def _has_known_path(self, event: BlockStored) -> bool:
        """Whether nothing about the event's adapter is missing; without a declared recipe there is nothing to miss it."""
        if event.lora_name is None:
            return event.lora_id is None
        adapter = self.adapters.get(event.lora_name)
        return self.declared is None or (adapter is not None and adapter.path is not None)

    def _agrees(self, candidate: Recipe, event: BlockStored) -> bool:
        """Whether the candidate gives the event's first hash; all others follow from it."""
        lora = None if event.lora_name is None else self.adapters.get(event.lora_name)
        steps = event.block_size // candidate.block_size
        if steps > MAX_STEPS:
            return False
        try:
            extras = [from_event(candidate, _first_extra(event), lora)]
            extras += [from_event(candidate, [event.lora_name] if event.lora_name else None, lora)] * (steps - 1)
            tokens = event.tokens()[: event.block_size]
            digests = hash_blocks(candidate, candidate.none_hash(), tokens, extras)
        except (RecipeError, UnhashableError):
            return False
        return [key_of(digest) for digest in digests[-1:]] == event.block_hashes[:1]

    def _candidates(self, event: BlockStored) -> Iterator[Recipe]:
        """The declared recipe first, then what most often differs from it.

        Nothing without one: a first block may well show algorithm and root, but not in which form later extras are hashed.
        """
        if self.declared is None:
            return
        sizes = [event.block_size]
        if self.groups.is_hybrid:
            together = [spec.block_size for spec in self.groups.specs.values() if spec.block_size > 0]
            sizes = list(dict.fromkeys([*hash_sizes([event.block_size, *together], self.declared.block_size), *sizes]))
        for size in sizes:
            yield msgspec.structs.replace(self.declared, block_size=size)
        for algorithm, seed, size in product(get_args(Algorithm), (self.declared.seed, *USUAL_SEEDS), sizes):
            yield msgspec.structs.replace(self.declared, algorithm=algorithm, seed=seed, root=None, block_size=size)


def _usable(declared: Recipe | None) -> Recipe | None:
    """The recipe, if prompts can be hashed with it."""
    try:
        return declared if declared is not None and declared.none_hash() else None
    except RecipeError:
        return None


def _has_odd_tokens(event: KVEvent) -> bool:
    if not isinstance(event, BlockStored) or event.group_idx or not is_on_gpu(event):
        return False
    try:
        event.tokens()
    except msgspec.MsgspecError:
        return True
    return False


def _first_extra(event: BlockStored) -> Sequence[Any] | None:
    published = event.extras()
    if published is None:  # vLLM before 0.18 tells the adapter alone
        return None if event.lora_name is None else [event.lora_name]
    return published[0] if published else None


def _differences(declared: Recipe | None, found: Recipe, but: str) -> str:
    fields = (name for name in Recipe.__struct_fields__ if name != but)
    names = [name for name in fields if getattr(declared, name) != getattr(found, name)]
    told = "; ".join(f"{name} is {getattr(found, name)!r}, not {getattr(declared, name)!r}" for name in names)
    return f"its events say that {told}" if told else ""
