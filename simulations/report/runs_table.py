"""The table of all runs in the page, with the bounds beneath.

Knows results and HTML. Never knows which of them matter.
"""

from collections.abc import Callable, Mapping, Sequence

from simulations.report.comparison import base, cells, fleet_of, ranked, varied_settings
from simulations.report.document import Document
from simulations.report.figures import count, percent, seconds
from simulations.report.fleets import ALWAYS, setting_words
from simulations.report.result import Result
from simulations.report.svg import element, escape

Shown = tuple[str, str | int | float | None]
"""What stands in a column, and what it is sorted by (None: by what stands there)."""

Words = Callable[[Mapping[str, str | int | float | bool | None]], str]
"""A setting as people write it, by the settings of a run."""

NOTHING: Shown = ("-", -1)


def runs_table(report: Document) -> str:
    """Every run a row; what runs differ in are columns. Empty if there is none."""
    if not report.results:
        return ""
    varied = {name: _words(name, report.results) for name in varied_settings(report.results)}
    shown = [_columns(result, report.results, varied) for result in report.results]
    heads = list(shown[0])
    best = next(iter(ranked(base(cells(report.results)))), None)
    rows = [
        element(
            "tr",
            *(
                element(
                    "td", escape(words), class_=None if at else "name", data_value=None if key is None else str(key)
                )
                for at, (words, key) in enumerate(columns.values())
            ),
            class_="first" if best and (result.policy, fleet_of(result)) == (best.policy, best.fleet) else None,
        )
        + "\n"
        for result, columns in zip(report.results, shown, strict=True)
    ]
    names = [element("th", escape(head), scope="col", class_=None if at else "name") for at, head in enumerate(heads)]
    parts = [element("thead", element("tr", *names)), element("tbody", "\n", *rows)]
    if report.bounds is not None:
        parts.append(element("tbody", "\n", *_limits(report, heads.index("hit"), len(heads))))
    return element("h2", "All runs") + element("div", element("table", *parts, class_="sort"), class_="scroll") + "\n"


def value_words(value: str | int | float | bool | None) -> str:
    """A setting as it is written."""
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _words(name: str, results: Sequence[Result]) -> Words:
    if name in ALWAYS:
        return setting_words(name, [each.settings for each in results])
    return lambda settings: value_words(settings.get(name))


def _columns(result: Result, results: Sequence[Result], varied: Mapping[str, Words]) -> dict[str, Shown]:
    summary, misses = result.summary, result.misses
    columns: dict[str, Shown] = {"policy": (result.policy, None)}
    if len({each.replicas for each in results}) > 1:
        columns["replicas"] = (str(result.replicas), result.replicas)
    if len({each.cache_tokens for each in results}) > 1:
        size = result.cache_tokens
        columns["cache tokens"] = NOTHING if size is None else (count(size), size)
    for name, words in varied.items():
        value = result.settings.get(name)
        columns[name] = (words(result.settings), value if isinstance(value, int | float) else None)
    columns["seed"] = (str(result.seed), result.seed)
    figures: dict[str, tuple[Callable[[float], str], float]] = {"hit": (percent, summary.hit)}
    times = {
        "TTFT mean s": summary.ttft_mean,
        "p50 s": summary.ttft_p50,
        "p95 s": summary.ttft_p95,
        "p99 s": summary.ttft_p99,
        "max s": summary.ttft_max,
        "latency mean s": summary.latency_mean,
    }
    figures |= {name: (seconds, value) for name, value in times.items()}
    if any(each.summary.tpot_mean is not None for each in results):
        figures["latency p95 s"] = (seconds, summary.latency_p95)
        for name, pace in (("TPOT mean ms", summary.tpot_mean), ("p95 ms", summary.tpot_p95)):
            figures[name] = (seconds, 1000 * pace) if pace is not None else (lambda _: "-", -1.0)
    figures |= {"spread": (lambda value: f"{value:.2f}", summary.spread), "prompts": (percent, result.prompt_busy)}
    is_served = summary.requests > summary.refused
    columns |= {name: (show(value), value) if is_served else NOTHING for name, (show, value) in figures.items()}
    columns["refused"] = (f"{summary.refused:,}", summary.refused)
    missed = {
        "evicted": misses.evicted,
        "elsewhere": misses.elsewhere,
        "in flight": misses.in_flight,
        "first time": misses.first,
    }
    for name, tokens in missed.items():
        columns[name] = (percent(tokens / result.tokens), tokens / result.tokens) if result.tokens else NOTHING
    return columns


def _limits(report: Document, before: int, columns: int) -> list[str]:
    assert report.bounds is not None
    named = [("a cache that forgets nothing", report.bounds.infinite)]
    for pool in report.bounds.pools:
        named.append((f"one LRU cache of {count(pool.tokens)} tokens", pool.lru))
        named.append((f"one of {count(pool.tokens)} that knows the future", pool.belady))
    return [
        element(
            "tr",
            element("td", escape(name), class_="name", colspan=before),
            element("td", percent(hit)),
            element("td", "", colspan=columns - before - 1),
            class_="limit",
        )
        + "\n"
        for name, hit in named
    ]
