"""Numbers as people read them: as many digits as mean something, with their unit.

Knows magnitudes. Never knows what is counted.
"""


def seconds(value: float) -> str:
    """Without a unit: 0.563, 1.03, 12.5, 523, 5,008."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    if value >= 0.9995:
        return f"{value:.2f}"
    return "0" if value == 0 else f"{value:.3f}" if value >= 0.0005 else f"{value:.1g}"


def duration(value: float) -> str:
    """With the unit that suits: 0.4 ms, 0.563 s, 59 min, 3.4 h, 12.5 days."""
    if 0 < value < 0.1:
        return f"{value * 1000:.3g} ms"
    if value < 600:
        return f"{seconds(value)} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h" if value < 172_800 else f"{seconds(value / 86_400)} days"


def apart(value: float, other: float) -> str:
    """A duration, in so many digits that nobody takes it for the other one."""
    text = duration(value)
    if value == other or text != duration(other):
        return text
    return next(
        (f"{value:.{digits}g} s" for digits in range(4, 17) if f"{value:.{digits}g}" != f"{other:.{digits}g}"), text
    )


def tick(value: float) -> str:
    """Of an axis: no more digits than it takes."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def points(share: float) -> str:
    """A difference of shares, in percentage points."""
    value = 100 * share
    text = f"{value:.0f}" if abs(value) >= 9.95 else f"{value:.1f}"
    text = text.removesuffix(".0")
    text = "0" if text == "-0" else text
    return f"{text} point{'' if text == '1' else 's'}"


def count(value: float) -> str:
    """With a prefix: 640, 8.2 k, 4.2 M, 1.3 G."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {sign}"
    return f"{value:.3g}" if value != int(value) else f"{int(value)}"


def times(value: float) -> str:
    """A ratio: 1.4 times, 12 times."""
    return f"{value:,.0f} times" if value >= 9.95 else f"{value:.1f} times"
