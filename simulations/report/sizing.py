"""How many replicas.

Knows the best cell, those that differ from it in the number of replicas, and the bounds. Never says more than the runs show:
what is worked out and was not run is called an estimate.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from simulations.confirming import brings_little, compared_with
from simulations.report.comparison import Cell, alike, cache_settings
from simulations.report.figures import apart, duration, percent, times
from simulations.report.finding import (
    COSTLY,
    REFUSED,
    Certainty,
    Finding,
    holds,
    of_replicas,
    p95,
    replicas,
    sureness,
)
from simulations.report.fleets import fleet_words
from simulations.report.lru_curve import lru
from simulations.report.result import split_of

if TYPE_CHECKING:
    from simulations.report.document import BoundFacts

BUSY: Final = 0.7
"""How busy with prompts a fleet may be for queues to stay short: at 70 %, M/D/1 waits 1.2 times the time of service."""

FULL: Final = 0.9
"""Busier than this, queues are long whenever more than the usual comes."""

ROUNDING: Final = 1e-9
"""Share by which a time that was added up may lie below one that was not."""

BY_NONE: Final = "Not by number"
"""Where no number of replicas does it."""

STEP: Final = 0.8
"""A step to more replicas is worth it where it leaves at most this share of the 95th percentile."""


BESIDES: Final = ("store", "disaggregation")
"""What a fleet may have or not and still be an answer, as it may have another cache."""


def answering(best: Cell, every: list[Cell], target: float | None) -> Cell | None:
    """What runs say is the fleet to take, under the policy that it is to be taken with; None where they say of none.

    ``best`` is the best one on the fleet that others are compared with. A target is held by whoever holds it: under any policy
    that was run, and with any cache, store or split. Of as many replicas, those come first that are like ``best``.
    """
    if target is None:
        tried = _tried(best, every)
        return _kept(tried) if len(tried) > 1 else None
    like = _like(best, every)
    return min(
        (cell for cell in _candidates(best, every) if holds(cell, target)),
        key=lambda cell: (
            cell.fleet.replicas,
            cell not in like,
            cell.policy != best.policy,
            cell.fleet.cache_tokens or 0,
            cell.ttft_p95.mean,
        ),
        default=None,
    )


def _tried(best: Cell, every: list[Cell]) -> list[Cell]:
    same = alike(best, every, "replicas")
    return sorted((cell for cell in same if cell.served), key=lambda cell: cell.fleet.replicas)


def _like(best: Cell, every: list[Cell]) -> list[Cell]:
    """Under every policy, those that differ from the best in nothing but the number of replicas."""
    return alike(best, every, "replicas", by_all=True)


def _candidates(best: Cell, every: list[Cell]) -> list[Cell]:
    """All that were run as an answer to how many it takes."""
    ignoring = ("replicas", "cache_tokens", *cache_settings(every), *BESIDES)
    return [cell for cell in alike(best, every, *ignoring, by_all=True) if cell.served]


def fleet(
    best: Cell, every: list[Cell], bounds: "BoundFacts | None", target: float | None, found: Cell | None
) -> Finding:
    """What was run with several numbers of replicas is compared; of one number, more or fewer are estimated.

    ``found`` is what ``answering`` says.
    """
    tried = _tried(best, every)
    split = split_of(dict(best.fleet.settings))
    is_run = target is not None or len(tried) > 1
    because = _of_sides(best, split) if split else _of_time(best, bounds, is_estimated=not is_run)
    if len(tried) > 1:
        because.insert(
            0, f"Under {best.policy}, 95 % of first tokens come within {', '.join(map(of_replicas, tried))}."
        )
    unserved = sorted(cell.fleet.replicas for cell in alike(best, every, "replicas") if not cell.served)
    because += [f"With {replicas(number)} nobody was served." for number in unserved]
    because.append("This is about prompts alone: how many answers run at once may ask for more.")
    because.append(sureness(tried))

    def finding(verdict: str, answer: str, certainty: Certainty) -> Finding:
        return Finding("replicas", "How many replicas?", verdict, answer, because, certainty)

    candidates = tried if target is None else _candidates(best, every)
    if all(cell.refused > REFUSED for cell in candidates):
        least = min(candidates, key=lambda cell: cell.refused)
        answer = (
            f"{percent(least.refused)} of the requests were refused: first give replicas a cache that they fit into."
        )
        return finding(BY_NONE, answer, Certainty.MEASURED)
    if target is not None:
        return finding(*_for_target(best, every, target, found))
    if found is not None:
        return finding(*_by_steps(tried, found), Certainty.MEASURED)
    return finding(*(_estimated_sides(best, split) if split else _estimated(best, bounds)), Certainty.ESTIMATE)


# What was run


def _for_target(best: Cell, every: list[Cell], target: float, good: Cell | None) -> tuple[str, str, Certainty]:
    goal = f"95 % of first tokens within {duration(target)}"
    candidates = _candidates(best, every)
    if good is None:
        nearest = min(candidates, key=lambda cell: (cell.refused > REFUSED, cell.ttft_p95.mean))
        return _held_by_none(_tried(nearest, every), target, f"{goal[0].upper()}{goal[1:]}")
    answer = f"The fewest of those tried with {goal}: it takes {apart(good.ttft_p95.mean, target)}"
    answer += f"{_named(good, best, every)}."
    if good.fleet.replicas == min(cell.fleet.replicas for cell in candidates) > 1:
        answer += " Fewer were not tried."
    kin = _tried(good, every)
    worse = [cell for cell in kin[kin.index(good) :] if cell.ttft_p95.mean > target]
    if worse:
        answer += f" But it takes {', '.join(map(of_replicas, worse))}: more replicas are not quicker in every run."
    return str(good.fleet.replicas), answer + _otherwise(good, best, every, target), Certainty.MEASURED


def _named(good: Cell, best: Cell, every: list[Cell]) -> str:
    """What it has that the best one of the fleets that others are compared with has not."""
    policy = f" under {good.policy}" if good.policy != best.policy else ""
    return policy if good in _like(best, every) else f"{policy}, on {fleet_words(every, good.fleet)}"


def _otherwise(good: Cell, best: Cell, every: list[Cell], target: float) -> str:
    """How many it would be of those like the best one, where the answer is none of them."""
    own = alike(best, every, "replicas")
    if good in own:
        return ""
    held = min((cell.fleet.replicas for cell in own if holds(cell, target)), default=None)
    number = "none of those tried holds it" if held is None else f"it is {held}"
    if good in _like(best, every):
        return f" Under {best.policy}, whose mean is the shortest, {number}."
    return f" Without that, under {best.policy}, {number}."


def _held_by_none(tried: Sequence[Cell], target: float, goal: str) -> tuple[str, str, Certainty]:
    """Of none of those that were tried: whether more may hold it, as ``kvlb plan`` says it."""
    most, least = tried[-1], tried[-1].ttft_p95_least
    quickest = min(cell.ttft_p95.mean for cell in tried)
    if least is not None and target < least * (1 - ROUNDING) <= quickest:
        answer = (
            f"{goal} is held by no number of these replicas: it takes {duration(least)} where nobody waits and nothing is "
            "forgotten. Take faster devices, or allow for more time."
        )
        return BY_NONE, answer, Certainty.ESTIMATE
    fewest = compared_with([cell.fleet.replicas for cell in tried], most.fleet.replicas)
    fewer = next((cell for cell in tried if cell.fleet.replicas == fewest), None)
    if fewer is not None and brings_little(most.ttft_p95.mean, fewer.ttft_p95.mean):
        answer = (
            f"{goal} is not reached, and more replicas do not help: it takes {of_replicas(fewer)}, and {of_replicas(most)}"
            ". Take faster devices, or allow for more time."
        )
        return BY_NONE, answer, Certainty.MEASURED
    answer = f"{goal} is not reached with {most.fleet.replicas}: it takes {apart(most.ttft_p95.mean, target)}."
    return f"More than {most.fleet.replicas}", answer, Certainty.MEASURED


def _kept(tried: Sequence[Cell]) -> Cell:
    """The last that made a difference."""
    kept = tried[-1]
    for fewer, more in zip(reversed(tried[:-1]), reversed(tried[1:]), strict=True):
        if fewer.refused > more.refused + REFUSED or more.ttft_p95.mean < STEP * fewer.ttft_p95.mean:
            break
        kept = fewer
    return kept


def _by_steps(tried: Sequence[Cell], kept: Cell) -> tuple[str, str]:
    if kept is tried[-1]:
        answer = "Each step that was tried made first tokens quicker by a fifth or more; more were not tried."
        return f"{kept.fleet.replicas} or more", answer
    worse = tried[tried.index(kept) - 1] if kept is not tried[0] else None
    then = tried[tried.index(kept) + 1]
    answer = f"95 % of first tokens come within {p95(kept)}; {then.fleet.replicas} replicas make that {p95(then)}"
    answer += "." if worse is None else f", {worse.fleet.replicas} make it {p95(worse)}."
    return str(kept.fleet.replicas), answer


# What was not


def _load(best: Cell) -> float:
    """How busy prompts keep a replica, and where that is all the time, how busy they would keep one that could be busier."""
    return max(best.prompt_busy, best.prompt_work) if best.prompt_busy >= FULL else best.prompt_busy


def _enough(have: int, load: float) -> int:
    """For queues to stay short."""
    return max(1, math.ceil(have * load / BUSY - 1e-9))


def _fewer(best: Cell, load: float, bounds: "BoundFacts | None") -> int:
    """As many as do the work with short queues, where that is fewer than there are: what smaller caches evict comes to it."""
    have, size = best.fleet.replicas, best.fleet.cache_tokens
    fewest = _enough(have, load)
    if bounds is None or size is None or best.hit.mean >= 1:
        return fewest
    now = lru(bounds, have * size)
    for fewer in range(fewest, have):
        lost = max(0.0, now - lru(bounds, fewer * size))
        if _enough(have, load * (1 + lost / (1 - best.hit.mean))) <= fewer:
            return fewer
    return max(fewest, have)


def _unplayed(fewer: int, have: int) -> str:
    """That nobody may rely on such a number before it was run."""
    tried = [have]
    while tried[-1] > fewer:
        tried.append(max(fewer, tried[-1] // 2))
    return (
        "That is a lower bound and was not run: fewer caches and longer queues may take more. Run it before you take any away "
        f"(--sweep replicas={','.join(map(str, tried))})."
    )


def _of_time(best: Cell, bounds: "BoundFacts | None", *, is_estimated: bool) -> list[str]:
    have, load = best.fleet.replicas, _load(best)
    told = f"With {replicas(have)}, prompts keep each busy {percent(best.prompt_busy)} of the time"
    if best.down:
        told += f" that it is there ({percent(best.down)} they were down after restarts)"
    if load > 1:
        told += f", and {times(load)} as much comes as they can compute meanwhile; the rest is computed after the last arrival"
    if not is_estimated:  # what was run says more
        return [f"{told}."]
    because = [
        f"{told}. At most {100 * BUSY:.0f} % would be {replicas(_enough(have, load))}, if hits stayed as they are; the busier, "
        "the longer queues get, and bursts cost more."
    ]
    room = bounds.infinite - best.hit.mean if bounds is not None else 0.0
    if bounds is not None and room > COSTLY and load > BUSY:
        least = _enough(have, load * (1 - room / (1 - best.hit.mean)))
        because.append(f"With every hit that can be had ({percent(bounds.infinite)}) it would be {replicas(least)}.")
    return because


def _estimated(best: Cell, bounds: "BoundFacts | None") -> tuple[str, str]:
    have, load = best.fleet.replicas, _load(best)
    needed = _enough(have, load)
    if best.prompt_busy >= FULL:
        answer = (
            f"{replicas(have)} are {percent(best.prompt_busy)} busy with prompts: it would take about {needed}. Run that, as "
            "queues also change what caches hold."
        )
        if load > 1:
            answer = (
                f"{times(load)} as much comes as {replicas(have)} can compute meanwhile, so queues grow for as long as it "
                f"comes: it would take about {needed}. Run that, as queues also change what caches hold."
            )
        return f"More than {have}", answer
    if needed > have:
        return (
            f"About {needed}",
            f"{replicas(have)} carry it, with long queues in bursts; about {needed} would leave room. That was not run.",
        )
    needed = _fewer(best, load, bounds)
    if needed < have:
        return f"{needed} at least", (
            f"{have} have time to spare, and the work alone takes {needed}. {_unplayed(needed, have)} Now 95 % of first tokens "
            f"come within {p95(best)}."
        )
    return f"About {have}, as it is", f"95 % of first tokens come within {p95(best)}."


# Where prefill and decode are apart


def _of_sides(best: Cell, split: int) -> list[str]:
    answering = best.fleet.replicas - split
    return [
        f"Steps of prompts take {percent(best.prompt_work)} of the time of the {split} that compute them for the others, and "
        f"what the {answering} that answer load takes {percent(best.link_busy)} of that of their links. Above {100 * BUSY:.0f} "
        "% queues get long."
    ]


def _estimated_sides(best: Cell, split: int) -> tuple[str, str]:
    """Each side for itself; of those that answer fewer are never advised, as what decoding needs is not known."""
    have, answering = best.fleet.replicas, best.fleet.replicas - split
    computing = _enough(split, best.prompt_work)
    loading = max(answering, _enough(answering, best.link_busy))
    needed = computing + loading
    sides = f"{computing} that compute prompts and {loading} that answer"
    now = f"now 95 % of first tokens come within {p95(best)}"
    if (computing, loading) == (split, answering):
        return f"About {have}, as it is", f"95 % of first tokens come within {p95(best)}, with {sides}."
    slow = "the links of those that answer" if loading > answering else "those that compute prompts"
    if computing >= split:
        verdict = f"About {needed}"
        return verdict, f"{slow[0].upper()}{slow[1:]} have too much to do: it would take about {sides}; {now}."
    if needed < have:
        return f"{needed} at least", (
            f"Those that compute prompts have time to spare, and the work alone takes {sides}. That is a lower bound, and was "
            f"not run: run it before you take any away; {now}."
        )
    return f"About {needed}", f"{sides} would do rather than {split} and {answering}; {now}."
