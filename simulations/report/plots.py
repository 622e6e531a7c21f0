"""The plots of a report: what each shows, and of which figures.

Knows a document's results and which of them belong into one picture. Never knows a page; each plot is a drawing with its
caption.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from simulations.report.charts import (
    WIDE,
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
from simulations.report.comparison import Cell, alike, base, cache_settings, cells, kind_name, ranked
from simulations.report.document import Document
from simulations.report.figures import count, duration, percent, seconds, tick
from simulations.report.fleets import size_words
from simulations.report.result import BINS, SHARES

MISSES: Final = (
    Part("from a cache", "hit"),
    Part("evicted", "evicted"),
    Part("elsewhere", "elsewhere"),
    Part("in flight", "in_flight"),
    Part("first time", "first"),
)
LINES: Final = 6
"""So many policies are drawn as lines; more could not be told apart. The others are in the bars and in the table."""

WIDE_RANGE: Final = 12.0
"""Beyond this ratio the short bars of a linear axis cannot be told apart any more."""


class Plot(msgspec.Struct, frozen=True):
    """``key`` names its file; ``caption`` says how it is read; ``is_wide`` if it is made to fill a whole row."""

    key: str
    title: str
    caption: str
    svg: str
    is_wide: bool = False


def plots_of(report: Document) -> list[Plot]:
    """Every plot that there are figures for, in the order in which they are read."""
    every = cells(report.results)
    compared = [cell for cell in ranked(base(every)) if cell.served]
    if not compared:
        return []
    styles = _styles(compared)
    made = [
        _policies_ttft(compared, styles),
        _policies_hit(report, compared, styles),
        _misses(compared),
        _capacity(report, every, compared, styles),
        _ttft(compared, styles),
        _replicas(every, compared, styles),
    ]
    found = [plot for plot in made if plot is not None]
    found.append(_hit_over_time(compared, styles, is_wide=len(found) % 2 == 0))  # two in a row, and none alone
    balance = _balance(compared)
    return found if balance is None else [*found, balance]


def _styles(compared: Sequence[Cell]) -> dict[str, int | str]:
    """A colour for each that is drawn as a line, the same in every plot; the rest is grey."""
    drawn = [cell.policy for cell in _drawn(compared)]
    return {cell.policy: drawn.index(cell.policy) if cell.policy in drawn else "muted" for cell in compared}


def _seconds_axis(label: str, values: Sequence[float]) -> Axis:
    above = [value for value in values if value > 0]
    is_wide = bool(above) and max(above) > WIDE_RANGE * min(above)
    return Axis(label + (", log axis" if is_wide else ""), tick, is_log=is_wide, exact=seconds)


def _policies_ttft(compared: Sequence[Cell], styles: dict[str, int | str]) -> Plot:
    bars = [
        Bar(cell.policy, cell.ttft_mean.mean, cell.ttft_mean.low, cell.ttft_mean.high, styles[cell.policy])
        for cell in compared
    ]
    axis = _seconds_axis("mean time to the first token, s", [bar.value for bar in bars])
    return Plot(
        "policies-ttft",
        "How long until the first token",
        f"{_seeds(compared)} The best is on top. {size_words(compared[0].fleet)}.",
        bar_chart("Mean time to the first token by policy", bars, axis),
    )


def _policies_hit(report: Document, compared: Sequence[Cell], styles: dict[str, int | str]) -> Plot:
    bars = [Bar(cell.policy, cell.hit.mean, cell.hit.low, cell.hit.high, styles[cell.policy]) for cell in compared]
    marks = (
        []
        if report.bounds is None
        else [(report.bounds.infinite, f"nothing forgotten {percent(report.bounds.infinite)}")]
    )
    top = _limit(max([bar.high for bar in bars] + [place for place, _ in marks]))
    axis = Axis("prompt tokens from a cache", _whole_percent, limits=(0.0, top), exact=percent)
    return Plot(
        "policies-hit",
        "How much came from a cache",
        f"The dashed line is what a cache that forgets nothing would hit; no policy gets beyond it. {_seeds(compared)}",
        bar_chart("Hit rate by policy", bars, axis, marks=marks),
    )


def _misses(compared: Sequence[Cell]) -> Plot:
    stacks = []
    for cell in compared:
        first, in_flight, elsewhere, evicted = cell.misses
        stacks.append(Stack(cell.policy, (cell.hit.mean, evicted, elsewhere, in_flight, first)))
    return Plot(
        "misses",
        "Where prompt tokens come from",
        "Evicted: a larger cache would have had them. Elsewhere: another replica had them. In flight: somebody was just "
        "computing them. First time: nobody could have had them.",
        stack_chart(
            "Prompt tokens by where they come from",
            stacks,
            MISSES,
            Axis("share of prompt tokens", _whole_percent, limits=(0, 1), exact=percent),
        ),
    )


def _capacity(
    report: Document, every: Sequence[Cell], compared: Sequence[Cell], styles: dict[str, int | str]
) -> Plot | None:
    limits = report.bounds
    same = ("cache_tokens", *cache_settings(every))
    runs: list[Line] = []
    for cell in _drawn(compared):
        sizes = [(other.fleet.pool_tokens, other.hit.mean) for other in alike(cell, every, *same) if other.served]
        known = sorted((size, hit) for size, hit in sizes if size is not None)
        runs.append(Line(cell.policy, known, styles[cell.policy], has_marks=True))
    places = [place for line in runs for place, _ in line.points]
    lines: list[Line] = []
    if limits is not None:
        ends = (min(places) / 8, max(places) * 4) if places else (0.0, float("inf"))
        curve: list[tuple[float, float]] = list(zip(limits.curve_tokens, limits.curve_hits, strict=True))
        if places and curve and curve[-1][0] < max(places):
            curve.append((max(places), limits.infinite))  # all of it fits into more, too
        curve = [each for each in curve if ends[0] <= each[0] <= ends[1]]
        lines.append(Line("one LRU cache", curve, "bound"))
        known = [(each.tokens, each.belady) for each in limits.pools if ends[0] <= each.tokens <= ends[1]]
        lines.append(Line("one cache that knows the future", known, "muted", has_marks=True))
    lines += runs
    places = sorted({place for line in lines for place, _ in line.points if place > 0})
    if not places:
        return None
    pool = compared[0].fleet.pool_tokens
    top = _limit(max([value for line in lines for _, value in line.points if value is not None]))
    return Plot(
        "capacity",
        "What more cache would bring",
        "Dots are runs. What is between them and the dashed line is lost by having several caches; what is between the dashed "
        "line and the grey one, by not knowing what will be needed again.",
        line_chart(
            "Hit rate by cache size",
            lines,
            Axis(
                "cache of all replicas together, tokens, log axis",
                count,
                is_log=True,
                limits=(places[0], max(places[-1], places[0] * 2)),
            ),
            Axis("prompt tokens from a cache", _whole_percent, limits=(0, top), exact=percent),
            steps=places,
            notes=[] if pool is None else [(pool, f"this fleet: {count(pool)}")],
        ),
    )


def _hit_over_time(compared: Sequence[Cell], styles: dict[str, int | str], *, is_wide: bool) -> Plot:
    drawn = [(cell, cell.results[0]) for cell in _drawn(compared)]
    ends = [result.bin_seconds * _last(result.hit_by_time) for _, result in drawn]
    x, unit = _time_axis("time of arrival", max(ends))
    lines = [
        Line(cell.policy, _course(result.hit_by_time, result.bin_seconds / unit), styles[cell.policy])
        for cell, result in drawn
    ]
    best = compared[0].results[0]
    ceiling = Line("nothing forgotten", _course(best.ceiling_by_time, best.bin_seconds / unit), "bound")
    steps = [place for place, _ in lines[0].points]
    tops = [value for line in [*lines, ceiling] for _, value in line.points if value is not None]
    return Plot(
        "hit-over-time",
        "Hit rate over time",
        f"By time of arrival, {duration(best.bin_seconds)} a step. All begin at nothing, the dashed line too, since caches are "
        "empty at the start." + _left_out(compared),
        line_chart(
            "Hit rate over time",
            [ceiling, *lines],
            x,
            Axis(
                "prompt tokens from a cache", _whole_percent, limits=(0, _limit(max(tops, default=1.0))), exact=percent
            ),
            steps=steps,
            width=WIDE if is_wide else WIDTH,
        ),
        is_wide=is_wide,
    )


def _ttft(compared: Sequence[Cell], styles: dict[str, int | str]) -> Plot:
    lines = []
    for cell in _drawn(compared):
        points = [(max(value, 1e-4), share) for value, share in zip(cell.results[0].ttfts, SHARES, strict=True)]
        lines.append(Line(cell.policy, points, styles[cell.policy]))
    values = [value for line in lines for value, _ in line.points]
    # The quickest hundredth would stretch the axis over decades in which nothing is to be seen.
    most = [value for line in lines for value, share in line.points if share is not None and share >= 0.01]
    low = max(min(most, default=1e-3), max(values, default=1.0) / 1e6)
    axis = Axis("time to the first token, s, log axis", tick, is_log=True)
    scale = axis.scale([low, *(value for value in values if value >= low)], 0, 1)
    return Plot(
        "ttft",
        "Time to the first token",
        "The share of requests that had their first token by then: further to the left is better, and the upper end is what "
        "the unlucky ones see." + _left_out(compared) + _first_seed(compared),
        line_chart(
            "Distribution of the time to the first token",
            lines,
            Axis(axis.label, tick, is_log=True, limits=(scale.low, scale.high)),
            Axis("share of requests", _whole_percent, limits=(0, 1)),
        ),
    )


def _balance(compared: Sequence[Cell]) -> Plot | None:
    chosen = [compared[0], *(cell for cell in compared[1:] if cell is _plain(compared))]
    x, unit = _time_axis("time", max(cell.results[0].bin_seconds * BINS for cell in chosen))
    maps = []
    for cell in chosen:
        result = cell.results[0]
        names = [
            str(at * result.rows)
            if result.rows == 1
            else f"{at * result.rows}-{min(result.replicas, (at + 1) * result.rows) - 1}"
            for at in range(len(result.busy_by_time))
        ]
        if result.bin_seconds > 0 and result.busy_by_time:
            maps.append(
                Map(
                    f"{cell.policy}, busiest over mean {result.summary.spread:.2f}",
                    result.busy_by_time,
                    names,
                    result.bin_seconds / unit,
                )
            )
    if not maps:
        return None
    grouped = f" A row is {chosen[0].results[0].rows} replicas." if chosen[0].results[0].rows > 1 else ""
    return Plot(
        "balance",
        "How evenly replicas work",
        f"The share of the time that a replica has prompts to compute: the best policy, and one to compare with.{grouped} "
        "A row that stands out is a replica that is busier than others; a column is a burst." + _first_seed(compared),
        map_chart("Busy replicas over time", maps, x, "busy", "replica"),
        is_wide=True,
    )


def _replicas(every: Sequence[Cell], compared: Sequence[Cell], styles: dict[str, int | str]) -> Plot | None:
    lines = []
    for cell in _drawn(compared):
        points = sorted(
            (other.fleet.replicas, other.ttft_p95.mean) for other in alike(cell, every, "replicas") if other.served
        )
        if len(points) > 1:
            lines.append(Line(cell.policy, points, styles[cell.policy], True))
    if not lines:
        return None
    places = sorted({place for line in lines for place, _ in line.points})
    return Plot(
        "replicas",
        "What more replicas would bring",
        "The 95th percentile of the time to the first token by the number of replicas, with the cache of each as it is.",
        line_chart(
            "Time to the first token by replicas",
            lines,
            Axis("replicas", count, limits=(0, places[-1] * 1.05)),
            _seconds_axis(
                "95th percentile, s", [value for line in lines for _, value in line.points if value is not None]
            ),
            steps=places,
        ),
    )


def _plain(compared: Sequence[Cell]) -> Cell:
    """What to compare with: round robin or, without it, the last."""
    return next((cell for cell in compared if kind_name(cell.policy) == "round_robin"), compared[-1])


def _drawn(compared: Sequence[Cell]) -> list[Cell]:
    """The best, and what to compare them with."""
    if len(compared) <= LINES:
        return list(compared)
    plain = _plain(compared)
    best = [cell for cell in compared if cell is not plain][: LINES - 1]
    return [cell for cell in compared if cell in best or cell is plain]


def _left_out(compared: Sequence[Cell]) -> str:
    some = _drawn(compared)
    return (
        ""
        if len(some) == len(compared)
        else f" {len(some)} of {len(compared)} policies are drawn: the best, and one to compare with."
    )


def _course(shares: Sequence[float | None], width: float) -> list[tuple[float, float | None]]:
    return [((at + 0.5) * width, share) for at, share in enumerate(shares[: _last(shares)])]


def _last(shares: Sequence[float | None]) -> int:
    """How many steps there are up to the last one in which anything came."""
    return max((at + 1 for at, share in enumerate(shares) if share is not None), default=0)


def _time_axis(label: str, longest: float) -> tuple[Axis, float]:
    """In the unit that suits, and how many seconds that has."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if longest >= 3 * size or size == 1.0:
            return Axis(f"{label}, {unit}", tick, limits=(0.0, longest / size or 1.0)), size
    raise AssertionError


def _limit(high: float) -> float:
    """Of an axis of shares: the next tenth, at most all."""
    return min(1.0, max(0.1, (int(high * 10 - 1e-9) + 1) / 10))


def _whole_percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _seeds(compared: Sequence[Cell]) -> str:
    seeds = sorted({cell.seeds for cell in compared})
    if seeds == [1]:
        return "One seed, so without whiskers."
    return f"Whiskers are the 95 % interval of the mean over {seeds[0]}{f' to {seeds[-1]}' if len(seeds) > 1 else ''} seeds."


def _first_seed(compared: Sequence[Cell]) -> str:
    return "" if all(cell.seeds == 1 for cell in compared) else " Of several seeds, the first."
