"""What is kept of a run: its figures, and its course in a fixed number of steps.

Knows ``Run`` and how to make it small; a run's columns may go once this is made. Never knows other runs, or how anything is
shown.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from simulations.detailed_fleet import Restart
from simulations.quantiles import quantile
from simulations.results import REFUSED, Misses, Run, Summary, summarise

BINS: Final = 60
"""Steps of time that a run is shown in."""

ROWS: Final = 64
"""Of a larger fleet, neighbours share a row."""

_Spans: TypeAlias = list[tuple[float, float]]
"""From when to when, in seconds."""

SHARES: Final = (*(at / 100 for at in range(100)), 0.995, 0.999, 0.9999)
"""The quantiles that stand for a distribution."""


class Result(msgspec.Struct, frozen=True):
    """One run, made small.

    Attributes:
        policy, seed, replicas, settings: as in the run.
        cache_tokens: what one replica's cache holds, where it is known.
        summary, misses: its figures.
        tokens: prompt tokens of requests that were served.
        bin_seconds: length of a step.
        hit_by_time: by step of arrival, the share of prompt tokens that came from a cache; None where nothing came.
        ceiling_by_time: what a cache that forgets nothing would have had of them; empty where nobody says.
        ttfts: seconds, at ``SHARES``; empty where nothing was served.
        prompt_busy: the share of the time that a replica had prompts to compute: somebody waited there for the first token. Up
            to the last arrival, as what comes after that is less and less. Who is down after a restart has no time.
        busy_by_time: the same by row of replicas and step.
        rows: how many replicas share a row; the last may have fewer.
        prompt_work: the same as ``prompt_busy``, with all that was still to be computed when the last one came: above 1, more
            came than could be computed. With a split, of the replicas that compute prompts: seconds of their steps.
        ttft_p95_least: what no number of such replicas brings the 95th percentile of the time to the first token below, in
            seconds (``simulations.least``); None where that is not known, or nobody asked.
        link_busy: the share of the same time for which a link carried what its replica loads, over the replicas that load.
        down: the share of the time up to the last arrival for which replicas were down after restarts.
        forgotten: as in the run.
    """

    policy: str
    seed: int
    replicas: int
    settings: dict[str, str | int | float | bool | None]
    cache_tokens: int | None
    summary: Summary
    misses: Misses
    tokens: int
    bin_seconds: float
    hit_by_time: list[float | None]
    ceiling_by_time: list[float | None]
    ttfts: list[float]
    prompt_busy: float
    busy_by_time: list[list[float]]
    rows: int
    prompt_work: float = 0.0
    link_busy: float = 0.0
    down: float = 0.0
    forgotten: int = 0
    ttft_p95_least: float | None = None


def result_of(
    run: Run,
    *,
    cache_tokens: int | None = None,
    infinite: Sequence[int] | None = None,
    ttft_p95_least: float | None = None,
    has_blocks: bool = True,
) -> Result:
    """A run made small.

    ``cache_tokens`` of one replica; ``infinite`` by request, in the run's order, the prompt tokens that had come before
    (``Bounds.infinite_by_request``); ``ttft_p95_least`` as in ``Result``. Without ``has_blocks``, nobody knows what prompts
    have in common: caches serve nothing, and whether they were full does not matter.
    """
    served = [at for at, replica in enumerate(run.chosen) if replica != REFUSED]
    width = _width(run)
    ttfts = sorted([run.ttfts[at] for at in served])
    rows = -(-run.replicas // ROWS) if run.replicas else 1
    busy = _busy(run, served)
    span = max(run.arrivals, default=0.0) or run.seconds
    downs = downtimes(run.settings, run.replicas)
    up = [span - _within(spans, 0.0, span) for spans in downs]
    working = _working(busy, downs)
    return Result(
        policy=run.policy,
        seed=run.seed,
        replicas=run.replicas,
        settings=run.settings,
        cache_tokens=cache_tokens,
        summary=summarise(run, cache_tokens if has_blocks else None),
        misses=run.misses,
        tokens=sum([run.inputs[at] for at in served]),
        bin_seconds=width,
        hit_by_time=_shares(run, run.hits, served, width),
        ceiling_by_time=[] if infinite is None else _shares(run, infinite, served, width),
        ttfts=[_short(quantile(ttfts, share)) for share in SHARES] if ttfts else [],
        prompt_busy=_share([_within(spans, 0.0, span) for spans in working], up),
        busy_by_time=_grid(busy, width, rows),
        rows=rows,
        prompt_work=_work(run, working, up),
        link_busy=_link_busy(run, up),
        forgotten=run.forgotten,
        down=1 - sum(up) / (span * run.replicas) if span > 0 and run.replicas else 0.0,
        ttft_p95_least=ttft_p95_least,
    )


def split_of(settings: Mapping[str, object]) -> int:
    """How many replicas compute prompts for the others, by a run's settings; 0 where none are apart."""
    prefill = table_of(settings, "disaggregation").get("prefill")
    return prefill if isinstance(prefill, int) else 0


def table_of(settings: Mapping[str, object], name: str) -> dict[str, Any]:
    """A setting that has fields of its own; empty where there is none, or one that nobody reads."""
    text = settings.get(name)
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if isinstance(text, str) else {}
    except msgspec.MsgspecError:
        return {}


def downtimes(settings: Mapping[str, object], replicas: int) -> list[_Spans]:
    """By replica, from when to when it was down, by a run's settings; in order, and none meets the next."""
    down: list[_Spans] = [[] for _ in range(replicas)]
    text = settings.get("restarts")
    if not isinstance(text, str):
        return down
    for restart in sorted(msgspec.json.decode(text, type=list[Restart]), key=lambda each: each.at):
        spans, end = down[restart.replica], restart.at + restart.down
        if spans and restart.at <= spans[-1][1]:  # who dies again while it is down comes back by the later one
            spans[-1] = spans[-1][0], end
        else:
            spans.append((restart.at, end))
    return down


def _within(spans: _Spans, begin: float, end: float) -> float:
    """How much of this time the spans cover."""
    return sum([max(0.0, min(last, end) - max(first, begin)) for first, last in spans])


def _working(busy: Sequence[_Spans], downs: Sequence[_Spans]) -> list[_Spans]:
    """The spans of each replica without those in which it was down: who waits then, waits for it to come back."""
    made = []
    for spans, down in zip(busy, downs, strict=True):
        for first, last in down:
            spans = [  # noqa: PLW2901 - cut once for each of them
                part
                for begin, end in spans
                for part in ((begin, min(end, first)), (max(begin, last), end))
                if part[0] < part[1]
            ]
        made.append(spans)
    return made


def _share(times: Sequence[float], of: Sequence[float]) -> float:
    return sum(times) / total if (total := sum(of)) > 0 else 0.0


def _work(run: Run, working: Sequence[_Spans], up: Sequence[float]) -> float:
    if prefill := split_of(run.settings):
        return _share(run.busy[:prefill], up[:prefill])
    return _share([end - begin for spans in working for begin, end in spans], up)


def _link_busy(run: Run, up: Sequence[float]) -> float:
    split = split_of(run.settings)
    return _share(run.loading[split:], up[split:])


def _short(value: float) -> float:
    """Six digits: more would make the document large, and mean nothing."""
    return float(f"{value:.6g}")


def _width(run: Run) -> float:
    last = max([run.seconds, *(arrival for arrival in run.arrivals)], default=0.0)
    return last / BINS


def _bin(seconds: float, width: float) -> int:
    return min(BINS - 1, int(seconds / width)) if width > 0 else 0


def _shares(run: Run, tokens: Sequence[int], served: list[int], width: float) -> list[float | None]:
    had, asked = [0] * BINS, [0] * BINS
    for at in served:
        step = _bin(run.arrivals[at], width)
        had[step] += tokens[at]
        asked[step] += run.inputs[at]
    return [_short(some / all_) if all_ else None for some, all_ in zip(had, asked, strict=True)]


def _busy(run: Run, served: list[int]) -> list[_Spans]:
    """By replica, from when to when somebody waited for the first token; in order, and none meets the next."""
    waits: list[list[tuple[float, float]]] = [[] for _ in range(run.replicas)]
    for at in served:
        waits[run.chosen[at]].append((run.arrivals[at], run.arrivals[at] + run.ttfts[at]))
    busy = []
    for some in waits:
        some.sort()
        joined: list[tuple[float, float]] = []
        for begin, end in some:
            if joined and begin <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(joined[-1][1], end)
            else:
                joined.append((begin, end))
        busy.append(joined)
    return busy


def _grid(busy: list[_Spans], width: float, rows: int) -> list[list[float]]:
    grid = [array("d", bytes(8 * BINS)) for _ in range(-(-len(busy) // rows))]
    for replica, spans in enumerate(busy):
        row = grid[replica // rows]
        for begin, end in spans:
            for step in range(_bin(begin, width), _bin(end, width) + 1):
                low = begin if begin > step * width else step * width
                high = end if end < (step + 1) * width else (step + 1) * width
                if high > low:
                    row[step] += high - low
    sizes = [min(rows, len(busy) - rows * at) * width for at in range(len(grid))]
    return [
        [round(min(1.0, each / size), 4) if size else 0.0 for each in row]
        for row, size in zip(grid, sizes, strict=True)
    ]
