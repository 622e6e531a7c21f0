"""``balancer/prefixes.py``: whatever form a prompt comes in, its chain is that of its tokens."""

import json
from array import array

import pytest

from balancer.prefixes import GivenKeys, LocalHashes, TextHashes
from hashing.chain import Chain
from hashing.errors import UnhashableError
from hashing.extras import Extras, Lora
from hashing.memory import ChainMemory
from hashing.own import LearnedKeys, OwnChain, local_hashes
from tests.support.routing import RANDOM, RECIPE

LEARNED = LearnedKeys(4)
PROMPT = list(range(41))
TEXT = json.dumps(PROMPT).encode()


def test_a_text_is_hashed_as_its_tokens_are() -> None:
    hashes = TextHashes(TEXT, "abc", ChainMemory())
    for adapter in (None, Lora("sql", "/sql")):
        extras = Extras(lora=adapter, salt="abc")
        (learned,) = hashes.chains(LEARNED, adapter)
        assert list(learned.keys(99)) == OwnChain(LEARNED, PROMPT, extras).keys(99)
        for recipe in (RECIPE, RANDOM):
            (chain,) = hashes.chains(recipe, adapter)
            assert list(chain.keys(99)) == Chain(recipe, PROMPT, extras).keys(99)


@pytest.mark.parametrize("recipe", [LEARNED, RECIPE])
def test_what_is_no_token_is_told(recipe: LearnedKeys) -> None:
    with pytest.raises(UnhashableError, match="tokens"):
        TextHashes(b'[1,"a",3,4]', None, ChainMemory()).chains(recipe, None)[0].keys(9)


def test_local_hashes_serve_learned_keys_alone() -> None:
    values = [int.from_bytes(each, "big", signed=True) for each in local_hashes(array("I", PROMPT), 4)]
    hashes = LocalHashes(json.dumps(values).encode(), "abc", ChainMemory())
    (chain,) = hashes.chains(LEARNED, Lora("sql"))
    assert list(chain.keys(99)) == OwnChain(LEARNED, PROMPT, Extras(lora=Lora("sql"), salt="abc")).keys(99)
    assert hashes.chains(RECIPE, None) == ()


def test_given_keys_are_the_same_for_every_recipe() -> None:
    given = GivenKeys([1, 2, 3])
    assert [list(given.chains(recipe, None)[0].keys(2)) for recipe in (RECIPE, LEARNED)] == [[1, 2, 3]] * 2
