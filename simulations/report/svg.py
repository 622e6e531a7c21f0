"""Drawing: elements, scales, axes and words as SVG.

Knows geometry, in pixels from the top left, and how to escape. Never knows what is drawn. Looks come from classes alone, so
that one drawing serves light and dark; ``standalone`` gives it colours of its own.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from simulations.report.theme import CHART_CSS, LIGHT, resolved

LETTER: Final = 0.56
"""Width of a letter over its height, on average, of the fonts that are asked for; a little more than it is in most."""

Attribute = str | int | float | None


def escape(text: str) -> str:
    """For text and for attributes; what XML cannot hold becomes a question mark."""
    clean = "".join(
        each
        if each in "\t\n" or (each >= " " and not "\ud800" <= each <= "\udfff" and each not in "\ufffe\uffff")
        else "?"
        for each in text
    )
    return (
        clean.replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace('"', "&quot;")
        .replace("'", "&#39;")
    )


def number(value: float) -> str:
    """At most two places, which is enough for pixels."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def element(name: str, *children: str, **attributes: Attribute) -> str:
    """``class_`` and ``stroke_width`` stand for ``class`` and ``stroke-width``; None leaves an attribute out."""
    parts = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        shown = escape(value) if isinstance(value, str) else number(value)
        parts.append(f'{key.rstrip("_").replace("_", "-")}="{shown}"')
    return f"<{' '.join(parts)}>{''.join(children)}</{name}>" if children else f"<{' '.join(parts)}/>"


def text(words: str, x: float, y: float, *, at: str = "start", class_: str | None = None, turned: bool = False) -> str:
    """``at``: start, middle or end of the words is at ``x``; ``turned``: from the bottom to the top."""
    return element(
        "text",
        escape(words),
        x=x,
        y=y,
        text_anchor=None if at == "start" else at,
        class_=class_,
        transform=f"rotate(-90 {number(x)} {number(y)})" if turned else None,
    )


def width_of(words: str, size: float = 12.0) -> float:
    """About how wide words are."""
    return LETTER * size * len(words)


def cut(words: str, width: float, size: float = 12.0) -> str:
    """As much as fits, with an ellipsis where something was left out."""
    fits = max(2, int(width / (LETTER * size)))
    return words if len(words) <= fits else words[: fits - 1] + "…"


def drawing(width: float, height: float, title: str, *children: str, description: str = "") -> str:
    """A whole drawing. ``title`` and ``description`` are for those who cannot see it, and for programs."""
    head = [element("title", escape(title))]
    if description:
        head.append(element("desc", escape(description)))
    return element(
        "svg",
        *head,
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=title,
    )


def standalone(svg: str, colours: dict[str, str] = LIGHT) -> str:
    """A drawing that needs no page: with its size, its colours and a ground."""
    head, rest = svg.split(">", 1)
    width, height = head.split('viewBox="0 0 ')[1].split('"')[0].split(" ")
    style = element("style", resolved(CHART_CSS, colours))
    ground = element("rect", width=float(width), height=float(height), fill=colours["ground"])
    return f'{head} width="{width}" height="{height}">{style}{ground}{rest}\n'


class Scale(msgspec.Struct, frozen=True):
    """From values to pixels. A log scale takes what is below ``low`` to its edge."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.begin + share * (self.end - self.begin)

    def back(self, place: float) -> float:
        """The value at a pixel."""
        share = (place - self.begin) / (self.end - self.begin) if self.end != self.begin else 0.0
        if self.is_log:
            low, high = math.log10(self.low), math.log10(self.high)
            return float(10 ** (low + share * (high - low)))
        return self.low + share * (self.high - self.low)

    def ticks(self, about: int = 5) -> list[float]:
        return log_ticks(self.low, self.high, about) if self.is_log else nice_ticks(self.low, self.high, about)


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from low to high, about so many."""
    if not high > low:
        return [low]
    step = nice_step((high - low) / max(1, about))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(at * step, 12) for at in range(first, last + 1)]


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is no less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def log_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Powers of ten; with 2 and 5 between where there is room; every second or third one where there is none."""
    first, last = math.floor(math.log10(low) - 1e-9), math.ceil(math.log10(high) + 1e-9)
    powers = [10.0**at for at in range(first, last + 1)]
    fine = [step * power for power in powers for step in (1, 2, 5)]
    for some in (fine, powers):
        inside = [each for each in some if low * (1 - 1e-9) <= each <= high * (1 + 1e-9)]
        if 2 <= len(inside) <= 2 * about:
            return inside
    inside = [each for each in powers if low * (1 - 1e-9) <= each <= high * (1 + 1e-9)]
    return inside[:: max(1, -(-len(inside) // about))] or [low]


def log_limits(values: Sequence[float]) -> tuple[float, float]:
    """Limits of a log axis round these: 1, 2 or 5 times powers of ten. Values of 0 and below count as the least above it."""
    above = [each for each in values if each > 0 and math.isfinite(each)]
    low, high = (min(above), max(above)) if above else (1.0, 10.0)
    steps = [step * 10.0**at for at in range(-12, 16) for step in (1, 2, 5)]
    low = max((each for each in steps if each <= low * (1 + 1e-9)), default=steps[0])
    high = min((each for each in steps if each >= high * (1 - 1e-9)), default=steps[-1])
    return (low, high) if high > low else (low, low * 10)


def linear_limit(high: float, about: int = 5) -> float:
    """The end of an axis from 0 that takes in ``high``."""
    if high <= 0 or not math.isfinite(high):
        return 1.0
    step = nice_step(high / about)
    return step * math.ceil(high / step - 1e-9)


def bottom_axis(
    scale: Scale, top: float, bottom: float, label: str, show: Callable[[float], str], about: int = 6
) -> str:
    """Lines through the plot, numbers under it, and the label in the middle below."""
    marks = []
    for tick in scale.ticks(about):
        x = scale(tick)
        marks.append(element("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
        marks.append(text(show(tick), x, bottom + 16, at="middle", class_="soft small"))
    marks.append(element("line", x1=scale.begin, x2=scale.end, y1=bottom, y2=bottom, class_="axis"))
    marks.append(text(label, (scale.begin + scale.end) / 2, bottom + 34, at="middle", class_="soft"))
    return element("g", *marks)


def left_axis(scale: Scale, left: float, right: float, label: str, show: Callable[[float], str], about: int = 5) -> str:
    marks = []
    for tick in scale.ticks(about):
        y = scale(tick)
        marks.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        marks.append(text(show(tick), left - 7, y + 4, at="end", class_="soft small"))
    marks.append(text(label, 13, (scale.begin + scale.end) / 2, at="middle", class_="soft", turned=True))
    return element("g", *marks)
