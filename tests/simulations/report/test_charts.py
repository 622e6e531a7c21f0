import re
import xml.etree.ElementTree as ET

from simulations.report.charts import (
    WIDTH,
    Axis,
    Bar,
    Line,
    Map,
    Part,
    Stack,
    bar_chart,
    line_chart,
    map_chart,
    stack_chart,
)

SVG = "{http://www.w3.org/2000/svg}"
PLAIN = Axis("an axis, s", lambda value: f"{value:g}")
LOG = Axis("a log axis", lambda value: f"{value:g}", is_log=True)


def hints(svg: str) -> list[str]:
    return [title.text or "" for title in ET.fromstring(svg).iter(f"{SVG}title")][1:]


def words(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]


def test_lines_have_gaps_where_nothing_is_known() -> None:
    svg = line_chart("t", [Line("a", [(0, 1.0), (1, None), (2, 1.0), (3, 2.0)], 0)], PLAIN, PLAIN)
    path = next(each.get("d") or "" for each in ET.fromstring(svg).iter(f"{SVG}path"))
    assert re.findall("[ML]", path) == ["M", "M", "L"]


def test_lines_say_their_values_under_the_pointer() -> None:
    lines = [Line("a", [(0, 1.0), (1, 2.0)], 0), Line("b", [(1, 3.0)], 1), Line("c", [(0, None)], 2)]
    svg = line_chart("t", lines, PLAIN, PLAIN, steps=[0, 1])
    assert hints(svg) == ["an axis, s: 0\na: 1", "an axis, s: 1\na: 2\nb: 3"]
    assert "c" not in words(svg)


def test_legends_are_tied_to_their_series() -> None:
    root = ET.fromstring(
        line_chart("t", [Line(name, [(0, 1.0), (1, 2.0)], at) for at, name in enumerate("ab")], PLAIN, PLAIN)
    )
    keys = {each.get("class"): [] for each in root.iter(f"{SVG}g") if each.get("data-key")}  # type: dict[str | None, list[str | None]]
    for each in root.iter(f"{SVG}g"):
        if each.get("data-key"):
            keys[each.get("class")].append(each.get("data-key"))
    assert keys == {"key": ["0", "1"], "series": ["0", "1"]}


def test_nothing_is_shown_as_nothing() -> None:
    assert "nothing to show" in words(line_chart("t", [], LOG, PLAIN))
    for svg in (
        bar_chart("t", [], PLAIN),
        stack_chart("t", [], [], PLAIN),
        map_chart("t", [], PLAIN, "busy", "replica"),
    ):
        ET.fromstring(svg)


def test_bars_have_whiskers_where_there_is_a_spread() -> None:
    svg = bar_chart("t", [Bar("sure", 2.0, 2.0, 2.0), Bar("unsure", 2.0, 1.0, 3.0)], PLAIN, marks=[(2.5, "a limit")])
    assert svg.count('class="whisker"') == 1
    assert hints(svg) == ["sure: 2", "unsure: 2, 95 % interval 1 to 3"]
    assert "a limit" in words(svg)


def test_log_axes_have_dots_in_place_of_bars() -> None:
    svg = bar_chart("t", [Bar("a", 0.0, -1.0, 3.0), Bar("b", 5000.0, 4000.0, 6000.0)], LOG)
    assert svg.count("<circle") == 2
    assert "<rect" not in svg
    assert "nan" not in svg
    assert "inf" not in svg


def test_stacks_add_up() -> None:
    svg = stack_chart(
        "t", [Stack("a", (0.25, 0.0, 0.75))], [Part("x", "hit"), Part("y", "first"), Part("z", "evicted")], PLAIN
    )
    wide = [
        float(each.get("width") or 0)
        for each in ET.fromstring(svg).iter(f"{SVG}rect")
        if "gap" in (each.get("class") or "")
    ]
    assert len(wide) == 2  # nothing for nothing
    assert round(wide[1] / wide[0], 2) == 3
    assert hints(svg) == ["a: x 0.25", "a: z 0.75"]


def test_neighbours_of_one_shade_are_one() -> None:
    svg = map_chart("t", [Map("m", [[0.0, 0.05, 0.5, 1.0], [0.2] * 4], ["0", "1"], 10.0)], PLAIN, "busy", "replica")
    assert hints(svg) == ["0, 0 to 20: 2 %", "0, 20 to 30: 50 %", "0, 30 to 40: 100 %", "1, 0 to 40: 20 %"]


def test_long_names_do_not_run_out_of_the_drawing() -> None:
    name = "a policy whose name is very long indeed " * 5
    svg = bar_chart("t", [Bar(name, 1.0, 1.0, 1.0)], PLAIN)
    assert max(map(len, words(svg))) < 40
    svg = line_chart("t", [Line(name, [(0, 1.0), (1, 2.0)], 0)] * 3, PLAIN, PLAIN)
    places = [float(each) for each in re.findall(r'class="key"[^>]*translate\(([\d.]+)', svg)]
    assert max(places) < WIDTH
