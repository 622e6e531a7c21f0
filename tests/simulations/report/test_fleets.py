"""``simulations/report/fleets.py``: what fleets are called, what tells them apart, and which one others are compared with."""

from typing import Any

import msgspec
import pytest

from simulations.detailed_fleet import Disaggregation
from simulations.report.comparison import cells
from simulations.report.document import decode, encode
from simulations.report.fleets import baseline, fleet_words, setting_words, told_apart
from simulations.report.result import Result
from simulations.store import StoreSettings
from tests.support.runs import report, result


def words(*stores: StoreSettings | Disaggregation | None) -> list[str]:
    name = "disaggregation" if any(isinstance(each, Disaggregation) for each in stores) else "store"
    settings: list[dict[str, Any]] = [
        {} if each is None else {name: msgspec.json.encode(each).decode()} for each in stores
    ]
    shown = setting_words(name, settings)
    return [shown(each) for each in settings]


@pytest.mark.parametrize(
    ("stores", "told"),
    [
        ([None, StoreSettings(90.0, name="100gbe")], ["none", "100gbe"]),
        ([None, StoreSettings(90.0)], ["none", "{gbits=90}"]),
        ([StoreSettings(90.0, name="100gbe"), StoreSettings(22.5, name="25gbe")], ["100gbe", "25gbe"]),
        ([StoreSettings(90.0, name="100gbe"), StoreSettings(90.0, 0.5)], ["100gbe", "{gbits=90, latency=0.5}"]),
        (
            [StoreSettings(90.0, name="100gbe"), StoreSettings(90.0, 0.5, name="100gbe")],
            ["100gbe", "{link=100gbe, latency=0.5}"],
        ),
        (
            [StoreSettings(90.0, name="100gbe"), StoreSettings(90.0, name="100gbe", tokens=9)],
            ["100gbe", "{link=100gbe, tokens=9}"],
        ),
        ([Disaggregation(2), Disaggregation(3), None], ["{prefill=2}", "{prefill=3}", "none"]),
        ([Disaggregation(2, name="25gbe"), Disaggregation(3, name="25gbe")], ["{prefill=2}", "{prefill=3}"]),
        (
            [Disaggregation(2, 22.5, name="25gbe"), Disaggregation(2, 90.0, name="100gbe"), Disaggregation(2, 1.0)],
            ["{prefill=2, link=25gbe}", "{prefill=2, link=100gbe}", "{prefill=2, gbits=1}"],
        ),
    ],
)
def test_a_table_is_told_by_what_tells_it_apart(stores: list[Any], told: list[str]) -> None:
    assert words(*stores) == told


def test_what_is_no_table_is_told_as_it_is() -> None:
    assert setting_words("store", [{"store": "a word"}])({"store": "a word"}) == "a word"
    assert setting_words("lag", [])({"lag": 0.25}) == "0.25"
    assert setting_words("speeds", [])({"speeds": "[1.0,0.5]"}) == "[1.0, 0.5]"
    assert told_apart([], "gbits")({}) == {}


def test_the_first_fleet_is_what_others_are_compared_with() -> None:
    some = [result(replicas=8), result("random", replicas=8), result(replicas=4), result("random", replicas=4)]
    made = report(*some)
    found = made.baseline
    assert found is not None
    assert (found.replicas, found.fleets, found.is_first, found.settings) == (8, 2, True, {})
    assert found.words == (
        "What follows compares policies on 8 replicas with 640 tokens of cache each, and other fleets with it: "
        "the first of the 2 that were run; name another one first to compare with that."
    )
    assert decode(encode(made)).baseline == found
    turned = report(*some[2:], *some[:2]).baseline
    assert turned is not None
    assert turned.replicas == 4


def test_one_on_which_more_policies_served_comes_before_it_and_that_is_told() -> None:
    some: list[Result] = [
        result(settings={"lag": 1.0}),
        result(settings={"lag": 2.0}),
        result("random", settings={"lag": 2.0}),
    ]
    found = baseline(cells(some))
    assert found is not None
    assert (found.is_first, found.settings) == (False, {"lag": "2"})
    assert found.words.endswith("of the 2 that were run, the first on which most policies served anybody.")


def test_of_one_fleet_nothing_is_compared_with_others() -> None:
    assert report(result(), result("random")).baseline is None
    assert report().baseline is None


def test_a_fleet_is_called_by_what_others_have_otherwise() -> None:
    some = [result(settings={"lag": lag, "same": 3}, cache_tokens=None) for lag in (1.0, 2.0)]
    every = cells([result(settings={"lag": 1.0, "same": 3}), *some])
    assert [fleet_words(every, each.fleet) for each in every] == [
        "4 replicas with 640 tokens of cache each (lag=1)",
        "4 replicas (lag=1)",
        "4 replicas (lag=2)",
    ]
