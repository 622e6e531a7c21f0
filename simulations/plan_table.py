"""What ``kvlb plan`` shows: a table of plans, and sentences.

Knows plans, what was stopped and what a store is worth, and how people read them. Never knows flags, or how plans are found.
"""

from collections.abc import Iterator, Mapping, Sequence

from balancer.words import counted
from simulations.confirming import Confirmed
from simulations.hardware.estimate import estimate
from simulations.moving import Moving, best, money, words
from simulations.planning import Plan, Stopped
from simulations.report.figures import percent
from simulations.report.figures import seconds as shown
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
    head = ("replicas", "of", "policy", unit, "hit", "TTFT mean", "p95", "p99")
    rows = [
        (
            str(plan.replicas),
            f"{plan.hardware.count} x {plan.hardware.gpu}{' + store' if plan.has_store else ''}",
            plan.policy,
            money(plan.price),
            percent(plan.summary.hit),
            shown(plan.summary.ttft_mean),
            shown(plan.summary.ttft_p95),
            shown(plan.summary.ttft_p99),
        )
        for plan in plans
    ]
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if at in {1, 2} else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    ]
    told = ["", *map(stopped_words, stopped)] if stopped else []
    told.append("")
    firsts = [first for side in (False, True) if (first := best(plans, has_store=side)) is not None]
    for first in firsts:
        told += _told(first, targets)
    told += dict.fromkeys([estimate(first.hardware).words + "." for first in firsts])
    if found is not None:
        told += ["", *words(found, plans)]
    return "\n".join([*lines, *told])


def _told(plan: Plan, targets: Sequence[Target]) -> Iterator[str]:
    """What there is to say of the best of one side."""
    built = f"{counted(plan.replicas, 'replica')} of {plan.hardware.count} x {plan.hardware.gpu}"
    store = " and the store" if plan.has_store else ""
    hold = "hold" if plan.replicas > 1 or plan.has_store else "holds"
    yield f"{built}{store} with {plan.policy} {hold} {target_words(targets)}, by the simple model."
    if plan.was_confirmed and plan.confirmed is None:
        yield plan.unconfirmed
    elif plan.was_confirmed and plan.confirmed == plan.replicas:
        yield "The detailed model agrees."
    elif plan.was_confirmed:
        yield f"The detailed model, which lets prompts and answers share steps, asks for {plan.confirmed}: plan with that."


def stopped_words(stopped: Stopped) -> str:
    store = " with the store" if stopped.has_store else ""
    return f"{stopped.hardware.count} x {stopped.hardware.gpu}{store} is not looked at further: {stopped.why}."


def target_words(targets: Sequence[Target]) -> str:
    return " and ".join([f"{target.figure} <= {shown(target.seconds)} s" for target in targets])
