"""``indexer/continuity.py``: first blocks that go on as they began, and such as do not."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from hashing.own import LearnedKeys
from hashing.recipes import Recipe
from indexer.continuity import AGREED_AGAIN, MAX_NAMES, Continuity
from indexer.described import dense_tokens, first_tokens
from indexer.events import NIL, BlockStored
from tests.support.routing import RANDOM, RECIPE, told

PROMPT = list(range(41))


def looked(*events: BlockStored, recipe: Recipe | LearnedKeys = RECIPE, is_hybrid: bool = False) -> Continuity:
    made = Continuity()
    made.look(events, recipe, is_hybrid=is_hybrid)
    return made


def changed(event: BlockStored, **changes: Any) -> BlockStored:
    return msgspec.structs.replace(event, **changes)


def encoded(tokens: Sequence[int]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(list(tokens)))


def test_one_is_a_doubt_and_a_second_one_is_certain() -> None:
    made = looked(told(PROMPT, RANDOM))
    assert (bool(made.doubt), made.is_broken) == (True, False)
    made.look([told(PROMPT, RANDOM)], RECIPE, is_hybrid=False)
    assert not made.is_broken, "the same again says nothing more"
    made.look([told(PROMPT[1:], RANDOM)], RECIPE, is_hybrid=False)
    assert made.is_broken


def test_agreement_ends_a_doubt_and_no_certainty() -> None:
    agreeing = [told(range(at, at + 8)) for at in range(AGREED_AGAIN)]
    made = looked(told(PROMPT, RANDOM), *agreeing[1:])
    assert made.doubt
    assert made.look(agreeing[:1], RECIPE, is_hybrid=False)
    assert not made.doubt
    made = looked(told(PROMPT, RANDOM), told(PROMPT[1:], RANDOM), *agreeing)
    assert made.is_broken


@pytest.mark.parametrize("size", [0, -5, 3, 5, 8])
@pytest.mark.parametrize("recipe", [RECIPE, LearnedKeys(4)])
def test_blocks_of_another_size_are_not_of_the_same_cache(size: int, recipe: Recipe | LearnedKeys) -> None:
    made = looked(changed(told(PROMPT), block_size=size), recipe=recipe)
    assert made.doubt.startswith(f"an event has blocks of {size} tokens, where those before had 4")


def test_where_nobody_can_hash_it_a_first_block_keeps_its_name() -> None:
    other = msgspec.structs.replace(RANDOM, root=b"s" * 32)
    made = looked(told(PROMPT, RANDOM), told(PROMPT[1:], RANDOM), told(PROMPT, RANDOM, salt="s"), recipe=LearnedKeys(4))
    assert not made.doubt
    made.look([told(PROMPT, other, salt="s")], LearnedKeys(4), is_hybrid=False)
    assert not made.doubt, "what is told of it is not all"
    made.look([told(PROMPT, other), told(PROMPT[1:], other)], LearnedKeys(4), is_hybrid=False)
    assert made.is_broken
    assert made.doubt.startswith("a first block has another name than before")


def test_names_are_kept_of_some() -> None:
    made = Continuity()
    for at in range(MAX_NAMES + 100):
        made.look([told(range(at, at + 4), RANDOM)], LearnedKeys(4), is_hybrid=False)
    assert len(made._names) == MAX_NAMES


def test_a_hybrid_models_blocks_are_hashed_in_steps() -> None:
    larger = changed(told(PROMPT[:40]), block_size=8, block_hashes=told(PROMPT[:40]).block_hashes[1::2])
    assert not looked(larger, is_hybrid=True).doubt
    assert looked(changed(larger, block_hashes=[1, 2, 3, 4, 5]), is_hybrid=True).doubt
    assert not looked(changed(larger, block_size=6, block_hashes=[1]), is_hybrid=True).doubt, "the end of a prompt"


@pytest.mark.parametrize(
    "event",
    [
        told(PROMPT, RANDOM, salt="s"),
        changed(told(PROMPT, RANDOM), lora_name="a"),
        changed(told(PROMPT, RANDOM), lora_id=1),
        changed(told(PROMPT, RANDOM), parent_block_hash=3),
        changed(told(PROMPT, RANDOM), extra_keys=NIL),
        changed(told(PROMPT, RANDOM), medium="CPU"),
        changed(told(PROMPT, RANDOM), block_hashes=[]),
        changed(told(PROMPT, RANDOM), token_ids=encoded(PROMPT)),
        changed(told(PROMPT, RANDOM), token_ids=encoded([-1, *PROMPT[:39]])),
        changed(told(PROMPT, RANDOM), token_ids=msgspec.Raw(b"\xa1x")),
        changed(told(PROMPT, RANDOM), token_ids=msgspec.Raw(b"\xdc\x00\x28\x01")),
        changed(told(PROMPT, RANDOM), token_ids=msgspec.Raw(b"")),
    ],
)
def test_what_may_disagree_or_cannot_be_hashed_says_nothing(event: BlockStored) -> None:
    assert not looked(event).doubt


@pytest.mark.parametrize("start", [0, 100, 127, 128, 250, 256, 65_530, 65_536, 2**32 - 3, 2**40])
@pytest.mark.parametrize("blocks", [1, 3, 4, 20_000])
def test_the_first_tokens_are_those_of_the_whole(start: int, blocks: int) -> None:
    event = changed(told(PROMPT), block_hashes=[1] * blocks, token_ids=encoded(range(start, start + 4 * blocks)))
    assert first_tokens(event) == (dense_tokens(event) or [])[:4]
