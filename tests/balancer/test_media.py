"""``balancer/media.py``: pictures in a prompt are known by name and place, or end what is known of it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.media import MAX_ITEMS, NO_MEDIA, UNKNOWN_MEDIA, Media, read_features
from hashing.extras import MultimodalItem


def read(features: Any) -> Media:
    return read_features(json.dumps(features).encode())


def place(offset: int, length: int = 2) -> dict[str, int]:
    return {"offset": offset, "length": length}


def test_items_of_all_kinds_stand_in_the_order_of_their_places() -> None:
    """As vLLM 0.32 renders them, with and without tensors."""
    features = {
        "mm_hashes": {"image": ["cat", "dog"], "audio": ["bark"]},
        "mm_placeholders": {"image": [place(4), place(20, 7)], "audio": [place(9)]},
        "kwargs_data": {"image": ["AAAA", None], "audio": [None]},
        "mm_metadata": None,
    }
    items = (MultimodalItem("cat", 4, 2), MultimodalItem("bark", 9, 2), MultimodalItem("dog", 20, 7))
    assert read(features) == Media(items)
    assert read({**features, "kwargs_data": None}) == Media(items)


@pytest.mark.parametrize("features", [None, {"mm_hashes": {}, "mm_placeholders": {}}, {"mm_placeholders": {}}])
def test_no_features_are_no_media(features: Any) -> None:
    assert read(features) == NO_MEDIA


TWO = {"image": [place(12), place(8)]}


@pytest.mark.parametrize(
    "hashes",
    [
        None,
        5,
        "cat",
        {},
        {"image": "ab"},
        {"image": ["cat"]},
        {"image": ["cat", None]},
        {"image": ["cat", ""]},
        {"image": ["cat", 7]},
        {"image": ["cat", "dog", "cow"]},
        {"image": ["cat", "dog"], "audio": ["bark"]},
        {"audio": ["cat", "dog"]},
    ],
)
def test_names_that_are_missing_end_the_prompt_before_its_first_placeholder(hashes: Any) -> None:
    assert read({"mm_hashes": hashes, "mm_placeholders": TWO}) == Media(known_tokens=8)


@pytest.mark.parametrize(
    "features",
    [
        [{"mm": 1}],
        5,
        {},
        {"mm_hashes": {"image": ["cat"]}},
        {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": [{"offset": 1}]}},
        {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": [place(-1)]}},
        {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": [place(1, 0)]}},
        {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": [place(1)]},
        {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {}},
    ],
)
def test_places_that_cannot_be_read_leave_nothing_known(features: Any) -> None:
    assert read(features) == UNKNOWN_MEDIA


def test_countless_items_are_not_looked_at_one_by_one() -> None:
    many = {
        "mm_hashes": {"image": ["cat"] * (MAX_ITEMS + 1)},
        "mm_placeholders": {"image": [place(3 + 2 * at) for at in range(MAX_ITEMS + 1)]},
    }
    assert read(many) == Media(known_tokens=3)


@given(
    st.binary(max_size=40)
    | st.recursive(st.none() | st.integers(), st.lists).map(lambda each: json.dumps(each).encode())
)
def test_nothing_raises(raw: bytes) -> None:
    assert read_features(raw) in (NO_MEDIA, UNKNOWN_MEDIA)
