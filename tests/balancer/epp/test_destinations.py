"""``epp/destinations.py``: addresses in all the forms in which proxies write them."""

from typing import Any

import pytest

from balancer.epp.destinations import Place, Subset, listed, outside, read_place, served, subset
from indexer.index import ReplicaId

A, B = Place("10.0.0.1", 8000), Place("10.0.0.2", 8000)
SIX = Place("fd00::1", 8000)


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ("10.0.0.1:8000", A),
        (" 10.0.0.1:8000 ", A),
        ("10.0.0.1", Place("10.0.0.1", 0)),
        ("[fd00::1]:8000", SIX),
        ("fd00::1", Place("fd00::1", 0)),
        ("[FD00:0::1]:8000", SIX),
        ("[::ffff:10.0.0.1]:8000", A),
    ],
)
def test_addresses_are_read(told: str, place: Place) -> None:
    assert read_place(told) == place


@pytest.mark.parametrize(
    "told", ["", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:70000", "host:80", "10.0.0.1:8e3", ":80", "[10.0.0.1:80", "a,b"]
)
def test_what_is_no_address_is_none(told: str) -> None:
    assert read_place(told) is None


def hinted(value: Any) -> dict[str, dict[str, Any]]:
    return {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": value}}


HEADER = [(b"x-gateway-destination-endpoint-subset", b"10.0.0.2:8000")]


@pytest.mark.parametrize(
    "value", [["10.0.0.1:8000", "fd00::1"], "10.0.0.1:8000,fd00::1", ["10.0.0.1:8000", 7, "fd00::1"]]
)
def test_metadata_name_a_subset_and_go_before_the_header(value: Any) -> None:
    found = subset(hinted(value), HEADER, with_header=True)
    assert found is not None
    assert [found.has(each) for each in (A, B, SIX)] == [True, False, True]


def test_a_header_names_a_subset_where_it_may() -> None:
    found = subset({}, HEADER, with_header=True)
    assert found == Subset(frozenset({B}))
    assert subset({}, HEADER, with_header=False) is None
    assert subset({}, [], with_header=True) is None
    assert subset({}, [*HEADER, (HEADER[0][0], b"10.0.0.1")], with_header=True) == Subset(
        frozenset({B, Place("10.0.0.1", 0)})
    )


@pytest.mark.parametrize("value", [[], "", ["nobody"], 7.0])
def test_a_subset_of_nobody_allows_nobody(value: Any) -> None:
    found = subset(hinted(value), (), with_header=True)
    assert found is not None
    assert not found.has(A)
    places = {ReplicaId("a"): A, ReplicaId("b"): None}
    assert set(outside(places, found)) == {"a", "b"}


def test_who_answered_is_told_by_metadata_or_else_by_a_header() -> None:
    header = [(b"x-gateway-destination-endpoint-served", b"10.0.0.2:8000")]
    told = {"envoy.lb": {"x-gateway-destination-endpoint-served": "10.0.0.1:8000"}}
    assert served(told, header) == A
    assert served({}, header) == B
    assert served({}, []) is None
    assert served({}, [(header[0][0], b"10.0.0.2")]) is None  # of all ports, none is the one
    assert served({"envoy.lb": {"x-gateway-destination-endpoint-served": 7.0}}, []) is None


def test_a_list_has_each_once_and_no_more_than_asked_for() -> None:
    assert listed([A, B, A, SIX], 5) == "10.0.0.1:8000,10.0.0.2:8000,[fd00::1]:8000"
    assert listed([A, B, SIX], 1) == "10.0.0.1:8000,10.0.0.2:8000"
    assert listed([A, B], 0) == "10.0.0.1:8000"
