"""``hashing/chain.py``: vLLM's recorded hashes, laziness, and the memory that must never change an answer."""

import random
from array import array
from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashing.chain import Chain, ChainMemory, continue_chain, hash_blocks
from hashing.errors import RecipeError, UnhashableError
from hashing.external import key_of
from hashing.extras import NO_EXTRAS, Extras, Lora, MultimodalItem
from hashing.recipes import Algorithm, Recipe
from hashing.serialize import BLOCK_HASHERS, BlockExtra

AD = Lora("ad", "/m/ad", 1)
C = [128000, 255, 256, 65535, 65536, 199997, 0, 1] * 2
ONE_TO_16, ONE_TO_32 = range(1, 17), range(1, 33)
F = Extras(multimodal=(MultimodalItem("abc", 3, 4),))
H = Extras(AD, (MultimodalItem("abc", -5, 9),), "s")  # an item that began five tokens before these
SALTED, ADAPTED = Extras(salt="salt-1"), Extras(lora=AD)

# Recorded from vLLM 0.32.0: algorithm, seed, block size, tokens, extras, index of the block, digest, published integer.
VECTORS: list[tuple[Algorithm, str | None, int, Sequence[int], Extras, int, str, int]] = [
    ("sha256", None, 16, ONE_TO_16, NO_EXTRAS, 0,
     "7b255da405e1d722823892e4fef187b4d8ac78215d7f0dd2137bb037547f4caf", 1403909460543360175),
    ("sha256", None, 16, range(32), NO_EXTRAS, 0,
     "fe8fa5dda3210d0ca2031e37cbe3b001186773cd1c710beb2d45fcb51d434798", 3262291359910021016),
    ("sha256", None, 16, range(32), NO_EXTRAS, 1,
     "8be7aaa33831156d316f1f463ae57e643deb63f42e633e2d631df88815cc4629", 7142137847444424233),
    ("sha256", None, 16, C, NO_EXTRAS, 0,
     "f9d21fc41fb0de3775365c406ce5750833cae0e41047ef5e92ea40985008d185", 10586344897009734021),
    ("sha256", None, 16, ONE_TO_32, SALTED, 0,
     "b38048d1c25004dfc5a759555919d1c89a727a48a4b35600c4502032388f2443", 14145841829640086595),
    ("sha256", None, 16, ONE_TO_32, SALTED, 1,
     "3b84438221e9c89489672725d441f25382838b061e65d2a9c6af010659cbd43c", 14316662867222058044),
    ("sha256", None, 16, ONE_TO_32, ADAPTED, 0,
     "60106b5db1f4ab9bec37f64724e241b99c5fe918526e7615ddc2d001c4865a8b", 15979563133874625163),
    ("sha256", None, 16, ONE_TO_32, ADAPTED, 1,
     "51966bf217b20804dad627f79f083a56d642c2803d2c1e7745333b6d520619ce", 4986394553142876622),
    ("sha256", None, 16, ONE_TO_16, F, 0,
     "a51939e1b1eebfc139e70e4c8cb78ef3cbbfcac434a3f5832a34c69173e105e9", 3041273976398611945),
    ("sha256", None, 4, [7, 7, 7, 7], NO_EXTRAS, 0,
     "9df1abb8a62e5a80dddafad39ab7897b8c2339852bffb8bdc834d851e6ff31f4", 14426393352653976052),
    ("sha256", None, 4, [1, 2, 3, 4], H, 0,
     "9d838f258a49eb1d3bae55b9d3356826d50140db501b6f8918a67d0e98591c2c", 1776244604683230252),
    ("sha256", None, 3, [1, 2, 3], NO_EXTRAS, 0,
     "d6a0584b5995a886add7c1f59433a9171ba6fdf4b936d0b68e6df127e2244c82", 10263124279447276674),
    ("sha256", None, 1, [5], NO_EXTRAS, 0,
     "92b6415c9587c9e2bd70818b16406dc713e7cc19ffa91be533188ee94f328006", 3681849828082614278),
    ("sha256", "0", 16, ONE_TO_16, NO_EXTRAS, 0,
     "bea72b7d33de03c1aa715efbb492d0e0d3801f00c1f985756896072ae8b31325", 7536218907325174565),
    ("sha256", "0", 16, C, NO_EXTRAS, 0,
     "cf81724d388411ba5fe6d96d9ddcded9eca7137f90014f5c15f1b102ff8eaa36", 1581239570619345462),
    ("sha256", "0", 4, [1, 2, 3, 4], H, 0,
     "6ab8b99e9dc8f636e2de8a11e7fe26fd3238ef35987b4cdb64ab63aa3edb06b0", 7254001207660447408),
    ("sha256_cbor", None, 16, ONE_TO_16, NO_EXTRAS, 0,
     "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682", 8866452693264111234),
    ("sha256_cbor", None, 16, range(32), NO_EXTRAS, 1,
     "c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c", 17911472383915781900),
    ("sha256_cbor", None, 16, C, NO_EXTRAS, 0,
     "989a6a013aa248e0f2239c9081a78d9cb62304f0dc92348a9a6366d8e2ecb74e", 11124848586241390414),
    ("sha256_cbor", None, 16, ONE_TO_32, SALTED, 0,
     "2ea138e1aa51ede5701da1574e8f5c0e4dfb82e96fe00090d69c1b6b82e2944a", 15464265369054778442),
    ("sha256_cbor", None, 16, ONE_TO_16, F, 0,
     "9d28b63c0975e1ab208eb18abe4b27dd8f26ba63851fb39a4da34390ea083ef3", 5594389451805048563),
    ("sha256_cbor", "0", 16, ONE_TO_16, NO_EXTRAS, 0,
     "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea", 3236607068019569386),
    ("xxhash", "0", 16, ONE_TO_16, NO_EXTRAS, 0,
     "6ba7d7fc1608e5f0a4612b1b0c87458f", 11844795890135418255),
    ("xxhash", "0", 16, C, NO_EXTRAS, 0,
     "6aa7e5267250e6160d69e5d32901a37c", 966556290136515452),
    ("xxhash_cbor", "0", 16, ONE_TO_16, NO_EXTRAS, 0,
     "c2d7a75070fc6d6b0c3fb0af456c1009", 882618318818381833),
]  # fmt: skip

# The forms before 0.31, for tokens 1..16 in one block and seed "0": release, extras, integers of sha256 and sha256_cbor.
OLD_VECTORS: list[tuple[str, Extras, int, int]] = [
    ("0.11.0", SALTED, 9162848584827018740, 14196867505284063976),
    ("0.14.0", ADAPTED, 7045440284273377969, 13137994012048964687),
    ("0.11.0", ADAPTED, 15640735585847050463, 17802498214407177601),
    ("0.18.0", F, 1787419492148379480, 8028874423489213987),
    ("0.22.0", F, 8774683846587977189, 831567707169730197),
    ("0.30.0", H, 1381738964652525572, 12298240428781815878),
]

# Read from the events of running engines (0.32.0, no seed, block 32): algorithm, how many times 1..32, extras, index, integer.
LIVE: list[tuple[Algorithm, int, Extras, int, int]] = [
    ("sha256", 1, NO_EXTRAS, 0, 11290800355336220572),
    ("sha256", 2, NO_EXTRAS, 1, 5108878511495285518),
    ("sha256", 1, SALTED, 0, 9836861372580751928),
    ("sha256_cbor", 1, NO_EXTRAS, 0, 12204319907483556814),
]


@pytest.mark.parametrize("vector", VECTORS)
def test_recorded_hashes_of_vllm(
    vector: tuple[Algorithm, str | None, int, Sequence[int], Extras, int, str, int],
) -> None:
    algorithm, seed, block_size, tokens, extras, index, digest, published = vector
    chain = Chain(Recipe(algorithm, block_size, seed), tokens, extras)
    assert chain.digest(index).hex() == digest
    assert chain.keys(index + 1)[index] == published


@pytest.mark.parametrize(("version", "extras", "sha256", "sha256_cbor"), OLD_VECTORS)
def test_recorded_hashes_in_the_forms_of_older_releases(
    version: str, extras: Extras, sha256: int, sha256_cbor: int
) -> None:
    algorithms: dict[Algorithm, int] = {"sha256": sha256, "sha256_cbor": sha256_cbor}
    for algorithm, published in algorithms.items():
        recipe = Recipe.for_version(version, algorithm=algorithm, seed="0")
        assert Chain(recipe, ONE_TO_16, extras).keys(1) == [published]


@pytest.mark.parametrize(("algorithm", "repeats", "extras", "index", "published"), LIVE)
def test_hashes_seen_in_events_of_running_engines(
    algorithm: Algorithm, repeats: int, extras: Extras, index: int, published: int
) -> None:
    assert Chain(Recipe(algorithm, 32), [*ONE_TO_32] * repeats, extras).keys(2)[index] == published


def test_the_recorded_bytes_of_an_engine_with_a_seed() -> None:
    digest = Chain(Recipe(block_size=32, seed="0"), ONE_TO_32).digest(0)
    assert digest.hex() == "2f310d760d759dff04c4d10761d61d07721dd5f28f17b0b2b1aca189072f77a2"


class Counter:
    """Stands in for a block hasher and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self._hash_block = BLOCK_HASHERS["sha256"]

    def __call__(self, parent: bytes, tokens: tuple[int, ...], extra: BlockExtra) -> bytes:
        self.calls += 1
        return self._hash_block(parent, tokens, extra)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counting = Counter()
    monkeypatch.setitem(BLOCK_HASHERS, "sha256", counting)
    return counting


def test_a_chain_hashes_what_it_is_asked_for_and_nothing_twice(counter: Counter) -> None:
    chain = Chain(Recipe(), range(5000), memory=ChainMemory())
    assert (len(chain), chain.token_count, chain.block_size) == (312, 5000, 16)
    assert (counter.calls, chain.hashed) == (0, 0)
    for count in (1, 1, 8, 64, 65, 300, 300, 10_000):
        found = chain.keys(count)
        assert counter.calls == chain.hashed == len(found) == min(count, 312)


def test_a_remembered_stride_comes_whole_and_costs_no_hash(counter: Counter) -> None:
    memory = ChainMemory()
    first = Chain(Recipe(), range(5000), memory=memory).keys(312)
    calls = counter.calls
    again = Chain(Recipe(), [*range(4096), 7, *range(4097, 9000)], memory=memory)
    assert again.keys(1) == first[:64]
    assert again.keys(200) == first[:256]
    assert (again.hashed, counter.calls - calls) == (256, 0)
    assert again.keys(257)[256] != first[256]
    assert counter.calls - calls == 1


def test_a_digest_is_hashed_again_within_its_stride_only(counter: Counter) -> None:
    chain = Chain(Recipe(), range(5000))
    chain.keys(312)
    calls = counter.calls
    chain.digest(300)
    assert counter.calls - calls == 300 - 256 + 1


def test_the_keys_are_one_growing_list() -> None:
    chain = Chain(Recipe(), range(64))
    assert chain.keys(1) is chain.keys(4)
    assert chain.keys(0) == chain.keys(4)


def test_a_prompt_below_one_block_has_no_keys() -> None:
    assert Chain(Recipe(), range(15)).keys(5) == []
    assert Chain(Recipe(), []).keys(1) == []


@pytest.mark.parametrize("index", [-1, 4])
def test_a_block_that_is_not_there_has_no_digest(index: int) -> None:
    with pytest.raises(IndexError):
        Chain(Recipe(), range(64 + 15)).digest(index)


tokens_lists = st.lists(st.integers(0, 200_000), max_size=120)
extras_kinds = st.builds(
    Extras,
    lora=st.none() | st.just(AD),
    multimodal=st.lists(
        st.builds(MultimodalItem, st.sampled_from(["a", "abc"]), st.integers(0, 300), st.integers(1, 200)), max_size=3
    ).map(tuple),
    salt=st.sampled_from([None, "s"]),
    embeds=st.sampled_from([(), tuple(bytes([index]) * 32 for index in range(200))]),
)
recipes = st.builds(
    Recipe, st.sampled_from(get_args(Algorithm)), block_size=st.integers(1, 5), seed=st.sampled_from(["0", "1"])
)


@given(recipes, tokens_lists, extras_kinds, st.data())
def test_a_chain_continued_from_any_block_is_the_whole_chain(
    recipe: Recipe, tokens: list[int], extras: Extras, data: st.DataObject
) -> None:
    chain = Chain(recipe, tokens, extras)
    whole = [chain.digest(index) for index in range(len(chain))]
    assert continue_chain(recipe, recipe.none_hash(), tokens, extras) == whole
    cut = data.draw(st.integers(0, len(whole)))
    parent = whole[cut - 1] if cut else recipe.none_hash()
    assert continue_chain(recipe, parent, tokens[cut * recipe.block_size :], extras, cut) == whole[cut:]


def uncached(recipe: Recipe, tokens: Sequence[int], extras: Extras) -> list[int]:
    return [key_of(digest) for digest in continue_chain(recipe, recipe.none_hash(), tokens, extras)]


@settings(max_examples=40)
@given(st.randoms(use_true_random=False), st.sampled_from([100, 2_000, 5_000, 1 << 20]), st.data())
def test_a_memory_of_any_size_changes_no_answer(draw: random.Random, max_bytes: int, data: st.DataObject) -> None:
    memory = ChainMemory(max_bytes, secret=draw.getrandbits(64))
    few_recipes = [Recipe("sha256", 2), Recipe("sha256", 1), Recipe("xxhash", 2, seed="0")]
    trunk = [draw.randrange(1000) for _ in range(600)]
    for _ in range(8):
        recipe, extras = draw.choice(few_recipes), data.draw(st.just(NO_EXTRAS) | extras_kinds)
        cut = draw.randrange(600)
        prompt = trunk[:cut] + [draw.randrange(3) for _ in range(draw.randrange(400))]
        extras = Extras(extras.lora, extras.multimodal, extras.salt, tuple(b"e" * 32 for _ in extras.embeds and prompt))
        chain = Chain(recipe, prompt, extras, memory=memory)
        for count in (1, 8, 64, len(chain)):
            chain.keys(count)
        expected = uncached(recipe, prompt, extras)
        assert chain.keys(len(chain)) == expected
        assert [key_of(chain.digest(index)) for index in range(0, len(chain), 37)] == expected[::37]
        assert memory.bytes_held <= max_bytes


def test_a_memory_keeps_equal_strides_at_different_places_apart() -> None:
    memory, tokens = ChainMemory(), [7] * 3200
    early, late = Chain(Recipe(), tokens, memory=memory), Chain(Recipe(), tokens, memory=memory)
    early.keys(1)  # not at a stride's start any more when the other chain makes the stride known
    expected = uncached(Recipe(), tokens, NO_EXTRAS)
    assert late.keys(200) == expected
    assert early.keys(200) == expected


def test_a_memory_keeps_requests_apart_that_differ_in_extras_only() -> None:
    memory = ChainMemory()
    kinds = [NO_EXTRAS, SALTED, ADAPTED, Extras(lora=Lora("ad", "/other")), F, Extras(embeds=(b"e" * 32,) * 64)]
    for _ in range(2):
        found = {Chain(Recipe(), range(1024), extras, memory=memory).keys(64)[63] for extras in kinds}
        assert len(found) == len(kinds)


def test_strides_beside_an_item_are_remembered_and_the_item_s_own_are_not(counter: Counter) -> None:
    memory, extras = ChainMemory(), Extras(multimodal=(MultimodalItem("abc", 1030, 4),))
    Chain(Recipe(), range(3072), extras, memory=memory).keys(192)
    calls = counter.calls
    Chain(Recipe(), range(3072), extras, memory=memory).keys(192)
    assert counter.calls - calls == 64


def test_equal_tokens_of_any_integer_type_hash_alike() -> None:
    expected = Chain(Recipe(block_size=4), [0, 1, 1, 200]).keys(1)
    for tokens in ([False, True, 1, 200], b"\0\1\1\xc8", bytearray(b"\0\1\1\xc8"), array("q", [0, 1, 1, 200])):
        assert Chain(Recipe(block_size=4), tokens).keys(1) == expected


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
def test_tokens_beyond_32_bits_are_hashed_as_they_are(algorithm: Algorithm) -> None:
    recipe, tokens = Recipe(algorithm, 2, "0"), (1 << 32, (1 << 64) - 1)
    expected = BLOCK_HASHERS[algorithm](recipe.none_hash(), tokens, None)
    assert Chain(recipe, tokens, memory=ChainMemory()).digest(0) == expected


def test_wide_and_narrow_tokens_share_no_memory() -> None:
    memory, recipe = ChainMemory(), Recipe(block_size=1)
    narrow, wide = [5] * 64, [5] * 63 + [5 + (1 << 32)]
    for tokens in (narrow, wide, narrow, [*narrow, 1 << 40]):
        assert Chain(recipe, tokens, memory=memory).keys(64) == uncached(recipe, tokens[:64], NO_EXTRAS)


@pytest.mark.parametrize("bad", [-1, 1 << 64, 1.0, "5", None])
def test_what_is_no_token_is_named_with_its_place(bad: object) -> None:
    with pytest.raises(UnhashableError, match=r"^tokens\[2\]: .* is not a token id"):
        Chain(Recipe(), [1, 2, bad, 4])  # type: ignore[list-item]  # as it may come out of a client's JSON


def test_text_is_not_taken_for_tokens() -> None:
    for text in ("123", ""):
        with pytest.raises(UnhashableError, match=r"^tokens\[0\]: "):
            Chain(Recipe(), text)  # type: ignore[arg-type]  # as it may come out of a client's JSON


def test_tokens_are_copied() -> None:
    tokens = list(range(32))
    chain = Chain(Recipe(), tokens)
    tokens[20] = 7
    assert chain.keys(2) == uncached(Recipe(), range(32), NO_EXTRAS)


def test_a_chain_without_a_known_root_is_refused_at_once() -> None:
    with pytest.raises(RecipeError, match=r"^seed: "):
        Chain(Recipe("xxhash"), range(32))


def test_a_chain_that_lacks_embeddings_stays_usable() -> None:
    chain = Chain(Recipe(), range(64), Extras(embeds=(b"e" * 32,) * 2))
    with pytest.raises(UnhashableError, match=r"^embeds: "):
        chain.keys(3)
    assert len(chain.keys(2)) == chain.hashed == 2


def test_blocks_with_ready_made_extras_end_with_the_shorter_of_the_two() -> None:
    recipe, root = Recipe(), Recipe().none_hash()
    assert hash_blocks(recipe, root, range(40), [None] * 9) == continue_chain(recipe, root, range(40))
    assert len(hash_blocks(recipe, root, range(40), [None])) == 1
