"""Text and ids: nothing is lost, nothing is remembered, and generated text is cut again at the same places."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.fake.tokenizer import SPECIAL, VOCABULARY, Tokenizer

TOKENIZER = Tokenizer()
OTHER = Tokenizer()

texts = (
    st.text(alphabet=st.characters(codec="utf-8"))
    | st.text(alphabet="ab z.\n<|>/s")
    | st.lists(st.sampled_from(SPECIAL)).map(" x".join)
)


@given(texts)
def test_a_text_comes_back_as_it_was(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(0 <= token < VOCABULARY for token in ids)


@given(texts)
def test_every_engine_gives_the_same_ids(text: str) -> None:
    TOKENIZER.encode(text + "something else")
    assert TOKENIZER.encode(text) == OTHER.encode(text)


def test_words_take_about_four_letters_a_token() -> None:
    assert len(TOKENIZER.encode("the quick brown fox jumps over the lazy dog")) <= 16


@given(st.lists(st.sampled_from(TOKENIZER.words), min_size=1))
def test_generated_text_has_the_same_ids_in_the_next_turn(said: list[int]) -> None:
    text = TOKENIZER.decode(said)
    first = TOKENIZER.render_chat([("user", "hello")])
    second = TOKENIZER.render_chat([("user", "hello"), ("assistant", text), ("user", "and now?")])
    assert second[: len(first) + len(said)] == first + said


def test_special_tokens_in_a_text_are_recognised() -> None:
    rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.encode(rendered) == TOKENIZER.render_chat([("user", "hi")])
    assert TOKENIZER.decode(TOKENIZER.encode("a</s>"), skip_special=True) == "a"


@pytest.mark.parametrize("token", [VOCABULARY - 1, VOCABULARY, 10**9])
def test_ids_that_stand_for_nothing_are_silent(token: int) -> None:
    assert TOKENIZER.decode([token]) == ""


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert TOKENIZER.decode([0xFF, 0x61]) == "\ufffda"
