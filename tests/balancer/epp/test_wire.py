"""``epp/wire.py``: what it reads is what protobuf's own library has written, and the other way round."""

from typing import Any

import pytest
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from balancer.epp import wire
from balancer.epp.wire import WireError

TEXT = st.text(max_size=20)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(st.integers(0, 2**64 - 1))
def test_numbers_come_back(number: int) -> None:
    data = wire.encoded_varint(number)
    assert wire.varint(data, 0) == (number, len(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 11])
def test_numbers_that_do_not_end_are_none(data: bytes) -> None:
    with pytest.raises(WireError):
        wire.varint(data, 0)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_structs_are_read_as_they_were_written(told: dict[str, Any]) -> None:
    made = struct_pb2.Struct()
    made.update(told)
    assert wire.read_struct(made.SerializeToString()) == told


@given(
    st.dictionaries(TEXT, st.recursive(TEXT | st.lists(TEXT, max_size=3), lambda inner: st.dictionaries(TEXT, inner)))
)
def test_structs_are_written_so_that_others_read_them(told: dict[str, Any]) -> None:
    read = struct_pb2.Struct.FromString(wire.struct_of(told))
    expected = struct_pb2.Struct()
    expected.update(told)
    assert read == expected


def test_what_is_nested_too_deeply_is_refused() -> None:
    value = b"\x20\x01"
    for _ in range(wire.MAX_DEPTH + 2):
        value = wire.field(6, wire.field(1, value))
    with pytest.raises(WireError, match="deep"):
        wire.read_value(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_an_error(data: bytes) -> None:
    try:
        found = list(wire.fields(data))
    except WireError:
        return
    assert all(0 < number < 2**29 for number, _, _ in found)


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x09\x00", b"\x0b", b"\x00\x01"])
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    """Too short, cut in a fixed width, a group, a field of number 0."""
    with pytest.raises(WireError):
        list(wire.fields(data))
