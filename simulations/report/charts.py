"""Four kinds of charts: lines, bars with whiskers, stacked bars, and a map of shares.

Knows how numbers become marks. Never knows what they measure: names, units and labels come in. Whatever has a value under the
pointer says it in a ``title``.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from simulations.report.svg import (
    Scale,
    bottom_axis,
    cut,
    drawing,
    element,
    escape,
    left_axis,
    linear_limit,
    log_limits,
    number,
    text,
    width_of,
)
from simulations.report.theme import HEAT, SERIES

WIDTH: Final = 620.0
WIDE: Final = 1200.0
LEFT: Final = 58.0
RIGHT: Final = 14.0
ROW: Final = 24.0
DASHES: Final = (None, "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2", "6 2 1 2")
"""A series differs from the others by its dash as well as by its colour."""

Show = Callable[[float], str]


class Axis(msgspec.Struct, frozen=True):
    """``label`` with its unit; ``limits`` as (low, high), or made to fit (from 0, if it is not log).

    ``show`` writes ticks, ``exact`` values, where those need more digits.
    """

    label: str
    show: Show
    is_log: bool = False
    limits: tuple[float, float] | None = None
    exact: Show | None = None

    def say(self, value: float) -> str:
        return (self.exact or self.show)(value)

    def scale(self, values: Sequence[float], begin: float, end: float) -> Scale:
        low, high = self.limits or (
            log_limits(values) if self.is_log else (0.0, linear_limit(max(values, default=0.0)))
        )
        return Scale(low, high, begin, end, self.is_log)


class Line(msgspec.Struct, frozen=True):
    """Points in order of x; a y of None is a gap. ``style``: a number of a series, "muted" or "bound"."""

    name: str
    points: Sequence[tuple[float, float | None]]
    style: int | str
    has_marks: bool = False


class Bar(msgspec.Struct, frozen=True):
    """One row: its value, and the ends of its whisker, if it has one."""

    name: str
    value: float
    low: float
    high: float
    style: int | str = 0


class Stack(msgspec.Struct, frozen=True):
    """One row of shares, in the order of the parts."""

    name: str
    shares: Sequence[float]


class Part(msgspec.Struct, frozen=True):
    name: str
    class_: str


class Map(msgspec.Struct, frozen=True):
    """Rows of shares over steps of ``step`` each; ``names`` by row."""

    name: str
    rows: Sequence[Sequence[float]]
    names: Sequence[str]
    step: float


def line_chart(
    title: str,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    width: float = WIDTH,
    height: float = 330.0,
    steps: Sequence[float] = (),
    notes: Sequence[tuple[float, str]] = (),
) -> str:
    """Lines over x. ``steps`` are the places that say all values under the pointer; ``notes`` mark a place of x with a word."""
    drawn = [line for line in lines if any(value is not None for _, value in line.points)]
    head, begin = _legend([(line.name, _swatch(line)) for line in drawn], width)
    top, bottom = begin + (18 if notes else 10), begin + height - 46
    left, right = LEFT, width - RIGHT
    xs = [place for line in drawn for place, _ in line.points] + [place for place, _ in notes]
    across = x.scale(xs, left, right)
    up = y.scale([value for line in drawn for _, value in line.points if value is not None], bottom, top)
    body = [
        bottom_axis(across, top, bottom, x.label, x.show),
        left_axis(up, left, right, y.label, y.show),
        *(_note(across(place), top, bottom, words, left, right) for place, words in notes),
        *(_curve(line, at, across, up) for at, line in enumerate(drawn)),
        _hover(drawn, steps, across, up, x, y),
    ]
    if not drawn:
        body.append(text("nothing to show", (left + right) / 2, (top + bottom) / 2, at="middle", class_="soft"))
    return drawing(width, begin + height, title, head, *body, description=", ".join(line.name for line in drawn))


def bar_chart(title: str, bars: Sequence[Bar], x: Axis, *, marks: Sequence[tuple[float, str]] = ()) -> str:
    """Rows from the top. On a log axis, where a bar has no beginning, a dot. ``marks`` are lines across all rows."""
    left = _room([bar.name for bar in bars])
    values = [each for bar in bars for each in (bar.value, bar.high)] + [place for place, _ in marks]
    right = WIDTH - RIGHT - 58  # what follows is for the numbers
    across = x.scale([max(0.0, each) for each in values], left, right)
    top = 12.0 + (14 if marks else 0)
    bottom = top + ROW * max(1, len(bars)) + 6
    body = [bottom_axis(across, top, bottom, x.label, x.show)]
    for at, bar in enumerate(bars):
        y = top + 4 + ROW * at
        body.append(_bar(bar, y, across, x))
        body.append(text(cut(bar.name, left - 12), left - 8, y + 13, at="end"))
    body += [_note(across(place), top, bottom, words, left, WIDTH) for place, words in marks]
    return drawing(WIDTH, bottom + 46, title, *body, description=", ".join(bar.name for bar in bars))


def stack_chart(title: str, stacks: Sequence[Stack], parts: Sequence[Part], x: Axis) -> str:
    """Rows from the top, each cut into parts."""
    head, begin = _legend(
        [(part.name, element("rect", width=14, height=10, y=-9, class_=part.class_)) for part in parts]
    )
    left = _room([stack.name for stack in stacks])
    right = WIDTH - RIGHT - 6
    across = x.scale([sum(stack.shares) for stack in stacks], left, right)
    top = begin + 6
    bottom = top + ROW * max(1, len(stacks)) + 6
    body = [bottom_axis(across, top, bottom, x.label, x.show)]
    for at, stack in enumerate(stacks):
        y = top + 4 + ROW * at
        body.append(text(cut(stack.name, left - 12), left - 8, y + 13, at="end"))
        gone = 0.0
        for part, share in zip(parts, stack.shares, strict=True):
            if share > 0:
                hint = element("title", escape(f"{stack.name}: {part.name} {x.say(share)}"))
                width = across(gone + share) - across(gone)
                body.append(
                    element(
                        "rect",
                        hint,
                        x=across(gone),
                        y=y,
                        width=width,
                        height=ROW - 8,
                        class_=f"{part.class_} gap",
                        stroke_width=1 if width > 3 else 0,
                    )
                )
            gone += share
    return drawing(WIDTH, bottom + 46, title, head, *body, description=", ".join(stack.name for stack in stacks))


def map_chart(title: str, maps: Sequence[Map], x: Axis, legend: str, row_label: str) -> str:
    """One map below the other, with one legend, twice as wide as others. Neighbours of one shade are one rectangle."""
    left, right = LEFT, WIDE - RIGHT
    longest = max((each.step * len(each.rows[0]) for each in maps if each.rows), default=0.0)
    across = Scale(0.0, longest or 1.0, left, right)
    body = [_shades(right, legend)]
    y = 4.0
    for each in maps:
        body.append(text(cut(each.name, right - left - 300), left, y + 12, class_="strong"))
        y += 18
        tall = max(3.0, min(16.0, 168.0 / max(1, len(each.rows))))
        body += [_cells(each, at, y + tall * at, tall, across, x) for at in range(len(each.rows))]
        end = y + tall * len(each.rows)
        shown = [at for at in range(len(each.rows)) if at in (0, len(each.rows) - 1) or tall >= 12]
        body += [
            text(each.names[at], left - 6, y + tall * (at + 0.5) + 4, at="end", class_="soft small") for at in shown
        ]
        body.append(text(row_label, 13, (y + end) / 2, at="middle", class_="soft", turned=True))
        y = end + 14
    bottom = y - 10
    return drawing(WIDE, bottom + 46, title, *body, bottom_axis(across, bottom, bottom, x.label, x.show))


def _swatch(line: Line) -> str:
    mark = element("line", x1=0, x2=22, y1=-4, y2=-4, class_=_stroke(line.style), stroke_dasharray=_dash(line.style))
    dot = element("circle", cx=11, cy=-4, r=3, class_=_fill(line.style)) if line.has_marks else ""
    return mark + dot


def _legend(entries: Sequence[tuple[str, str]], width: float = WIDTH) -> tuple[str, float]:
    """Rows of swatches and names, and how far down they reach. ``data-key`` ties an entry to its series."""
    x, y, drawn = 0.0, 14.0, []
    for key, (name, swatch) in enumerate(entries):
        label = cut(name, 300)
        wide = 30 + width_of(label) + 16
        if x and x + wide > width:
            x, y = 0.0, y + 19
        drawn.append(
            element(
                "g",
                element("rect", x=-2, y=-13, width=wide - 10, height=18, class_="over"),
                swatch,
                text(label, 28, 0),
                class_="key",
                data_key=key,
                transform=f"translate({number(x + 2)} {number(y)})",
            )
        )
        x += wide
    return element("g", *drawn) if drawn else "", y + 6 if drawn else 0.0


def _curve(line: Line, key: int, across: Scale, up: Scale) -> str:
    pieces: list[str] = []
    pen = "M"
    for place, value in line.points:
        if value is None:
            pen = "M"
            continue
        pieces.append(f"{pen}{number(across(place))} {number(up(value))}")
        pen = "L"
    path = element("path", d="".join(pieces), class_=f"curve {_stroke(line.style)}", stroke_dasharray=_dash(line.style))
    marks = []
    if line.has_marks or len(line.points) == 1:
        marks = [
            element("circle", cx=across(place), cy=up(value), r=3.5, class_=_fill(line.style))
            for place, value in line.points
            if value is not None
        ]
    return element("g", path, *marks, class_="series", data_key=key)


def _hover(lines: Sequence[Line], steps: Sequence[float], across: Scale, up: Scale, x: Axis, y: Axis) -> str:
    """Bands of the plot, each of which says what every line is at its place."""
    if not steps or not lines:
        return ""
    tables = [dict(line.points) for line in lines]
    edges = [across(place) for place in steps]
    bands = []
    for at, place in enumerate(steps):
        values = [(line.name, table.get(place)) for line, table in zip(lines, tables, strict=True)]
        said = [f"{name}: {y.say(value)}" for name, value in values if value is not None]
        if not said:
            continue
        low = across.begin if at == 0 else (edges[at - 1] + edges[at]) / 2
        high = across.end if at == len(steps) - 1 else (edges[at] + edges[at + 1]) / 2
        hint = element("title", escape("\n".join([f"{x.label}: {x.say(place)}", *said])))
        bands.append(
            element("rect", hint, x=low, y=up.end, width=max(0.0, high - low), height=up.begin - up.end, class_="over")
        )
    return element("g", *bands)


def _note(place: float, top: float, bottom: float, words: str, left: float, right: float) -> str:
    half = width_of(words, 11) / 2
    middle = min(max(place, left + half), max(left + half, right - half))
    return element(
        "g",
        element("line", x1=place, x2=place, y1=top - 2, y2=bottom, class_="bound", stroke_dasharray="4 3"),
        text(words, middle, top - 6, at="middle", class_="small"),
    )


def _bar(bar: Bar, y: float, across: Scale, x: Axis) -> str:
    middle, tall = y + (ROW - 8) / 2, ROW - 8
    end = across(bar.value)
    parts = [
        element("line", x1=across.begin, x2=end, y1=middle, y2=middle, class_="axis")
        + element("circle", cx=end, cy=middle, r=5, class_=_fill(bar.style))
        if across.is_log
        else element(
            "rect", x=across.begin, y=y, width=max(0.0, end - across.begin), height=tall, class_=_fill(bar.style)
        )
    ]
    words = x.say(bar.value)
    if bar.high > bar.low:
        low, high = across(max(bar.low, across.low)), across(bar.high)
        parts.append(
            element(
                "path",
                d=f"M{number(low)} {number(middle)}H{number(high)}"
                f"M{number(low)} {number(middle - 4)}v8M{number(high)} {number(middle - 4)}v8",
                class_="whisker",
            )
        )
        words = f"{words}, 95 % interval {x.say(max(0.0, bar.low))} to {x.say(bar.high)}"
    parts.append(text(x.say(bar.value), WIDTH - RIGHT, middle + 4, at="end", class_="small"))
    return element("g", element("title", escape(f"{bar.name}: {words}")), *parts)


def _cells(each: Map, row: int, y: float, tall: float, across: Scale, x: Axis) -> str:
    shares = each.rows[row]
    drawn, begin = [], 0
    for at in range(1, len(shares) + 1):
        shade = _shade(shares[begin])
        if at < len(shares) and _shade(shares[at]) == shade:
            continue
        low, high = across(begin * each.step), across(at * each.step)
        mean = sum(shares[begin:at]) / (at - begin)
        when = f"{x.say(begin * each.step)} to {x.say(at * each.step)}"
        hint = element("title", escape(f"{each.names[row]}, {when}: {100 * mean:.0f} %"))
        # A little taller and wider than its place, so that no ground shines through between neighbours.
        drawn.append(
            element(
                "rect",
                hint,
                x=low,
                y=y,
                width=high - low + 0.3,
                height=tall - (1 if tall > 6 else -0.3),
                class_=f"h{shade}",
            )
        )
        begin = at
    return element("g", *drawn)


def _shades(right: float, legend: str) -> str:
    wide = 16.0
    begin = right - wide * HEAT - 38
    marks = [element("rect", x=begin + wide * at, y=6, width=wide, height=12, class_=f"h{at}") for at in range(HEAT)]
    return element(
        "g",
        text(legend, begin - 34, 16, at="end", class_="soft"),
        text("0 %", begin - 6, 16, at="end", class_="soft small"),
        *marks,
        text("100 %", right, 16, at="end", class_="soft small"),
    )


def _shade(share: float) -> int:
    return min(HEAT - 1, max(0, int(share * HEAT)))


def _room(names: Sequence[str]) -> float:
    """For names on the left of bars."""
    return min(250.0, max([70.0, *(width_of(name) + 14 for name in names)]))


def _stroke(style: int | str) -> str:
    return f"s{style % SERIES}" if isinstance(style, int) else style


def _fill(style: int | str) -> str:
    return f"f{style % SERIES}" if isinstance(style, int) else f"f{style}"


def _dash(style: int | str) -> str | None:
    if isinstance(style, int):
        return DASHES[style % len(DASHES)]
    return "5 4" if style == "bound" else None
