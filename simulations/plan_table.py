"""What ``kvlb plan`` shows: a table of plans, and sentences.

Knows plans, what was stopped and what a store is worth, and how people read them. Never knows flags, or how plans are found.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from balancer.words import counted
from simulations.confirming import BRINGS, Confirmed
from simulations.hardware.estimate import estimate
from simulations.moving import Moving, best, cost, money, words
from simulations.nearest import Nearest
from simulations.planning import Plan, Stopped, Tried
from simulations.report.figures import percent
from simulations.report.figures import seconds as shown
from simulations.report.short_sample import shortness, unsteadiness
from simulations.results import Summary
from simulations.targets import Target, worst


def unconfirmed(found: Confirmed, seen: Mapping[int, Summary], targets: Sequence[Target]) -> str:
    """Why the detailed model holds the targets with none of those that were tried."""
    most = max(seen)
    refused = seen[most].refused
    if refused:
        return f"The detailed model does not hold it: {counted(refused, 'request')} do not fit into a replica's cache."
    figure = worst(targets, seen[most]).figure
    if found.compared is None:
        return (
            f"The detailed model does not hold it with up to {counted(most, 'replica')}, the most there may be: {figure} is "
            f"{shown(getattr(seen[most], figure))} s there. Allow for more (--max-replicas), and calibrate."
        )
    fewer, more = found.compared
    told = [f"{shown(getattr(seen[each], figure))} s with {each}" for each in (fewer, more)]
    return (
        f"The detailed model does not hold it, and more replicas do not help: {figure} is {', and '.join(told)}. Take faster "
        "devices, allow for more time, or calibrate."
    )


def table(
    plans: Sequence[Plan],
    targets: Sequence[Target],
    stopped: Sequence[Stopped],
    found: Moving | None,
    *,
    has_prices: bool,
) -> str:
    unit = "price/h" if has_prices else "devices"
    head = ("replicas", "of", "policy", "model", unit, "hit", "TTFT mean", "p95", "p99")
    store_price = 0.0 if found is None else found.store_price
    rows = [row for plan in plans for row in _rows(plan, store_price)]
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if at in {1, 2, 3} else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    ]
    told = ["", *map(stopped_words, stopped)] if stopped else []
    told.append("")
    firsts = [first for side in (False, True) if (first := best(plans, has_store=side)) is not None]
    for first in firsts:
        told += _told(first, [plan for plan in plans if plan.has_store is first.has_store], targets)
    told += dict.fromkeys([estimate(first.hardware).words + "." for first in firsts])
    if found is not None:
        told += ["", *words(found, plans)]
    return "\n".join([*lines, *told])


def nothing(near: Nearest | None, targets: Sequence[Target], stopped: Sequence[Stopped]) -> str:
    """Where no fleet holds by the simple model: why, and the nearest that was played."""
    told = [f"No fleet holds {target_words(targets)} by the simple model.", *map(stopped_words, stopped)]
    if near is not None:
        told += [
            near.why,
            *_tried("simple", None, near.plan.tried),
            *_sampled(near.plan, targets),
            f"{estimate(near.plan.hardware).words}.",
            f"To see the nearest fleet: {near.plan.line}",
        ]
    return "\n".join(told)


def _rows(plan: Plan, store_price: float) -> Iterator[tuple[str, ...]]:
    """What the simple model says of a plan, and below it what the detailed one does, where it was asked."""
    built = f"{plan.hardware.count} x {plan.hardware.gpu}{' + store' if plan.has_store else ''}"
    yield (str(plan.replicas), built, plan.policy, "simple", money(plan.price), *_figures(plan.summary))
    if not plan.was_confirmed:
        return
    price = cost(plan, store_price)
    if plan.at_least is not None:
        yield (f"{plan.at_least}+", built, plan.policy, "detailed", *["-"] * 5)
    elif plan.confirmed is None or plan.confirmed_summary is None or price is None:
        yield ("none", built, plan.policy, "detailed", *["-"] * 5)
    else:
        yield (str(plan.confirmed), built, plan.policy, "detailed", money(price), *_figures(plan.confirmed_summary))


def _figures(summary: Summary) -> tuple[str, ...]:
    times = (summary.ttft_mean, summary.ttft_p95, summary.ttft_p99)
    return percent(summary.hit), *map(shown, times)


def _told(plan: Plan, all_plans: Sequence[Plan], targets: Sequence[Target]) -> Iterator[str]:
    """What there is to say of the best of one side, whose plans are ``all_plans``."""
    store = " and the store" if plan.has_store else ""

    def holds(replicas: int) -> str:
        built = f"{counted(replicas, 'replica')} of {plan.hardware.count} x {plan.hardware.gpu}"
        hold = "hold" if replicas > 1 or plan.has_store else "holds"
        return f"{built}{store} with {plan.policy} {hold} {target_words(targets)}"

    to_see = "To see that fleet"
    if not plan.was_confirmed:
        yield f"{holds(plan.replicas)}, by the simple model."
        yield f"That is not confirmed: {DETAILED}, was not asked, and often asks for more; leave out --no-confirm."
    elif plan.confirmed is None:
        yield f"No fleet{' with the store' if plan.has_store else ''} is known to hold {target_words(targets)}."
        for each in all_plans:
            yield f"{each.hardware.count} x {each.hardware.gpu} with {each.policy}: {each.unconfirmed}"
        yield f"By the simple model alone {holds(plan.replicas)}: do not plan with that."
        to_see = "To see the nearest fleet"
    elif plan.confirmed == plan.replicas:
        yield f"{holds(plan.confirmed)}, by both models: {_held(plan)} by the detailed one."
    else:
        simple = f"The simple one asks for {plan.replicas}; plan with {plan.confirmed}."
        yield f"{holds(plan.confirmed)}: {_held(plan)} by {DETAILED}. {simple}"
    yield from _tried("simple", plan.replicas, plan.tried)
    if plan.was_confirmed:
        yield from _tried("detailed", plan.confirmed, plan.confirmed_tried)
    yield from _sampled(plan, targets)
    yield f"{to_see}: {plan.line}"


def _sampled(plan: Plan, targets: Sequence[Target]) -> Iterator[str]:
    """Why another part of the trace, or a longer one, may ask for other fleets."""
    sample = (plan.confirmed_summary or plan.summary).sample
    if sample is None:
        return
    percentiles = [int(found[1]) for each in targets if (found := _PERCENTILE.fullmatch(each.figure)) is not None]
    limit = min([each.seconds for each in targets if each.figure == "ttft_p95"], default=None)
    told = [*shortness(sample, max(percentiles, default=95)), *filter(None, [unsteadiness(sample, limit)])]
    if told:
        whose = " (by figures of the simple model)" if plan.was_confirmed and plan.confirmed is None else ""
        remedy = "Plan with more of it (--first, or a longer trace)."
        yield f"The sample may be too short for that{whose}: {' '.join(told)} {remedy}"


_PERCENTILE: Final = re.compile(r"ttft_p(\d+)")


DETAILED: Final = "the detailed model, which lets prompts and answers share steps"


def _held(plan: Plan) -> str:
    """The figure that comes nearest to its target."""
    (found,) = [each for each in plan.confirmed_tried if each.replicas == plan.confirmed]
    return f"{found.figure} is {shown(found.seconds)} s"


def _tried(model: str, least: int | None, tried: Sequence[Tried]) -> Iterator[str]:
    """What a search has seen of the figure that decides, and where more replicas were not quicker, as it takes them to be."""
    if not tried:
        return
    told, figure = [], ""
    for each in tried:
        told.append(f"{'' if each.figure == figure else each.figure + ' '}{shown(each.seconds)} s with {each.replicas}")
        figure = each.figure
    yield f"Tried by the {model} model: {', '.join(told)}."
    if least is not None:
        fewer = [each.replicas for each in tried if each.replicas < least and each.distance <= 1]
        more = [each.replicas for each in tried if each.replicas > least and each.distance > 1]
        if fewer:
            yield f"It holds with {' and '.join(map(str, fewer))}, too, though not with {least - 1}: there, chance decides."
        if more:
            yield f"It does not hold with {' and '.join(map(str, more))}: there, chance decides, so leave room."
    slower = [
        f"{after.replicas} are slower than {before.replicas}"
        for before, after in pairwise(tried)
        if math.inf > after.distance > before.distance / BRINGS
    ]
    if slower:
        yield f"The search takes more replicas to be quicker, and they were not always: {', '.join(slower)}."


def stopped_words(stopped: Stopped) -> str:
    return f"{_device(stopped)} is not looked at further: {stopped.why}."


def resumed_words(stopped: Stopped) -> str:
    """Of a device that had been stopped, and goes on."""
    return f"{_device(stopped)} is looked at again: {stopped.why}."


def _device(stopped: Stopped) -> str:
    store = " with the store" if stopped.has_store else ""
    return f"{stopped.hardware.count} x {stopped.hardware.gpu}{store}"


def target_words(targets: Sequence[Target]) -> str:
    return " and ".join([f"{target.figure} <= {shown(target.seconds)} s" for target in targets])
