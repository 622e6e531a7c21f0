"""``hashing/text.py``: the keys of a text are those of its numbers, however it is written, cut and remembered."""

import json
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashing import text as text_module
from hashing.errors import UnhashableError
from hashing.extras import Extras, Lora
from hashing.memory import ChainMemory
from hashing.own import LearnedKeys, OwnChain, local_hashes
from hashing.text import TextChain

LEARNED = LearnedKeys(4)
ALL = 1 << 30

tokens = st.lists(st.integers(0, 200_000) | st.integers(0, (1 << 64) - 1), max_size=60)


def text_of(values: Sequence[int], space: str = "") -> bytes:
    return f"[{space}{f',{space}'.join(map(str, values))}{space}]".encode()


def keys(
    text: bytes, memory: ChainMemory, learned: LearnedKeys = LEARNED, lora: Lora | None = None, salt: str | None = None
) -> list[int]:
    return TextChain(text, learned, lora, salt, memory).keys(ALL)


def own(values: Sequence[int], learned: LearnedKeys = LEARNED, extras: Extras | None = None) -> list[int]:
    return OwnChain(learned, values, extras or Extras()).keys(ALL)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "PIECE", 32)


@given(prompts=st.lists(tokens, min_size=1, max_size=4), space=st.sampled_from(["", " ", "\n\t "]))
def test_keys_are_those_of_the_tokens_cold_and_warm(prompts: list[list[int]], space: str) -> None:
    memory = ChainMemory()
    for prompt in [*prompts, *prompts]:
        assert keys(text_of(prompt, space), memory) == own(prompt)


@given(prompt=tokens, more=tokens, at=st.integers(0, 60))
def test_a_prompt_that_goes_on_otherwise_has_its_own_keys(prompt: list[int], more: list[int], at: int) -> None:
    memory = ChainMemory()
    other = prompt[:at] + more
    assert keys(text_of(prompt), memory) == own(prompt)
    assert keys(text_of(other), memory) == own(other)


@given(hashes=st.lists(st.integers(-(1 << 63), (1 << 64) - 1), max_size=40))
def test_local_hashes_are_read_signed_and_unsigned(hashes: list[int]) -> None:
    memory = ChainMemory()
    expected = OwnChain.from_local_hashes(4, hashes).keys(ALL)
    for _ in range(2):
        assert TextChain(text_of(hashes), LEARNED, None, None, memory, is_hashes=True).keys(ALL) == expected


def test_tokens_and_their_local_hashes_have_the_same_keys() -> None:
    prompt = list(range(50))
    hashes = [int.from_bytes(each, "big", signed=True) for each in local_hashes(array("I", prompt), 4)]
    memory = ChainMemory()
    assert TextChain(text_of(hashes), LEARNED, None, None, memory, is_hashes=True).keys(ALL) == own(prompt)
    assert keys(text_of(prompt), memory) == own(prompt)


def test_adapter_salt_and_block_size_are_part_of_every_key_and_of_every_name() -> None:
    memory, prompt = ChainMemory(), list(range(50))
    sql = Lora("sql")
    for learned in (LEARNED, LearnedKeys(8), LearnedKeys(4, tells_extras=False)):
        for lora in (None, sql):
            for salt in (None, "", "sql", "abc"):
                found = keys(text_of(prompt), memory, learned, lora, salt)
                assert found == own(prompt, learned, Extras(lora=lora, salt=salt))


def test_no_more_is_read_than_is_asked_for() -> None:
    text = text_of(list(range(50)))[:-1] + b',"no token"]'
    chain = TextChain(text, LEARNED, None, None, ChainMemory())
    assert chain.keys(1) == own(list(range(50)))[: len(chain.keys(1))]
    assert len(chain.keys(1)) < 12
    with pytest.raises(UnhashableError, match=r"^tokens: Expected `int`, got `str`"):
        chain.keys(ALL)


@pytest.mark.parametrize("bad", [-1, 1 << 64, 1.5, True, None, [1], "1"])
def test_what_is_no_token_is_refused_where_it_is_reached(bad: object) -> None:
    for prompt in ([bad, 1, 2, 3], [*range(40), bad]):
        with pytest.raises(UnhashableError, match=r"^tokens"):
            keys(json.dumps(prompt).encode(), ChainMemory())


def test_what_was_read_before_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, prompt = ChainMemory(), list(range(1_000, 1_400))
    keys(text_of(prompt), memory)
    read: list[bytes] = []

    def noted(_: TextChain, text: bytes) -> list[int]:
        read.append(text)
        return list(json.loads(b"[%b]" % text))

    monkeypatch.setattr(TextChain, "_read", noted)
    grown = [*prompt, 7, 8, 9, 10]
    assert keys(text_of(grown), memory) == own(grown)
    assert len(read) <= 2, "only the last piece and what is new"


def test_without_memory_it_is_read_each_time() -> None:
    memory, prompt = ChainMemory(0), list(range(50))
    assert keys(text_of(prompt), memory) == keys(text_of(prompt), memory) == own(prompt)
    assert memory.bytes_held == 0
