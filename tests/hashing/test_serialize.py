"""``hashing/serialize.py``: the bytes that are hashed, against both layouts written by hand."""

import struct
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from hashing.extras import BlockExtras, Extras, Lora, MultimodalItem
from hashing.recipes import Recipe
from hashing.serialize import (
    BLOCK_HASHERS,
    DIGEST_BYTES,
    Algorithm,
    BlockExtra,
    Encodable,
    _EncodedInts,
    cbor,
    pickled,
    seed_digest,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=2, max_size=300)
tokens = st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=40).map(tuple)
parents = st.sampled_from([16, 32]).flatmap(lambda width: st.binary(min_size=width, max_size=width))


@st.composite
def extras_of_a_block(draw: st.DrawFn) -> BlockExtra:
    """As ``BlockExtras`` builds them: every string an object of its own, the tags shared."""
    items = st.builds(MultimodalItem, texts, st.integers(0, 15), st.just(1))
    extras = Extras(
        lora=draw(st.none() | st.builds(Lora, texts, texts)),
        multimodal=tuple(draw(st.lists(items, max_size=4))),
        salt=draw(st.none() | texts),
        embeds=tuple(draw(st.lists(st.binary(min_size=32, max_size=32), max_size=1))),
    )
    return next(iter(BlockExtras(Recipe(), extras).of(0, 1)))


class PickleByHand:
    """Protocol 5 for what a block consists of: opcodes, and a memo that numbers objects as they come."""

    def __init__(self) -> None:
        self.out = b""
        self.mm_tag: int | None = None
        self.memoised = 0

    def memoise(self, code: bytes) -> None:
        self.out += code + b"\x94"
        self.memoised += 1

    def put(self, value: Encodable) -> None:
        if value is None:
            self.out += b"\x4e"
        elif isinstance(value, int):
            self.out += self.integer(value)
        elif isinstance(value, bytes):
            self.memoise(b"\x43" + bytes([len(value)]) + value)
        elif isinstance(value, str):
            text = value.encode()
            short = b"\x8c" + bytes([len(text)]) if len(text) < 256 else b"\x58" + struct.pack("<I", len(text))
            self.memoise(short + text)
        else:
            self.put_tuple(value)

    def put_tuple(self, value: tuple[Encodable, ...]) -> None:
        self.out += b"\x28" if len(value) > 3 else b""
        for position, member in enumerate(value):
            if position == 0 and member == "mm" and len(value) == 3:
                self.put_mm_tag()
            else:
                self.put(member)
        self.memoise({1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(value), b"\x74"))

    def put_mm_tag(self) -> None:
        """The one object that a block can hold twice."""
        if self.mm_tag is not None:
            self.out += b"\x68" + bytes([self.mm_tag])
            return
        self.mm_tag = self.memoised
        self.put("mm")

    @staticmethod
    def integer(value: int) -> bytes:
        if 0 <= value < 256:
            return b"\x4b" + bytes([value])
        if 0 <= value < 1 << 16:
            return b"\x4d" + struct.pack("<H", value)
        return b"\x4a" + struct.pack("<i", value)


def pickle_by_hand(value: Encodable) -> bytes:
    writer = PickleByHand()
    writer.put(value)
    body = writer.out + b"."
    frame = b"\x95" + struct.pack("<Q", len(body)) if len(body) >= 4 else b""
    return b"\x80\x05" + frame + body


def cbor_by_hand(value: Encodable) -> bytes:
    def head(major: int, argument: int) -> bytes:
        for limit, code, form in ((1 << 8, 24, ">B"), (1 << 16, 25, ">H"), (1 << 32, 26, ">I")):
            if argument < 24:
                return bytes([major * 32 + argument])
            if argument < limit:
                return bytes([major * 32 + code]) + struct.pack(form, argument)
        return bytes([major * 32 + 27]) + struct.pack(">Q", argument)

    match value:
        case None:
            return b"\xf6"
        case int():
            return head(0, value) if value >= 0 else head(1, -value - 1)
        case bytes():
            return head(2, len(value)) + value
        case str():
            return head(3, len(value.encode())) + value.encode()
        case _:
            return head(4, len(value)) + b"".join(cbor_by_hand(member) for member in value)


@given(parents, tokens, extras_of_a_block())
def test_pickle_has_the_documented_layout(parent: bytes, block: tuple[int, ...], extra: BlockExtra) -> None:
    assert pickled((parent, block, extra)) == pickle_by_hand((parent, block, extra))


@given(parents, tokens, extras_of_a_block())
def test_cbor_has_the_documented_layout(parent: bytes, block: tuple[int, ...], extra: BlockExtra) -> None:
    assert cbor((parent, block, extra)) == cbor_by_hand((parent, block, extra))


@pytest.mark.parametrize(
    "value", [0, 23, 24, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1, -1, -24, -25, -257]
)
def test_cbor_integers_have_the_shortest_head(value: int) -> None:
    assert cbor(value) == cbor_by_hand(value)


def test_the_documented_example_block_in_both_layouts() -> None:
    parent, block = b"\x11" * 32, (1, 300, 70000, 5)
    assert pickled((parent, block, None)) == bytes.fromhex(
        "80059536000000000000004320" + "11" * 32 + "94284b014d2c014a701101004b0574944e87942e"
    )
    assert cbor((parent, block, None)) == bytes.fromhex("835820" + "11" * 32 + "840119012c1a0001117005f6")


@given(parents, tokens, extras_of_a_block(), st.sampled_from(list(DIGEST_BYTES)))
def test_a_block_is_hashed_as_the_triple_of_parent_tokens_and_extra(
    parent: bytes, block: tuple[int, ...], extra: BlockExtra, algorithm: Algorithm
) -> None:
    layout = cbor_by_hand if algorithm.endswith("_cbor") else pickle_by_hand
    serialized = layout((parent, block, extra))
    digest = sha256(serialized).digest() if algorithm.startswith("sha") else xxh3_128_digest(serialized)
    assert BLOCK_HASHERS[algorithm](parent, block, extra) == digest
    assert len(digest) == DIGEST_BYTES[algorithm]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_a_seed_is_hashed_as_bare_text(seed: str) -> None:
    assert seed_digest("sha256", seed) == sha256(pickle_by_hand(seed)).digest()
    assert seed_digest("sha256_cbor", seed) == sha256(cbor_by_hand(seed)).digest()
    assert seed_digest("xxhash", seed) == xxh3_128_digest(pickle_by_hand(seed))
    assert seed_digest("xxhash_cbor", seed) == xxh3_128_digest(cbor_by_hand(seed))


def test_remembered_encodings_are_bounded() -> None:
    encoded = _EncodedInts()
    assert (encoded[5], encoded[1 << 18]) == (b"\x05", b"\x1a\0\4\0\0")
    assert list(encoded) == [5]


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=8).map(tuple))
def test_tokens_beyond_the_remembered_range_are_encoded_alike(block: tuple[int, ...]) -> None:
    hash_block = BLOCK_HASHERS["sha256_cbor"]
    expected = sha256(cbor_by_hand((b"\0" * 32, block, None))).digest()
    assert hash_block(b"\0" * 32, block, None) == hash_block(b"\0" * 32, block, None) == expected
