"""``hashing/example.py``: names of folders, as vLLM 0.32.0 made them."""

import hashlib

import pytest

from hashing.errors import UnhashableError
from hashing.example import NAME, ExampleChain, ExampleKeys, key_of_name
from hashing.extras import Extras, MultimodalItem
from hashing.own import LearnedKeys

TOKENS = list(range(1, 101))
NAMES = {1: "ad03a7c7e6a72c124ec4a6812346dd58", 3: "b16b855d1474a5328dfd59a67878afa6"}


def name_of(blocks: int, media: str = "") -> str:
    """The same in one piece."""
    data = b"".join(token.to_bytes(8, "little") for token in TOKENS[: blocks * 32])
    return hashlib.md5(data + media.encode()).hexdigest()


def test_names_are_vllms() -> None:
    keys = ExampleChain(ExampleKeys(32), TOKENS).keys(9)
    assert len(keys) == 3
    for blocks, name in NAMES.items():
        assert NAME.fullmatch(name)
        assert name == name_of(blocks)
        assert keys[blocks - 1] == key_of_name(name)


def test_a_chain_grows_as_it_is_asked() -> None:
    chain = ExampleChain(ExampleKeys(32), TOKENS)
    first = list(chain.keys(1))
    assert chain.keys(3)[:1] == first
    assert chain.keys(2) == ExampleChain(ExampleKeys(32), TOKENS).keys(3)


def test_media_count_and_salts_do_not() -> None:
    media = (MultimodalItem("abc", 0, 3), MultimodalItem("def", 50, 3))
    keys = ExampleChain(ExampleKeys(32), TOKENS, Extras(multimodal=media, salt="s"))
    assert keys.keys(3)[2] == key_of_name(name_of(3, "abc-def"))
    assert ExampleChain(ExampleKeys(32), TOKENS, Extras(salt="s")).keys(1)[0] == key_of_name(name_of(1))


def test_what_is_no_token_has_no_name() -> None:
    with pytest.raises(UnhashableError):
        ExampleChain(ExampleKeys(1), [1 << 63])
    with pytest.raises(UnhashableError):
        ExampleChain(ExampleKeys(1), ["a"])  # type: ignore[list-item]


def test_they_are_keys_of_another_kind() -> None:
    assert ExampleKeys(32) != LearnedKeys(32)
    assert len({ExampleKeys(32), LearnedKeys(32), ExampleKeys(32)}) == 2
