"""``hashing/extras.py``: which block gets which extra, in which form, and which strings are one object."""

import pickle
import pickletools

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hashing.errors import UnhashableError
from hashing.extras import NO_EXTRAS, BlockExtras, Extras, Lora, MultimodalItem, from_event
from hashing.recipes import Recipe
from hashing.serialize import BlockExtra

BLOCK_4 = Recipe(block_size=4)
AD = Lora("ad", "/m/ad", 1)

items = st.builds(
    MultimodalItem, st.sampled_from(["a", "abc", "xyz"]), offset=st.integers(0, 40), length=st.integers(0, 30)
)
requests = st.builds(
    Extras,
    lora=st.none() | st.just(AD),
    multimodal=st.lists(items, max_size=5).map(tuple),
    salt=st.sampled_from([None, "", "s"]),
    embeds=st.sampled_from([(), tuple(bytes([index]) * 32 for index in range(20))]),
)


def blocks(recipe: Recipe, extras: Extras, count: int) -> list[BlockExtra]:
    return list(BlockExtras(recipe, extras).of(0, count))


def test_a_plain_request_has_no_extras() -> None:
    assert blocks(BLOCK_4, NO_EXTRAS, 3) == [None, None, None]


def test_the_adapter_is_in_every_block_and_the_salt_in_the_first() -> None:
    lora, salt = ("lora", "ad", "/m/ad"), ("cache_salt", "s")
    assert blocks(BLOCK_4, Extras(lora=AD, salt="s"), 3) == [(lora, salt), (lora,), (lora,)]
    assert blocks(BLOCK_4, Extras(salt="s"), 2) == [(salt,), None]


def test_an_empty_salt_is_no_salt() -> None:
    assert blocks(BLOCK_4, Extras(salt=""), 1) == [None]


def test_an_item_is_in_each_block_it_touches_with_its_start_counted_from_the_block() -> None:
    extras = Extras(multimodal=(MultimodalItem("abc", 3, 6),))
    assert blocks(BLOCK_4, extras, 4) == [(("mm", "abc", 3),), (("mm", "abc", -1),), (("mm", "abc", -5),), None]


def test_the_order_is_adapter_items_salt_embeddings() -> None:
    extras = Extras(AD, (MultimodalItem("b", 2, 1), MultimodalItem("a", 1, 1)), "s", (b"e" * 32,))
    assert blocks(BLOCK_4, extras, 1) == [
        (("lora", "ad", "/m/ad"), ("mm", "a", 1), ("mm", "b", 2), ("cache_salt", "s"), ("prompt_embeds", b"e" * 32))
    ]


@pytest.mark.parametrize(
    ("version", "extra"),
    [
        ("0.11.0", (1, "abc", "s")),
        ("0.18.0", ("ad", "abc", "s", b"e")),
        ("0.30.0", ("ad", ("abc", 1), "s", b"e")),
        ("0.32.0", (("lora", "ad", "/m/ad"), ("mm", "abc", 1), ("cache_salt", "s"), ("prompt_embeds", b"e"))),
    ],
)
def test_each_release_has_its_form(version: str, extra: BlockExtra) -> None:
    recipe = Recipe.for_version(version, block_size=4, seed="0")
    assert blocks(recipe, Extras(AD, (MultimodalItem("abc", 1, 1),), "s", (b"e",)), 1) == [extra]


def test_an_unfinished_item_hides_a_later_one_in_its_block_as_in_vllm() -> None:
    extras = Extras(multimodal=(MultimodalItem("video", 0, 8), MultimodalItem("audio", 2, 10)))
    found = blocks(BLOCK_4, extras, 3)
    assert found == [(("mm", "video", 0),), (("mm", "video", -4), ("mm", "audio", -2)), (("mm", "audio", -6),)]


def test_nothing_is_added_after_the_end_of_the_last_item_as_in_vllm() -> None:
    extras = Extras(multimodal=(MultimodalItem("video", 0, 12), MultimodalItem("audio", 1, 2)))
    assert blocks(BLOCK_4, extras, 3) == [(("mm", "video", 0),), None, None]


@given(requests, st.integers(0, 20), st.integers(0, 20))
@example(Extras(salt="s"), 0, 0)
def test_any_range_of_blocks_is_a_cut_out_of_the_whole(extras: Extras, first: int, last: int) -> None:
    assert list(BlockExtras(BLOCK_4, extras).of(first, last)) == blocks(BLOCK_4, extras, 20)[first:last]


@given(requests, st.integers(0, 15), st.integers(1, 5))
def test_where_extras_are_uniform_items_and_embeddings_change_nothing(extras: Extras, first: int, count: int) -> None:
    whole = BlockExtras(BLOCK_4, extras)
    if whole.is_uniform(first, first + count):
        plain = BlockExtras(BLOCK_4, Extras(lora=extras.lora, salt=extras.salt))
        assert list(whole.of(first, first + count)) == list(plain.of(first, first + count))
        assert whole.identity() == plain.identity()


def test_identity_tells_apart_all_that_is_hashed() -> None:
    recipes = [BLOCK_4, Recipe(), Recipe("sha256_cbor"), Recipe(seed="0"), Recipe.for_version("0.30.0")]
    adapters = [None, AD, Lora("ad", "/m/ad2"), Lora("da", "/m/ad")]
    everything = [
        BlockExtras(recipe, Extras(lora=lora, salt=salt)).identity()
        for recipe in recipes
        for lora in adapters
        for salt in (None, "s", "t")
    ]
    # 0.30 does not hash the adapter's path, so two of the four adapters are one to it.
    assert len(everything) - len(set(everything)) == 3


def memo_references(extra: BlockExtra) -> int:
    pickled = pickle.dumps((b"p" * 32, (1, 2), extra), 5)
    return sum(opcode.name == "BINGET" for opcode, _, _ in pickletools.genops(pickled))


def test_only_tags_are_shared_objects_however_the_caller_built_its_strings() -> None:
    text = "".join(["m", "m"])
    same = Extras(Lora(text, text), (MultimodalItem(text, 0, 1), MultimodalItem(text, 1, 1)), text)
    assert memo_references(blocks(BLOCK_4, same, 1)[0]) == 1


def test_strings_of_one_latin_character_are_shared_as_cpython_shares_them_in_the_engine() -> None:
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(["é", "é"]))
    assert decoded[0] is decoded[1]
    assert memo_references(blocks(BLOCK_4, Extras(Lora("é", "/m"), salt="é"), 1)[0]) == 1


@given(requests)
def test_events_give_back_what_was_hashed(extras: Extras) -> None:
    for hashed in blocks(BLOCK_4, extras, 20):
        published = hashed and [list(key[1:]) if key[0] == "mm" else key[1] for key in hashed if isinstance(key, tuple)]
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(published))
        assert from_event(BLOCK_4, decoded, extras.lora) == hashed


def test_events_before_the_tags_are_hashed_as_they_are() -> None:
    recipe = Recipe.for_version("0.30.0")
    assert from_event(recipe, ["ad", ["abc", -5], "s", b"e"], AD) == ("ad", ("abc", -5), "s", b"e")
    assert from_event(recipe, None, None) is None


@pytest.mark.parametrize("published", [[1.5], [["abc"]], [None], [{"mm": 1}]])
def test_an_event_with_a_shape_nobody_publishes_is_refused(published: list[object]) -> None:
    with pytest.raises(UnhashableError, match=r"^extra_keys: "):
        from_event(BLOCK_4, published, None)


def test_what_the_recipe_needs_and_is_not_there_is_named() -> None:
    with pytest.raises(UnhashableError, match=r"^lora\.path: .* GET /v1/models"):
        BlockExtras(BLOCK_4, Extras(lora=Lora("ad")))
    with pytest.raises(UnhashableError, match=r"^lora\.id: "):
        BlockExtras(Recipe.for_version("0.11.0"), Extras(lora=Lora("ad")))
    with pytest.raises(UnhashableError, match=r"^embeds: 1 entries for 2 blocks"):
        BlockExtras(BLOCK_4, Extras(embeds=(b"e",))).of(0, 2)
    with pytest.raises(UnhashableError, match=r"^salt: .*Unicode"):
        BlockExtras(BLOCK_4, Extras(salt="\ud800"))
