"""``discovery/objects.py``: what was told, in whatever order and however often, ends in what there is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.discovery.objects import (
    MAX_LINE,
    MAX_OBJECTS,
    MAX_PAGES,
    Ended,
    Lines,
    Listing,
    Object,
    Objects,
    Status,
    Unreadable,
    read_status,
)

Json = dict[str, Any]


def meta(uid: str, version: int | str, **more: Any) -> Json:
    return {"metadata": {"uid": uid, "name": uid, "resourceVersion": str(version), **more}}


def event(kind: str, made: Json) -> bytes:
    return json.dumps({"type": kind, "object": made}).encode()


def page(version: int | str, *items: Json, more: str = "") -> bytes:
    return json.dumps({"metadata": {"resourceVersion": str(version), "continue": more}, "items": items}).encode()


def listed(version: int | str, *items: Json) -> Objects[Object]:
    made = Objects(Object)
    listing = Listing(Object)
    listing.add(page(version, *items))
    made.listed(listing)
    return made


def shown(objects: Objects[Object]) -> dict[str, str]:
    return {each.metadata.uid: each.metadata.resource_version for each in objects}


def test_events_change_what_was_listed() -> None:
    objects = listed(10, meta("a", 3), meta("b", 4))
    assert objects.told(event("MODIFIED", meta("a", 11)))
    assert objects.told(event("DELETED", meta("b", 12)))
    assert objects.told(event("ADDED", meta("c", 13)))
    assert shown(objects) == {"a": "11", "c": "13"}
    assert (objects.version, len(objects)) == ("13", 2)


def test_a_bookmark_is_a_version_and_no_change() -> None:
    objects = listed(10)
    assert not objects.told(event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "40"}}))
    assert objects.version == "40"
    assert not objects.told(event("BOOKMARK", {"metadata": {"resourceVersion": "30"}}))
    assert objects.version == "40"


def test_an_object_that_stops_matching_and_matches_again_is_back() -> None:
    objects = listed(10, meta("a", 3))
    assert objects.told(event("DELETED", meta("a", 11)))
    assert objects.told(event("ADDED", meta("a", 12)))
    assert shown(objects) == {"a": "12"}


def test_an_end_that_carries_the_last_state_is_an_end() -> None:
    objects = listed(10, meta("a", 3))
    assert objects.told(event("DELETED", meta("a", 3)))
    assert not objects.told(event("ADDED", meta("a", 3)))
    assert shown(objects) == {}


def test_a_list_is_the_truth_whatever_was_told_before() -> None:
    objects = listed(10, meta("a", 3))
    objects.told(event("ADDED", meta("b", 90)))
    listing = Listing(Object)
    listing.add(page(5, meta("c", 2)))  # a cluster that was restored from a backup counts from there on
    objects.listed(listing)
    assert shown(objects) == {"c": "2"}
    assert objects.told(event("MODIFIED", meta("c", 6)))


def test_versions_that_are_no_numbers_count_as_they_come() -> None:
    objects = listed("x", meta("a", "y"))
    assert objects.told(event("MODIFIED", meta("a", "b")))
    assert objects.told(event("DELETED", meta("a", "a")))
    assert objects.told(event("ADDED", meta("a", "c")))
    assert (shown(objects), objects.version) == ({"a": "c"}, "c")


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[tuple[str, int, bool]], list[tuple[str, int, bool]], int]:
    """What has happened (uid, version, whether it was there then), the same as it was told, and when a list was made."""
    truth = [
        (draw(st.sampled_from("abcd")), version, draw(st.booleans())) for version in range(1, draw(st.integers(1, 20)))
    ]
    at = draw(st.integers(0, 20))
    again = draw(st.lists(st.sampled_from(truth), max_size=10)) if truth else []
    return truth, draw(st.permutations([*(each for each in truth if each[1] > at), *again])), at


@given(_histories())
def test_any_order_and_any_repetition_ends_in_what_there_is(
    history: tuple[list[tuple[str, int, bool]], list[tuple[str, int, bool]], int],
) -> None:
    truth, told, at = history

    def state(upto: int) -> dict[str, int]:
        last = {uid: (version, is_there) for uid, version, is_there in truth if version <= upto}
        return {uid: version for uid, (version, is_there) in last.items() if is_there}

    objects = listed(at, *[meta(uid, version) for uid, version in state(at).items()])
    for uid, version, is_there in told:
        objects.told(event("MODIFIED" if is_there else "DELETED", meta(uid, version)))
    assert shown(objects) == {uid: str(version) for uid, version in state(99).items()}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"<html>",
        b"[]",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":null}',
        b'{"type":"ADDED","object":{"metadata":{"uid":7}}}',
        b'{"type":"WHATEVER","object":{}}',
        b'{"type":"BOOKMARK","object":[]}',
        b'{"type":"ERROR","object":"x"}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_what_is_no_event_is_said_to_be_none(line: bytes) -> None:
    objects = listed(10, meta("a", 3))
    with pytest.raises(Unreadable):
        objects.told(line)
    assert shown(objects) == {"a": "3"}


@pytest.mark.parametrize(("code", "is_expired"), [(410, True), (500, False), (0, False)])
def test_an_error_ends_the_watch(code: int, is_expired: bool) -> None:
    with pytest.raises(Ended, match="too old") as told:
        listed(10).told(event("ERROR", {"kind": "Status", "code": code, "message": "too old resource version: 1 (2)"}))
    assert told.value.is_expired is is_expired


def test_pages_make_one_list() -> None:
    listing = Listing(Object)
    listing.add(page(10, meta("a", 1), more="t"))
    assert listing.more == "t"
    listing.add(page(10, meta("b", 2)))
    assert (listing.more, [each.metadata.uid for each in listing.items]) == ("", ["a", "b"])
    nobody = Listing(Object)
    nobody.add(b'{"metadata":{"resourceVersion":"1"},"items":null}')
    assert nobody.items == []


@pytest.mark.parametrize("body", [b"", b"[]", b'{"items":[]}', b'{"metadata":{"resourceVersion":"1"},"items":[7]}'])
def test_what_is_no_list_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(Unreadable):
        Listing(Object).add(body)


@given(st.lists(st.binary(max_size=12).map(lambda each: each.replace(b"\n", b" ")), max_size=8), st.data())
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    cutter, found = Lines(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += cutter.cut(stream[start:end])
    assert found == [line for line in lines if line.strip()]
    assert cutter.cut(b"rest") == []
    assert cutter.cut(b"\n") == [b"rest"]


def test_a_line_without_an_end_is_left() -> None:
    cutter = Lines()
    assert cutter.cut(b"x" * MAX_LINE) == []
    with pytest.raises(Unreadable, match="more than 16 MiB"):
        cutter.cut(b"x")


def test_the_words_of_a_refusal_are_read_where_there_are_any() -> None:
    assert read_status(b'{"code":403,"message":"no"}') == Status(403, "", "no")
    assert read_status(b"<html>") == Status()


def test_a_list_whose_pages_have_no_end_is_given_up() -> None:
    listing = Listing(Object)
    listing.add(page(10, meta("a", 3), more="there"))
    with pytest.raises(Unreadable, match="no end: each page is followed by the same one"):
        listing.add(page(10, meta("b", 3), more="there"))


@pytest.mark.parametrize(("items", "pages"), [(0, MAX_PAGES), (1_000, MAX_OBJECTS // 1_000)])
def test_a_list_with_more_than_any_cluster_has_is_given_up(items: int, pages: int) -> None:
    listing = Listing(Object)
    told = [meta("a", 3)] * items
    for at in range(pages):
        listing.add(page(10, *told, more=str(at)))
    with pytest.raises(Unreadable, match="a list of more than 300,000 objects or 10,000 pages"):
        listing.add(page(10, *told, more="on"))
