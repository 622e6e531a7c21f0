"""``indexer/forms.py`` through ``Recognition``: extras are hashed as the engine's events show, whatever was declared."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from hashing.chain import Chain
from hashing.extras import Extras, Lora, MultimodalItem
from hashing.recipes import Recipe
from indexer.events import BlockStored
from indexer.forms import MAX_TRIES
from indexer.recognition import KeyState, Recognition

SIZE = 4
NEW = Recipe(block_size=SIZE)
OLD = Recipe.for_version("0.30.0", block_size=SIZE)
LORA = Lora("ad", "/adapters/ad", 1)
TOKENS = tuple(range(16))
IMAGE = MultimodalItem("picture", 5, 4)


def announced(
    recipe: Recipe,
    extras: Extras,
    published: Sequence[Sequence[Any] | None],
    tokens: Sequence[int] = TOKENS,
    key: int | None = None,
) -> BlockStored:
    """What an engine with this recipe says of a prompt of full blocks; ``key`` stands in the place of the first hash."""
    keys = list(Chain(recipe, tokens, extras).keys(len(tokens) // SIZE))
    return BlockStored(
        keys if key is None else [key, *keys[1:]],
        None,
        msgspec.Raw(msgspec.msgpack.encode(tokens)),
        SIZE,
        lora_id=extras.lora.id if extras.lora else None,
        medium="GPU",
        lora_name=extras.lora.name if extras.lora else None,
        extra_keys=msgspec.Raw(msgspec.msgpack.encode(published)),
    )


def proven(declared: Recipe, actual: Recipe, adapters: Sequence[Lora] = (LORA,)) -> Recognition:
    """One that has read a prompt without extras."""
    recognition = Recognition(declared, adapters)
    recognition.read([announced(actual, Extras(), [None] * 4)])
    assert recognition.state is KeyState.PROVEN
    assert recognition.recipe == declared
    return recognition


SALTED = Extras(salt="s"), [["s"], None, None, None]
ADAPTED = Extras(lora=LORA), [["ad"]] * 4
PICTURED = Extras(multimodal=(IMAGE,)), [None, [["picture", 1]], [["picture", -3]], None]
ALL = (
    Extras(lora=LORA, salt="s", multimodal=(IMAGE,)),
    [["ad", "s"], ["ad", ["picture", 1]], ["ad", ["picture", -3]], ["ad"]],
)


@pytest.mark.parametrize("extras", [SALTED, ADAPTED, PICTURED, ALL], ids=["salt", "adapter", "image", "all"])
@pytest.mark.parametrize(("declared", "actual"), [(NEW, OLD), (OLD, NEW), (NEW, NEW)], ids=["older", "newer", "same"])
def test_extras_are_hashed_as_events_show(
    declared: Recipe, actual: Recipe, extras: tuple[Extras, Sequence[Sequence[Any] | None]]
) -> None:
    recognition = proven(declared, actual)
    event = announced(actual, *extras)
    recognition.read([event])
    assert isinstance(recognition.recipe, Recipe)
    assert Chain(recognition.recipe, TOKENS, extras[0]).keys(4) == event.block_hashes
    assert recognition.doubt == ""
    assert bool(recognition.reason) is (declared != actual)


def test_each_kind_is_found_when_it_first_comes() -> None:
    recognition = proven(NEW, OLD)
    recognition.read([announced(OLD, *SALTED)])
    recognition.read([announced(OLD, *ADAPTED), announced(OLD, *PICTURED)])
    recognition.read([announced(OLD, *PICTURED)])
    assert recognition.recipe == msgspec.structs.replace(
        NEW, lora_form="name", multimodal_form="offset", salt_form="plain"
    )


def test_what_came_before_the_proof_is_held_against_it() -> None:
    recognition = Recognition(NEW, (LORA,))
    recognition.read([announced(OLD, *ADAPTED)])
    assert recognition.state is KeyState.UNPROVEN
    recognition.read([announced(OLD, Extras(), [None] * 4)])
    assert recognition.recipe == msgspec.structs.replace(NEW, lora_form="name")


def test_all_events_of_a_batch_are_looked_at() -> None:
    recognition = proven(NEW, OLD)
    recognition.read([announced(OLD, *SALTED), announced(OLD, *PICTURED)])
    assert recognition.recipe == msgspec.structs.replace(NEW, multimodal_form="offset", salt_form="plain")


def test_what_has_been_shown_is_not_looked_at_again() -> None:
    recognition = proven(NEW, NEW)
    recognition.read([announced(NEW, *SALTED)])
    recognition.read([announced(NEW, *SALTED, key=1)])
    assert recognition.recipe == NEW
    assert recognition.doubt == ""


def test_a_salt_that_is_hashed_in_no_known_way_is_told() -> None:
    recognition = proven(NEW, NEW)
    recognition.read([announced(NEW, *SALTED, key=1)])
    assert recognition.recipe == NEW
    assert "in a way that is not known" in recognition.doubt
    image = recognition.export()
    assert image is not None
    restored = Recognition(NEW)
    restored.restore(image, restored.learned)
    assert restored.doubt == recognition.doubt
    recognition.forget()
    assert recognition.doubt == ""


def test_an_adapter_from_another_path_refutes_nothing() -> None:
    recognition = proven(NEW, NEW)
    elsewhere = Extras(lora=Lora("ad", "/adapters/other", 1))
    for _ in range(MAX_TRIES + 1):
        recognition.read([announced(NEW, elsewhere, [["ad"]] * 4)])
    assert (recognition.recipe, recognition.doubt) == (NEW, "")


def test_an_adapter_whose_path_nobody_knows_refutes_nothing() -> None:
    recognition = proven(NEW, NEW, adapters=())
    recognition.read([announced(NEW, *ADAPTED)])
    assert (recognition.recipe, recognition.doubt) == (NEW, "")


@pytest.mark.parametrize("extras", [b"\xc1", b"\x91\xa1", b"\xdc\x00", b"\x01", b"\x91\x81\x01\x01"])
def test_extras_that_cannot_be_read_show_nothing(extras: bytes) -> None:
    recognition = proven(NEW, NEW)
    event = msgspec.structs.replace(announced(NEW, *SALTED), extra_keys=msgspec.Raw(extras))
    recognition.read([event])
    assert recognition.recipe == NEW
