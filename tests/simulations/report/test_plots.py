import xml.etree.ElementTree as ET

import pytest

from simulations.report.document import Document
from simulations.report.plots import LINES, plots_of
from simulations.report.result import result_of
from tests.support.runs import CASES, report, result, run

ALWAYS = ["policies-ttft", "policies-hit", "misses", "capacity", "ttft", "hit-over-time", "balance"]


def svg(made: Document, key: str) -> str:
    return next(plot.svg for plot in plots_of(made) if plot.key == key)


def keys(made: Document) -> list[str]:
    return [plot.key for plot in plots_of(made)]


def test_every_plot_is_there() -> None:
    made = report(result(), result("round_robin", ttft=4.0), result(replicas=8))
    assert sorted(keys(made)) == sorted([*ALWAYS, "replicas"])
    assert keys(report(result())) == ALWAYS


def test_no_plot_of_half_a_width_is_alone_in_its_row() -> None:
    for made in (
        report(result()),
        report(result(), result("x"), result(replicas=8)),
        report(result(cache_tokens=None), with_bounds=False),
    ):
        assert sum(not plot.is_wide for plot in plots_of(made)) % 2 == 0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("with_bounds", [True, False])
def test_plots_are_drawn_of_anything(name: str, with_bounds: bool) -> None:
    for plot in plots_of(report(*CASES[name], with_bounds=with_bounds)):
        ET.fromstring(plot.svg)
        assert plot.title
        assert plot.caption
        for bad in ("nan", "inf", "None"):
            assert bad not in plot.svg.replace("inference", "")
        assert "style=" not in plot.svg  # the page's policy would not let it be


def test_only_so_many_policies_are_lines() -> None:
    made = report(*CASES["20 policies"], result("round_robin", ttft=99.0))
    drawn = svg(made, "ttft")
    assert drawn.count('class="series"') == LINES
    assert "policy_0" in drawn
    assert "round_robin" in drawn
    assert "policy_6" not in drawn
    assert svg(made, "policies-ttft").count("policy_") == 20 * 3  # name, hint and description


def test_a_colour_means_one_policy_in_all_plots() -> None:
    made = report(result("a", ttft=2.0), result("b", ttft=1.0))
    assert 'class="curve s1"' in svg(made, "ttft")
    assert svg(made, "policies-ttft").index('class="f0"') < svg(made, "policies-ttft").index('class="f1"')


def test_capacity_shows_runs_beside_the_bounds() -> None:
    made = report(
        *(result(cache_tokens=size, settings={"blocks": size // 16}, hit=size / 2000) for size in (320, 640, 1280)),
    )
    drawn = svg(made, "capacity")
    for name in ("one LRU cache", "one cache that knows the future", "cache_aware", "this fleet: 1.28 k"):
        assert name in drawn


def test_times_far_apart_are_on_a_log_axis() -> None:
    assert "log axis" in svg(report(*CASES["times far apart"]), "policies-ttft")
    assert "log axis" not in svg(report(result(), result("x", ttft=3.0)), "policies-ttft")


def test_the_ceiling_is_drawn_where_it_is_known() -> None:
    some = run()
    with_ceiling = result_of(some, infinite=some.inputs)
    assert "nothing forgotten" in svg(report(with_ceiling), "hit-over-time")
    assert "nothing forgotten" not in svg(report(result()), "hit-over-time")
