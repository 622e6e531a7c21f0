"""``balancer/nesting.py``: depth is told as a parser would find it, and cheaply whatever comes."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import nesting
from balancer.nesting import is_deeper

TEXT = st.text(alphabet='[]{}"\\a\n/', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=25,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.integers(0, 6), st.booleans())
def test_depth_is_that_of_the_values(value: Any, limit: int, is_indented: bool) -> None:
    text = json.dumps(value, indent=1 if is_indented else None)
    assert is_deeper(text.encode(), limit) is (depth(value) > limit)


def test_brackets_in_strings_are_no_lists() -> None:
    assert not is_deeper(json.dumps(["[" * 500, '{"' * 500, "\\", '\\"[[[']).encode(), 1)


def test_many_beside_each_other_are_not_deep() -> None:
    assert not is_deeper(b"[" + b",".join([b"[1]"] * 10_000) + b"]", 2)


@pytest.mark.parametrize("piece", [b"[", b"[]", b"[[]]", b'"', b'"["', b'"\\"["', b"\\", b"{"])
def test_the_worst_bodies_take_no_longer_than_their_length(piece: bytes) -> None:
    body = b"[" * 129 + piece * (16 * 1024 * 1024 // len(piece))
    before = time.process_time()
    is_deeper(body, 128)
    assert time.process_time() - before < 5  # it is a quarter; what grows with the depth takes minutes


def test_a_body_of_nothing_but_structure_is_refused_unseen() -> None:
    assert is_deeper(b"[" + b"[]," * nesting.MOST_LOOKED_THROUGH + b"[]]", 10)
