import base64
import hashlib
import re
import xml.etree.ElementTree as ET

import msgspec
import pytest

from simulations.report.page import page
from simulations.report.plots import plots_of
from simulations.report.result import Result
from simulations.store import StoreSettings
from tests.support.runs import CASES, report, result, trace

HTML = "{http://www.w3.org/1999/xhtml}"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror='alert(2)'>\"&\x00"


def parsed(made: str) -> ET.Element:
    return ET.fromstring(made.removeprefix("<!DOCTYPE html>\n"))


@pytest.mark.parametrize("name", CASES)
def test_a_page_of_anything_is_well_formed(name: str) -> None:
    parsed(page(report(*CASES[name])))


def test_every_plot_and_finding_and_run_is_there() -> None:
    made = report(result(seed=1), result(seed=2), result("round_robin"), result(replicas=8))
    root = parsed(page(made))
    ids = {each.get("id") for each in root.iter()}
    assert {f"plot-{plot.key}" for plot in plots_of(made)} <= ids
    assert {f"finding-{finding.topic}" for finding in made.findings} <= ids
    assert [len(list(each)) for each in root.iter("tbody")] == [4, 7]


def test_nothing_is_asked_of_any_other_place() -> None:
    made = page(report(result(), result("round_robin")))
    assert set(re.findall(r"https?://[^\s\"'<]+", made)) == {"http://www.w3.org/2000/svg"}  # a name, not a place
    root = parsed(made)
    assert [
        each.tag for each in root.iter() if each.tag in ("link", "img", "iframe", "object", "embed", "form", "a")
    ] == []
    assert [
        name
        for each in root.iter()
        for name in each.attrib
        if name in ("src", "href", "style") or name.startswith("on")
    ] == []
    assert "url(" not in made
    assert "@import" not in made


def test_its_policy_lets_its_own_style_and_script_be_and_nothing_else() -> None:
    made = page(report(result()))
    root = parsed(made)
    policy = next(each.get("content") or "" for each in root.iter("meta") if each.get("http-equiv"))
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", made, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


def test_what_comes_from_outside_is_shown_and_not_done() -> None:
    made = report(
        result(HOSTILE, settings={HOSTILE: HOSTILE}),
        result("round_robin", settings={HOSTILE: 1}),
        of=trace(name=HOSTILE),
    )
    root = parsed(page(made))
    assert len(list(root.iter("script"))) == 1
    assert len(list(root.iter("img"))) == 0
    assert HOSTILE.replace("\x00", "?") in (root.findtext(".//h1") or "")


def test_it_is_made_for_light_and_dark_and_paper() -> None:
    made = page(report(result()))
    for word in (
        "prefers-color-scheme:dark",
        'data-theme="dark"',
        "@media print",
        'name="color-scheme"',
        'name="viewport"',
    ):
        assert word in made


def test_equal_reports_give_equal_pages() -> None:
    assert page(report(result(), result("round_robin"))) == page(report(result(), result("round_robin")))


def test_the_table_is_sorted_by_numbers() -> None:
    root = parsed(page(report(result(ttft=0.5), result("slow", ttft=5000.0))))
    heads = [each.text for each in next(root.iter("thead")).iter("th")]
    column = heads.index("TTFT mean s")
    values = [float(row[column].get("data-value") or "nan") for row in next(root.iter("tbody"))]
    assert values == pytest.approx([0.5, 5000.0], rel=0.1)


def test_what_all_runs_have_in_common_is_said_once() -> None:
    root = parsed(
        page(report(result(settings={"lag": 0.0, "speed": 7.5}), result(settings={"lag": 1.0, "speed": 7.5})))
    )
    assert "speed" in [each.text for each in root.iter("dt")]
    assert "lag" not in [each.text for each in root.iter("dt")]
    assert "lag" in [each.text for each in next(root.iter("thead")).iter("th")]


def test_a_page_stays_small() -> None:
    """Of a large fleet and many runs, it can still be sent by mail."""
    some = [result(f"policy_{at}", replicas=500, requests=2000) for at in range(20)]
    assert len(page(report(*some))) < 1_500_000


def test_answers_that_were_played_token_by_token_have_columns() -> None:
    def row(*results: Result) -> dict[str, str]:
        root = parsed(page(report(*results)))
        heads = ["".join(each.itertext()) for each in root.iter("th")]
        (first, *_) = [each for each in root.iter("tr") if each.get("class") == "first"]
        return dict(zip(heads, ["".join(each.itertext()) for each in first], strict=True))

    played = row(result(pace=0.0123), result("round_robin", ttft=9.0))
    assert (played["TPOT mean ms"], played["p95 ms"], played["latency p95 s"]) == ("12.3", "12.3", "1.59")
    assert "TPOT mean ms" not in row(result(), result("round_robin", ttft=9.0))


def test_what_is_not_known_is_said_once() -> None:
    root = parsed(page(report(result("cache_aware"))))
    (finding,) = [each for each in root.iter("section") if "unknown" in (each.get("class") or "").split()]
    assert [each.text for each in finding.iter() if (each.text or "").lower() == "not known"] == ["Not known"]


def test_the_page_says_which_fleet_others_are_compared_with() -> None:
    made = report(result(replicas=4, settings={"x": "<y>"}), result(replicas=8, settings={"x": "z"}))
    (found,) = [each for each in parsed(page(made)).iter() if each.get("id") == "baseline"]
    assert made.baseline is not None
    assert found.text == made.baseline.words
    assert "baseline" not in {each.get("id") for each in parsed(page(report(result()))).iter()}


def test_stores_are_called_what_their_links_were_called() -> None:
    store = msgspec.json.encode(StoreSettings(90.0, name="100gbe")).decode()
    made = parsed(page(report(result(), result(settings={"store": store}))))
    cells = [each.text for each in made.iter(f"{HTML}td")] + [each.text for each in made.iter("td")]
    assert "100gbe" in cells
    assert "none" in cells
