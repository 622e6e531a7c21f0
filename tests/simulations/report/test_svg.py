import xml.etree.ElementTree as ET

import pytest

from simulations.report.svg import (
    Scale,
    cut,
    drawing,
    element,
    escape,
    linear_limit,
    log_limits,
    log_ticks,
    nice_ticks,
    number,
    standalone,
    text,
)
from simulations.report.theme import DARK, HEAT, LIGHT, SERIES

HOSTILE = "<script>alert('&\"')</script>\x00\x1b[31m\ud800\ufffe"


def test_what_comes_from_outside_is_escaped() -> None:
    made = element("a", escape(HOSTILE), title=HOSTILE)
    parsed = ET.fromstring(made)
    shown = "<script>alert('&\"')</script>??[31m??"
    assert (parsed.text, parsed.get("title"), list(parsed)) == (shown, shown, [])


def test_numbers_are_as_short_as_pixels_allow() -> None:
    assert [number(value) for value in (1.0, 1.005, -0.001, 12.3456)] == ["1", "1", "0", "12.35"]


def test_attributes_that_are_none_are_left_out() -> None:
    assert element("line", x1=1, class_=None, stroke_width=2.5) == '<line x1="1" stroke-width="2.5"/>'


def test_words_are_cut_to_a_width() -> None:
    assert cut("abc", 100) == "abc"
    assert cut("a" * 50, 67.2) == "a" * 9 + "…"


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 37, [0, 10, 20, 30]),
        (3, 3, [3]),
        (0.1, 0.3, [0.1, 0.15, 0.2, 0.25, 0.3]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.5, 20, [0.5, 1, 2, 5, 10, 20]), (0.001, 1000, [0.001, 0.01, 0.1, 1, 10, 100, 1000]), (3, 4, [3])],
)
def test_ticks_of_log_axes_are_round_too(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == pytest.approx(ticks)
    assert len(log_ticks(1e-9, 1e9)) <= 10


@pytest.mark.parametrize(
    ("values", "limits"), [([0.3, 70], (0.2, 100)), ([1], (1, 10)), ([], (1, 10)), ([0, 0], (1, 10)), ([0, 4], (2, 5))]
)
def test_log_axes_are_round_their_values(values: list[float], limits: tuple[float, float]) -> None:
    assert log_limits(values) == pytest.approx(limits)


@pytest.mark.parametrize(("high", "limit"), [(0, 1), (4.09, 5), (0.93, 1.0), (float("inf"), 1)])
def test_axes_from_zero_take_in_their_values(high: float, limit: float) -> None:
    assert linear_limit(high) == pytest.approx(limit)


def test_scales_go_both_ways() -> None:
    for scale in (Scale(0, 10, 100, 200), Scale(0.1, 100, 300, 0, is_log=True)):
        assert scale.back(scale(3)) == pytest.approx(3)
    assert Scale(1, 10, 0, 100, is_log=True)(0) == 0
    assert Scale(5, 5, 0, 100)(5) == 50


def test_drawings_stand_alone_with_colours_of_their_own() -> None:
    made = standalone(drawing(10, 20, "a title", text("words", 1, 2), description="what"))
    parsed = ET.fromstring(made)
    assert (parsed.get("width"), parsed.get("height")) == ("10", "20")
    assert "var(" not in made
    assert LIGHT["ink"] in made


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stand_out(colours: dict[str, str]) -> None:
    assert LIGHT.keys() == DARK.keys()
    for ground in ("ground", "panel"):
        assert contrast(colours["ink"], colours[ground]) >= 4.5
        assert contrast(colours["soft"], colours[ground]) >= 4.5
    marks = [f"s{at}" for at in range(SERIES)] + [
        "bound",
        "accent",
        "muted",
        "hit",
        "in_flight",
        "elsewhere",
        "evicted",
    ]
    assert {
        name: contrast(colours[name], colours["ground"])
        for name in marks
        if contrast(colours[name], colours["ground"]) < 3
    } == {}
    shades = [luminance(colours[f"h{at}"]) for at in range(HEAT)]
    assert shades == sorted(shades, reverse=colours is LIGHT)
