"""Runs side by side: those that differ in nothing but their seed become one cell, with how sure its figures are.

Knows results, and which of them are comparable. Never knows what is concluded or how it is shown.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev
from typing import Final

import msgspec

from simulations.report.result import Result

BLIND: Final = frozenset({"round_robin", "random", "random_choice", "least_load", "power_of_two"})
"""Policies that look at load alone, or at nothing."""

STICKY: Final = frozenset({"consistent_hash", "session_sticky"})
"""Policies that send what belongs together to one place, and know nothing of caches."""

# Two-sided 95 % quantiles of Student's t distribution by degrees of freedom, from 1 on.
_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

TIES: Final = 0.03
"""How far times of one policy lie apart when only ties fall otherwise (1 to 3 % on public traces): less is no difference."""

HIT_TIES: Final = 0.005
"""The same for hits, as a share of prompt tokens."""


class Spread(msgspec.Struct, frozen=True):
    """A figure over seeds: its mean and the 95 % interval of that mean (Student's t). One seed has an interval of no width."""

    mean: float
    low: float
    high: float


class Fleet(msgspec.Struct, frozen=True):
    """What a policy was run on; equal fleets can be compared."""

    replicas: int
    cache_tokens: int | None
    settings: tuple[tuple[str, str | int | float | bool | None], ...]

    @property
    def pool_tokens(self) -> int | None:
        """What all caches hold together."""
        return None if self.cache_tokens is None else self.cache_tokens * self.replicas


class Cell(msgspec.Struct, frozen=True):
    """One policy on one fleet, over its seeds. ``misses`` are shares of prompt tokens: first, in flight, elsewhere, evicted,
    and ``forgotten`` is what of the evicted ones restarts have thrown away. ``down`` is the share of the replicas' time that
    they were down.

    ``tpot_mean`` is None where answers were not played token by token (``simulations.results.Summary``).
    """

    policy: str
    fleet: Fleet
    results: tuple[Result, ...]
    hit: Spread
    ttft_mean: Spread
    ttft_p95: Spread
    latency_mean: Spread
    tpot_mean: Spread | None
    misses: tuple[float, float, float, float]
    prompt_busy: float
    prompt_work: float
    link_busy: float
    down: float
    forgotten: float
    refused: float
    served: bool

    @property
    def seeds(self) -> int:
        return len(self.results)

    @property
    def is_certain(self) -> bool:
        """Whether several seeds brought the same: no chance was in what was played."""
        first, *others = self.results
        return bool(others) and all(msgspec.structs.replace(each, seed=first.seed) == first for each in others)

    @property
    def ttft_p95_least(self) -> float | None:
        """What no number of such replicas brings the 95th percentile below, in seconds; None where it is not known."""
        return self.results[0].ttft_p95_least

    @property
    def in_flight(self) -> float:
        return self.misses[1]

    @property
    def elsewhere(self) -> float:
        return self.misses[2]

    @property
    def evicted(self) -> float:
        """What a larger cache would have had."""
        return max(0.0, self.misses[3] - self.forgotten)


def fleet_of(result: Result) -> Fleet:
    return Fleet(result.replicas, result.cache_tokens, tuple(sorted(result.settings.items())))


def cells(results: Iterable[Result]) -> list[Cell]:
    """One for each policy and fleet, in the order in which they first come."""
    groups: dict[tuple[str, Fleet], list[Result]] = {}
    for result in results:
        group = groups.setdefault((result.policy, fleet_of(result)), [])
        if all(result.seed != other.seed for other in group):  # a fleet that is named twice was played once
            group.append(result)
    return [_cell(policy, fleet, group) for (policy, fleet), group in groups.items()]


def base(all_cells: Sequence[Cell]) -> list[Cell]:
    """Those on the fleet that most policies were run on (the first of several): what policies are compared by.

    A policy counts where somebody was served. A fleet whose caches are one (``pooled``) is none that anybody has; it is taken
    only where there is no other.
    """
    counts: dict[Fleet, int] = {}
    for cell in all_cells:
        counts[cell.fleet] = counts.get(cell.fleet, 0) + cell.served
    real = {fleet: count for fleet, count in counts.items() if not dict(fleet.settings).get("pooled")} or counts
    chosen = max(real, key=real.__getitem__, default=None)
    return [cell for cell in all_cells if cell.fleet == chosen]


def ranked(some: Iterable[Cell]) -> list[Cell]:
    """The best first: who refuses least, then who is fastest to the first token, then who hits most."""
    return sorted(
        some,
        key=lambda cell: (not cell.served, round(cell.refused, 3), cell.ttft_mean.mean, -cell.hit.mean, cell.policy),
    )


def alike(cell: Cell, others: Iterable[Cell], *ignoring: str, by_all: bool = False) -> list[Cell]:
    """Those of the same policy on fleets that differ in nothing but ``ignoring``: "replicas", "cache_tokens" or settings.

    With ``by_all`` those of every policy.

    A setting that says the same as ``cache_tokens`` is to be among them. Where replicas are ignored, ``load`` is not what was
    set but what it comes to: it is per replica, and a larger fleet is only comparable if as many requests came.
    """

    def rest(fleet: Fleet) -> tuple[object, ...]:
        settings = {name: value for name, value in fleet.settings if name not in ignoring}
        load = settings.get("load")
        if "replicas" in ignoring and isinstance(load, int | float):
            settings["load"] = round(load * fleet.replicas, 9)
        return (
            None if "replicas" in ignoring else fleet.replicas,
            None if "cache_tokens" in ignoring else fleet.cache_tokens,
            settings,
        )

    return [
        other for other in others if (by_all or other.policy == cell.policy) and rest(other.fleet) == rest(cell.fleet)
    ]


def cache_settings(some: Sequence[Cell]) -> list[str]:
    """Settings that say how large the cache is: they change with ``cache_tokens`` and with nothing else."""
    names = {name for cell in some for name, _ in cell.fleet.settings}
    found = []
    for name in sorted(names):
        pairs = {(dict(cell.fleet.settings).get(name), cell.fleet.cache_tokens) for cell in some}
        sizes = {size for _, size in pairs}
        if None not in sizes and 1 < len(sizes) == len(pairs) == len({value for value, _ in pairs}):
            found.append(name)
    return found


def varied_settings(results: Sequence[Result]) -> list[str]:
    """Settings in which runs differ, but for those that say no more than replicas and cache do."""
    names = dict.fromkeys(name for result in results for name in result.settings)
    found = []
    for name in names:
        values = [result.settings.get(name) for result in results]
        if len(set(map(repr, values))) < 2 or values == [result.replicas for result in results]:
            continue
        pairs = {(repr(value), result.cache_tokens) for value, result in zip(values, results, strict=True)}
        if not len(pairs) == len({size for _, size in pairs}) == len({value for value, _ in pairs}):
            found.append(name)
    return found


def differ(one: Spread, other: Spread, *, least: float) -> bool:
    """Whether two figures are further apart than chance: intervals that do not meet, and ``least`` between the means."""
    return abs(one.mean - other.mean) >= least and (one.low > other.high or other.low > one.high)


def is_faster(one: Cell, other: Cell) -> bool:
    """Whether ``one`` is quicker to the first token, by more than ties make."""
    return is_quicker(one.ttft_mean, other.ttft_mean)


def is_quicker(one: Spread, other: Spread) -> bool:
    """Whether a time is shorter, by more than chance and ties make."""
    return one.mean < other.mean and differ(one, other, least=TIES * max(one.mean, other.mean))


def may_be_quicker(one: Spread, other: Spread) -> bool:
    """Whether a time is shorter by more than ties make, and chance may be why: more seeds would tell."""
    return one.mean < (1 - TIES) * other.mean and not is_quicker(one, other)


def kind_name(policy: str) -> str:
    """The policy's name without its settings."""
    found = re.match(r"[A-Za-z][\w.:-]*", policy)
    return found[0] if found else policy


def spread(values: Sequence[float]) -> Spread:
    mean = fmean(values) if values else 0.0
    if len(values) < 2:
        return Spread(mean, mean, mean)
    quantile = _T[len(values) - 2] if len(values) - 2 < len(_T) else 1.96
    half = quantile * stdev(values) / math.sqrt(len(values))
    return Spread(mean, mean - half, mean + half)


def _cell(policy: str, fleet: Fleet, group: list[Result]) -> Cell:
    served = [each for each in group if each.summary.requests > each.summary.refused]

    def over(figure: Callable[[Result], float]) -> Spread:
        return spread([figure(each) for each in served])

    def share(figure: Callable[[Result], int]) -> float:
        return fmean([figure(each) / each.tokens for each in served]) if served else 0.0

    paces = [each.summary.tpot_mean for each in served if each.summary.tpot_mean is not None]
    requests = sum(each.summary.requests for each in group)
    return Cell(
        policy=policy,
        fleet=fleet,
        results=tuple(group),
        hit=over(lambda each: each.summary.hit),
        ttft_mean=over(lambda each: each.summary.ttft_mean),
        ttft_p95=over(lambda each: each.summary.ttft_p95),
        latency_mean=over(lambda each: each.summary.latency_mean),
        tpot_mean=spread(paces) if paces else None,
        misses=(
            share(lambda each: each.misses.first),
            share(lambda each: each.misses.in_flight),
            share(lambda each: each.misses.elsewhere),
            share(lambda each: each.misses.evicted),
        ),
        prompt_busy=over(lambda each: each.prompt_busy).mean,
        prompt_work=over(lambda each: each.prompt_work).mean,
        link_busy=over(lambda each: each.link_busy).mean,
        down=over(lambda each: each.down).mean,
        forgotten=share(lambda each: each.forgotten),
        refused=sum(each.summary.refused for each in group) / requests if requests else 0.0,
        served=bool(served),
    )
