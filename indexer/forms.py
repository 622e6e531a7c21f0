"""In which forms a replica hashes its extras, shown by its events one kind after the other.

Knows recipes and what a ``BlockStored`` proves of them: it carries tokens and extras, so hashing them again shows whether the
forms are right. Never knows requests, order or what the index holds. A first event without extras proves algorithm and root
alone; a gateway may have been told of another release than the one that runs (0.31 tags its extras, 0.30 does not), so each
kind of extra is held against the first event that has it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, get_args

import msgspec

from hashing.chain import hash_blocks
from hashing.errors import RecipeError, UnhashableError
from hashing.external import key_of
from hashing.extras import Lora, from_event
from hashing.recipes import EmbedsForm, LoraForm, MultimodalForm, Recipe, SaltForm
from indexer.described import dense_tokens
from indexer.events import NIL, BlockStored

_FORMS: Final = {
    "lora_form": get_args(LoraForm),
    "multimodal_form": get_args(MultimodalForm),
    "salt_form": get_args(SaltForm),
    "embeds_form": get_args(EmbedsForm),
}
_NOTHING: Final = 0xC0  # msgpack: nil

MAX_TRIES: Final = 8
"""Events of adapters that agree in no form, perhaps because they were loaded from another path, before they are let be."""


class Forms:
    """Which forms events have shown, in one incarnation. Changes with ``shown_by``."""

    def __init__(self) -> None:
        self._unshown = set(_FORMS)
        self._tries = 0

    def concerns(self, event: BlockStored) -> bool:
        """Whether the event may show anything: it begins a prompt, and has an extra of a kind that has not been shown."""
        if event.parent_block_hash is not None or not self._unshown:
            return False
        if event.lora_name is not None:
            return "lora_form" in self._unshown or has_extras(event)
        return has_extras(event)

    def shown_by(self, event: BlockStored, recipe: Recipe, adapters: Mapping[str, Lora]) -> Recipe | None:
        """The recipe in the forms that give the event's hashes; None where no forms do, and no adapter's path can be why.

        Raises:
            msgspec.MsgspecError: its tokens or extras are no lists.
        """
        published = event.extras() or [[event.lora_name]] * len(event.block_hashes)
        kinds = {kind for entry in published for kind in _kinds(event, entry)} & self._unshown
        tokens = dense_tokens(event)
        if not kinds or tokens is None or event.block_size != recipe.block_size:
            return recipe
        lora = None if event.lora_name is None else adapters.get(event.lora_name) or Lora(event.lora_name)
        for candidate in _candidates(recipe, kinds):
            if _keys(candidate, tokens, published, lora) == event.block_hashes:
                self._unshown -= kinds
                return candidate
        self._tries += 1
        if lora is None or self._tries >= MAX_TRIES:
            self._unshown -= kinds
        return recipe if lora is not None else None


def has_extras(event: BlockStored) -> bool:
    """Whether ``extra_keys`` holds anything but nils; decoding would cost every first block a list."""
    data = bytes(event.extra_keys)
    if event.extra_keys == NIL or not data:
        return False
    header = {0xDC: 3, 0xDD: 5}.get(data[0], 1)
    return data.count(_NOTHING, header) != len(data) - header


def _kinds(event: BlockStored, entry: Sequence[Any] | None) -> Iterator[str]:
    for item in entry or ():
        match item:
            case str() if item == event.lora_name:
                yield "lora_form"
            case str():
                yield "salt_form"
            case bytes():
                yield "embeds_form"
            case _:
                yield "multimodal_form"


def _candidates(recipe: Recipe, kinds: set[str]) -> Iterator[Recipe]:
    """The recipe first, then with each of these kinds in every other form."""
    yield recipe
    names = sorted(kinds)
    for forms in product(*(_FORMS[name] for name in names)):
        yield msgspec.structs.replace(recipe, **dict(zip(names, forms, strict=True)))


def _keys(
    recipe: Recipe, tokens: Sequence[int], published: Sequence[Sequence[Any] | None], lora: Lora | None
) -> list[int]:
    try:
        extras = [from_event(recipe, entry, lora) for entry in published]
        return [key_of(digest) for digest in hash_blocks(recipe, recipe.none_hash(), tokens, extras)]
    except (RecipeError, UnhashableError):
        return []
