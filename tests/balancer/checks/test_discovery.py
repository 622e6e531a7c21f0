"""``balancer/checks/discovery.py``: a discovery that finds nothing, or not all, has its line."""

from typing import Any

import pytest

from balancer.checks import examine
from balancer.checks.discovery import discovery
from balancer.checks.facts import Discovering, Facts
from balancer.checks.finding import Finding, Verdict

FORBIDDEN = "pods cannot be listed: 403; the Role lacks list"


def told(**found: Any) -> list[Finding]:
    return list(discovery(Facts(kvlb="1", discovery=Discovering(**{"name": "kubernetes", **found}))))


def test_where_none_is_used_nothing_is_said() -> None:
    assert list(discovery(Facts(kvlb="1"))) == []
    assert told(name="static", told="only the settings name endpoints") == []


@pytest.mark.parametrize(
    ("found", "verdict", "text"),
    [
        ({"problem": FORBIDDEN}, Verdict.BROKEN, FORBIDDEN),
        ({"problem": "pod b: is left out", "told": "2 Pods", "endpoints": 1}, Verdict.DEGRADED, "pod b: is left out"),
        ({"told": "app=vllm: 2 Pods seen"}, Verdict.DEGRADED, "finds no endpoint: app=vllm"),
        ({}, Verdict.SKIPPED, "not told anything yet"),
        ({"told": "app=vllm: 2 Pods seen", "endpoints": 2}, Verdict.OK, "app=vllm: 2 Pods seen: 2 endpoints"),
    ],
)
def test_how_it_stands_has_its_line(found: dict[str, Any], verdict: Verdict, text: str) -> None:
    (line,) = told(**found)
    assert (line.verdict, line.subject) == (verdict, "kubernetes")
    assert text in line.told
    assert line.remedy or verdict is Verdict.OK


@pytest.mark.parametrize(("name", "remedy"), [("kubernetes", "see discovery"), ("static", "--replica")])
def test_what_to_do_where_there_is_no_endpoint_fits_how_they_are_found(name: str, remedy: str) -> None:
    results = examine(
        Facts(kvlb="1", discovery=Discovering(name=name, problem=None if name == "static" else FORBIDDEN))
    )
    (line,) = [each for each in results if each.check == "endpoint"]
    assert remedy in line.remedy
    assert ("--replica" in line.remedy) is (name == "static")
