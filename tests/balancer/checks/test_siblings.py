"""``balancer/checks/siblings.py``: a sibling that does not answer, is named twice, or has another fleet, has its line."""

from typing import Any

import pytest

from balancer.checks.facts import Facts, Sibling
from balancer.checks.finding import Finding, Verdict
from balancer.checks.siblings import DIFFERS_SECONDS, siblings

URL = "http://b:8080"


def told(*given: Sibling, **more: Any) -> list[Finding]:
    return list(siblings(Facts(kvlb="1", siblings=given, **more)))


def sibling(address: str = URL, **changes: Any) -> Sibling:
    return Sibling(**{"address": address, "gateway": address, "age": 0.2, "common": 3, **changes})


def test_where_none_are_named_nothing_is_said() -> None:
    assert told() == []


def test_all_is_well() -> None:
    itself = sibling("http://a:8080", is_self=True, age=None)
    (found,) = told(itself, sibling())
    assert (found.verdict, found.subject) == (Verdict.OK, URL)
    (found,) = told(itself)
    assert found.verdict is Verdict.OK
    assert "the only one" in found.told


@pytest.mark.parametrize(
    ("changes", "verdict", "text", "remedy"),
    [
        ({"problem": "connection refused", "age": None}, Verdict.DEGRADED, "connection refused", "start it"),
        ({"problem": "its report cannot be read"}, Verdict.DEGRADED, "cannot be read", "[siblings]"),
        ({"age": None, "gateway": None}, Verdict.DEGRADED, "has not been asked", "ask again"),
        ({"only_there": ("x", "y", "z", "w"), "differs_seconds": DIFFERS_SECONDS}, Verdict.DEGRADED,
         "only it knows x, y, z and more", "the same URLs"),
        ({"only_here": ("x",), "differs_seconds": DIFFERS_SECONDS}, Verdict.DEGRADED, "only this one knows x", "same"),
        ({"only_here": ("x",), "only_there": ("y",), "common": 0}, Verdict.BROKEN, "has another fleet", "leave it out"),
    ],
)  # fmt: skip
def test_a_fault_has_its_line(changes: dict[str, Any], verdict: Verdict, text: str, remedy: str) -> None:
    (found,) = told(sibling(**changes))
    assert found.verdict is verdict
    assert text in found.told
    assert remedy in found.remedy


def test_who_has_only_just_found_another_replica_is_given_time() -> None:
    (found,) = told(sibling(only_there=("x",), differs_seconds=DIFFERS_SECONDS - 1))
    assert found.verdict is Verdict.OK


def test_a_gateway_that_is_named_twice() -> None:
    first, second = told(sibling(gateway="g"), sibling("http://c:8080", gateway="g"))
    assert first.verdict is Verdict.OK
    assert second.verdict is Verdict.DEGRADED
    assert f"the same gateway as {URL}" in second.told


def test_a_name_that_nobody_has_asked_for_yet() -> None:
    (found,) = told(siblings_host="kvlb.svc")
    assert (found.verdict, found.subject) == (Verdict.SKIPPED, "kvlb.svc")
    (found,) = told(siblings_host="kvlb.svc", siblings_problem="kvlb.svc stands for no address")
    assert found.verdict is Verdict.DEGRADED
    (found,) = told(sibling("http://a:8080", is_self=True, age=None), siblings_host="kvlb.svc")
    assert found.verdict is Verdict.OK


def test_a_name_that_cannot_be_resolved() -> None:
    (found,) = told(siblings_problem="kvlb.svc cannot be resolved: no answer")
    assert found.verdict is Verdict.DEGRADED
    assert "siblings.host" in found.remedy
