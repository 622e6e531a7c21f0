"""``balancer/json_bodies.py``: errors name the field, and a long list is cut out exactly where it stands."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.errors import BadRequest
from balancer.json_bodies import cut_list, decode


class Body(msgspec.Struct):
    name: str
    items: list[int] = []


DECODER = msgspec.json.Decoder(Body)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"{}", "name", "name: missing; docs/x.md says what it is"),
        (b'{"name":5}', "name", "name: expected a text, got a number; see docs/x.md"),
        (b'{"name":"a","items":[1,"b"]}', "items", "items[1]: expected a number, got a text; see docs/x.md"),
        (
            b"5",
            None,
            "the body: expected an object, got a number; it has to be a JSON object with the fields of docs/x.md",
        ),
        (b"{", None, "the body is not JSON: "),
        (b'{"name":"\xff"}', None, "the body is not JSON: "),
    ],
)
def test_what_cannot_be_read_is_named(body: bytes, param: str | None, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(DECODER, body, "docs/x.md")
    assert caught.value.param == param
    assert caught.value.message.startswith(message)


plain = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.sampled_from(['"x":[1]', 'x":[', "\\", "]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("x"), inner, max_size=3),
    max_leaves=8,
)


@given(
    before=st.dictionaries(st.text(max_size=4), plain, max_size=3),
    items=st.lists(st.integers(), max_size=8),
    after=st.dictionaries(st.text(max_size=4), plain, max_size=3),
    indent=st.sampled_from([None, 1]),
)
def test_a_list_is_cut_where_it_stands_or_not_at_all(
    before: dict[str, object], items: list[int], after: dict[str, object], indent: int | None
) -> None:
    whole = {
        **{k: v for k, v in before.items() if k != "x"},
        "x": items,
        **{k: v for k, v in after.items() if k != "x"},
    }
    cut = cut_list(json.dumps(whole, indent=indent).encode(), b"x")
    assert cut is not None
    text, rest = cut
    try:
        left = json.loads(rest)
    except ValueError:
        return  # it was another list, deeper down, with lists in it: the body is read whole
    if left["x"] is None:
        assert json.loads(text) == items
        assert {**left, "x": items} == whole
    else:
        assert left["x"] == items, "another x was cut, deeper down"


@pytest.mark.parametrize("body", [b"", b"{}", b'{"x":5}', b'{"x":[1,2', b'{"y":[1]}', b'{"x\\":[1]}'])
def test_where_there_is_no_list_nothing_is_cut(body: bytes) -> None:
    assert cut_list(body, b"x") is None
