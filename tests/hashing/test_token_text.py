"""``hashing/token_text.py``: what is read of a text are its ids, and its keys are theirs, however it is written."""

import json
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashing import token_text
from hashing.chain import Chain
from hashing.errors import RecipeError, UnhashableError
from hashing.extras import Extras, Lora
from hashing.memory import STRIDE, ChainMemory
from hashing.own import LearnedKeys, OwnChain
from hashing.recipes import Recipe
from hashing.token_text import MAX_ID, EngineKeys, OwnKeys, TokenText

RECIPE = Recipe(block_size=4)
LEARNED = LearnedKeys(4)
ALL = 1 << 30

tokens = st.lists(st.integers(0, 200_000) | st.integers(0, MAX_ID), min_size=1, max_size=60)
spaces = st.sampled_from(["", " ", "\n\t "])


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_text, "PIECE", 32)


def text_of(values: Sequence[int], space: str = "") -> bytes:
    return f"[{space}{f',{space}'.join(map(str, values))}{space}]".encode()


def read(text: bytes, memory: ChainMemory | None = None) -> TokenText | None:
    return TokenText.read(b"{" + text + b"}", 1, len(text) + 1, ChainMemory() if memory is None else memory)


@given(prompts=st.lists(tokens, min_size=1, max_size=4), space=spaces)
def test_ids_are_those_of_the_text_cold_and_warm(prompts: list[list[int]], space: str) -> None:
    memory = ChainMemory()
    for prompt in [*prompts, *prompts]:
        found = read(text_of(prompt, space), memory)
        assert found is not None
        assert len(found) == len(prompt)
        assert list(found) == prompt
        assert found[1:] == prompt[1:]
        assert found[0] == prompt[0]


@given(prompts=st.lists(tokens, min_size=1, max_size=4), space=spaces, salt=st.sampled_from([None, "", "s"]))
def test_keys_are_those_of_the_ids_cold_and_warm(prompts: list[list[int]], space: str, salt: str | None) -> None:
    memory = ChainMemory()
    extras = Extras(lora=Lora("sql", "/adapters/sql"), salt=salt)
    for prompt in [*prompts, *prompts]:
        found = read(text_of(prompt, space), memory)
        assert found is not None
        for each in (Extras(), extras):
            for recipe in (RECIPE, Recipe(block_size=7, algorithm="xxhash_cbor", seed="0")):
                chain, expected = EngineKeys(recipe, found, each), Chain(recipe, prompt, each)
                assert len(chain) == len(expected)
                assert chain.keys(1)[:1] == expected.keys(1)[:1]
                assert chain.keys(ALL) == expected.keys(ALL)
            for learned in (LEARNED, LearnedKeys(7), LearnedKeys(4, tells_extras=False)):
                assert OwnKeys(learned, found, each).keys(ALL) == OwnChain(learned, prompt, each).keys(ALL)


@given(prompt=tokens, more=tokens, at=st.integers(0, 60))
def test_a_prompt_that_goes_on_otherwise_has_its_own_keys(prompt: list[int], more: list[int], at: int) -> None:
    memory = ChainMemory()
    for each in (prompt, prompt[:at] + more):
        found = read(text_of(each), memory)
        assert found is not None
        assert EngineKeys(RECIPE, found).keys(ALL) == Chain(RECIPE, each).keys(ALL)


def is_list_of_ids(text: bytes) -> bool:
    try:
        values = json.loads(text)
    except ValueError:
        return False
    return values != [] and all(type(each) is int and 0 <= each <= MAX_ID for each in values)


parts = st.sampled_from(
    ["1", "23", "4567", ",", ",", " ", "-1", "1.5", "null", "[", "]", '"a"', str(MAX_ID + 1), "\xff"]
)


@given(texts=st.lists(st.lists(parts, max_size=40), min_size=1, max_size=4))
def test_whatever_is_no_list_of_ids_is_none(texts: list[list[str]]) -> None:
    memory = ChainMemory()
    for each in [*texts, *texts]:
        text = f"[{''.join(each)}]".encode("latin-1")
        assert (read(text, memory) is not None) == is_list_of_ids(text)


@pytest.mark.parametrize(
    "text", ["[]", "[ ]", "[1,]", "[,1]", "[1,,2]", "[1, ,2]", "[12345678901,           ,2]", "[1 2]"]
)
def test_commas_stand_between_ids(text: str) -> None:
    memory = ChainMemory()
    for filler in ("", "1234567890123456789012345678901,", "123456789012345,123456789012345,"):
        assert read(text.replace("[", f"[{filler}", 1).encode(), memory) is None or text in {"[]", "[ ]"}


def test_a_last_piece_is_another_than_one_in_the_middle() -> None:
    memory = ChainMemory()
    middle = b"123456789012345,123456789012345,"
    assert len(middle) == token_text.PIECE
    assert read(b"[%b1]" % middle, memory) is not None
    assert read(b"[%b]" % middle, memory) is None


def test_what_has_no_hash_says_so_when_the_keys_are_made() -> None:
    found = read(b"[1,2,3,4]")
    assert found is not None
    with pytest.raises(RecipeError):
        EngineKeys(Recipe(block_size=4, unseeded="random"), found)
    with pytest.raises(UnhashableError):
        EngineKeys(RECIPE, found, Extras(lora=Lora("sql")))
    with pytest.raises(UnhashableError):
        OwnKeys(LEARNED, found, Extras(salt="\ud800"))


def test_a_warm_text_is_not_read() -> None:
    memory, prompt = ChainMemory(), list(range(100))
    for is_warm in (False, True):
        found = read(text_of(prompt), memory)
        assert found is not None
        assert EngineKeys(RECIPE, found).keys(ALL) == Chain(RECIPE, prompt).keys(ALL)
        assert bool(found._read) is not is_warm


def test_a_text_that_looks_like_packed_tokens_has_keys_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_text, "PIECE", 1_000)
    memory, recipe = ChainMemory(), Recipe(block_size=1)
    text = b"1234," * 51 + b"1"
    alike = array("I", text)
    assert len(alike) == STRIDE
    assert Chain(recipe, alike, memory=memory).keys(ALL) == Chain(recipe, alike).keys(ALL)
    found = read(b"[%b]" % text, memory)
    assert found is not None
    assert EngineKeys(recipe, found).keys(ALL) == Chain(recipe, list(found)).keys(ALL)
