"""``hashing/own.py``: keys of our own, and the local hashes that Dynamo's clients send."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashing.chain import pack
from hashing.errors import UnhashableError
from hashing.extras import NO_EXTRAS, Extras, Lora, MultimodalItem
from hashing.own import LearnedKeys, OwnChain, follow, local_hashes, root

LORA = Lora("sql", "/adapters/sql")
TOKENS = list(range(40))


def keys(tokens: Sequence[int] = TOKENS, extras: Extras = NO_EXTRAS, size: int = 4, *, tells: bool = True) -> list[int]:
    chain = OwnChain(LearnedKeys(size, tells), tokens, extras)
    return list(chain.keys(len(chain)))


# ai-dynamo-runtime 1.6.1: dynamo._core.compute_block_hash_for_seq(tokens, block_size)
DYNAMO = [
    (list(range(1, 33)), 16, [16863443419780771464, 2287610619914608821]),
    ([128000, 255, 256, 65535, 65536, 199997, 0, 1] * 2, 8, [7285967387911040797] * 2),
    (
        list(range(35)),
        4,
        [
            9143094415614847814,
            12124091508212882195,
            1088361764653601668,
            16024980976528976948,
            17686272931471592693,
            13603407971999731239,
            13924736125552028977,
            9567046729658662198,
        ],
    ),
]


@pytest.mark.parametrize(("tokens", "size", "expected"), DYNAMO)
def test_local_hashes_are_dynamos(tokens: list[int], size: int, expected: list[int]) -> None:
    assert [int.from_bytes(each, "big") for each in local_hashes(pack(tokens), size)] == expected
    signed = [each - (1 << 64) if each >> 63 else each for each in expected]
    for hashes in (expected, signed):
        chain = OwnChain.from_local_hashes(size, hashes)
        assert (len(chain), chain.block_size) == (len(tokens) // size, size)
        assert chain.keys(99) == keys(tokens, size=size)
    salted = Extras(lora=LORA, salt="pepper")
    assert OwnChain.from_local_hashes(size, expected, salted).keys(99) == keys(tokens, salted, size)
    assert OwnChain.from_local_hashes(size, []).keys(1) == []


def test_keys_stay_what_they_were() -> None:
    """Other processes and saved indexes hold them."""
    assert keys(range(1, 9)) == [9169827346654895453, 16038046254028940551]
    assert keys(range(1, 9), Extras(lora=LORA, salt="pepper", multimodal=(MultimodalItem("cat", 2, 3),))) == [
        13196552345883832207,
        7078786246869753265,
    ]


@given(st.lists(st.integers(0, 1 << 17), max_size=60), st.integers(1, 9), st.lists(st.integers(0, 70), max_size=4))
def test_a_chain_is_the_same_however_it_is_asked(tokens: list[int], size: int, counts: list[int]) -> None:
    chain = OwnChain(LearnedKeys(size), tokens)
    assert len(chain) == len(tokens) // size
    for count in counts:
        assert len(chain.keys(count)) >= min(count, len(chain))
    assert chain.keys(99) == keys(tokens, size=size) == follow(root(None, None), local_hashes(pack(tokens), size))


def test_each_key_covers_all_that_lies_before_it() -> None:
    for at in range(len(TOKENS)):
        changed = keys([*TOKENS[:at], 99, *TOKENS[at + 1 :]])
        assert [ours == other for ours, other in zip(keys(), changed, strict=True)] == [
            block < at // 4 for block in range(10)
        ]


SEPARATE = [
    NO_EXTRAS,
    Extras(salt="sql"),
    Extras(lora=Lora("sql")),
    Extras(lora=LORA),
    Extras(lora=Lora("sql", "/adapters/other")),
    Extras(lora=LORA, salt="sql"),
    Extras(lora=Lora("", "sql")),
    Extras(multimodal=(MultimodalItem("sql", 0, 4),)),
    Extras(multimodal=(MultimodalItem("sql", 0, 2), MultimodalItem("sql", 2, 2))),
    Extras(multimodal=(MultimodalItem("sql", -2, 6),)),
    Extras(embeds=(b"sql",) * 10),
    Extras(embeds=(b"",) * 10),
]


def test_no_two_kinds_of_prompt_share_a_key() -> None:
    made = [keys(extras=extras) for extras in SEPARATE]
    assert len({key for each in made for key in each}) == 10 * len(SEPARATE)
    assert keys(extras=Extras(salt="")) == keys(), "an empty salt is none, as in vLLM"


def test_an_image_counts_from_the_block_on_in_which_it_begins() -> None:
    cat, dog = (keys(extras=Extras(multimodal=(MultimodalItem(name, 10, 7),))) for name in ("cat", "dog"))
    assert cat[:2] == dog[:2] == keys()[:2]
    assert not set(cat[2:]) & {*dog, *keys()}


def test_where_events_tell_no_extras_a_salt_is_left_out_and_an_image_ends_the_chain() -> None:
    image = Extras(lora=LORA, salt="pepper", multimodal=(MultimodalItem("dog", 30, 2), MultimodalItem("cat", 10, 7)))
    assert keys(extras=image, tells=False) == keys(extras=Extras(lora=LORA))[:2]
    assert keys(extras=Extras(salt="pepper"), tells=False) == keys()


def test_tokens_of_more_than_32_bits_are_tokens_like_others() -> None:
    wide = keys([*TOKENS[:5], 1 << 32, *TOKENS[6:]])
    assert wide[0] == keys()[0]
    assert not set(wide[1:]) & set(keys())
    assert wide[1:] != keys([*TOKENS[:5], 2 << 32, *TOKENS[6:]])[1:]
    low, high = 7, 9
    assert keys([low | high << 32] * 2, size=2) != keys([low, high, low, high], size=4), "the same bytes"


@pytest.mark.parametrize("tokens", [[-1] * 4, [1 << 64] * 4, [0.5] * 4, ["a"] * 4])
def test_what_is_no_token_has_no_chain(tokens: list[int]) -> None:
    with pytest.raises(UnhashableError, match=r"tokens\[0\]"):
        OwnChain(LearnedKeys(4), tokens)


def test_text_that_is_no_text_has_no_chain() -> None:
    with pytest.raises(UnhashableError, match="salt or lora"):
        OwnChain(LearnedKeys(4), TOKENS, Extras(salt="\udc80"))


def test_embeddings_that_end_too_early_say_so() -> None:
    chain = OwnChain(LearnedKeys(4), TOKENS, Extras(embeds=(b"x",) * 3))
    assert len(chain.keys(3)) == 3
    with pytest.raises(UnhashableError, match="embeds"):
        chain.keys(4)
