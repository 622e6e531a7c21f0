"""``indexer/described.py``: links of an event's blocks, and nothing where it tells too little or something unknown."""

from typing import Any

import pytest

from hashing.extras import Extras, Lora
from hashing.own import follow, root
from indexer.described import dense_tokens, describe
from indexer.events import EMPTY, NIL
from tests.indexer.announced import LORA, RANDOM, SIZE, TOKENS, raw, stored, wanted


def test_links_lead_from_the_root_to_the_keys_of_a_request() -> None:
    salted = Extras(lora=LORA, salt="pepper")
    told = describe(stored(RANDOM, extras=salted), SIZE, {LORA.name: LORA})
    assert told is not None
    assert told.root == root(LORA, "pepper")
    assert follow(told.root, told.links) == wanted(extras=salted)
    child = describe(stored(RANDOM, first=4), SIZE, {})
    assert child is not None
    assert (child.root, follow(wanted()[3], child.links)) == (None, wanted()[4:])


def test_an_adapter_is_the_declared_one_of_its_name() -> None:
    event = stored(RANDOM, extras=Extras(lora=LORA))
    roots = [getattr(describe(event, SIZE, adapters), "root", None) for adapters in ({LORA.name: LORA}, {"a": LORA})]
    assert roots == [root(LORA, None), root(Lora(LORA.name), None)]


TOO_LITTLE: dict[str, dict[str, Any]] = {
    "placeholder": {"token_ids": EMPTY, "block_size": 0},
    "sparse": {"block_hashes": [1, 2]},
    "of another step": {"block_size": 5, "block_hashes": list(range(8))},
    "without its salt": {"medium": "CPU", "extra_keys": NIL},
    "adapter without a name": {"lora_id": 3},
    "no tokens": {"token_ids": raw("text")},
    "no extras": {"extra_keys": raw([{"new": 1}] * 10)},
    "salt in the middle": {"extra_keys": raw([*[None] * 9, ["pepper"]])},
    "two salts": {"extra_keys": raw([["pepper", "salt"], *[None] * 9])},
    "images in larger blocks": {
        "block_size": 2 * SIZE, "block_hashes": list(range(5)), "extra_keys": raw([[["cat", 1]], *[None] * 4]),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LITTLE)
def test_what_tells_too_little_is_not_described(name: str) -> None:
    assert describe(stored(RANDOM, **TOO_LITTLE[name]), SIZE, {}) is None


def test_dense_tokens_are_those_of_the_blocks() -> None:
    assert dense_tokens(stored(RANDOM)) == TOKENS
    assert dense_tokens(stored(RANDOM, block_hashes=[1])) is None
    assert dense_tokens(stored(RANDOM, block_size=-4)) is None
