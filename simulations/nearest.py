"""Where no fleet holds by the simple model: the nearest of those that were played, and whether more replicas would help.

Knows plans and what was tried of them. Never knows how they were played, or flags.
"""

import math
from collections.abc import Sequence

import msgspec

from simulations.confirming import brings_little, compared_with
from simulations.planning import Plan, Tried
from simulations.report.figures import seconds as shown


class Nearest(msgspec.Struct, frozen=True):
    """The fleet that comes nearest to the targets.

    Attributes:
        plan: that fleet; it does not hold them.
        more_help: whether more replicas still brought it, or another one that was played, nearer.
        why: that, in sentences.
    """

    plan: Plan
    more_help: bool
    why: str


def more_help(tried: Sequence[Tried]) -> bool:
    """Whether the last replicas that came to those tried, in order of their number, still brought something."""
    most, compared = tried[-1], _fewer(tried)
    if math.isinf(most.distance):
        return False  # a prompt does not fit into a replica's cache
    return compared is None or not brings_little(most.distance, compared.distance)


def _fewer(tried: Sequence[Tried]) -> Tried | None:
    """What the most that were tried are compared with."""
    fewer = compared_with([each.replicas for each in tried], tried[-1].replicas)
    return next((each for each in tried if each.replicas == fewer), None)


def nearest(failed: Sequence[Plan]) -> Nearest | None:
    """Of fleets that do not hold, the nearest first; None where none of them was played."""
    if not failed:
        return None
    first, gaining = failed[0], next((plan for plan in failed if more_help(plan.tried)), None)
    told = [_why(first)]
    if gaining is not None and gaining is not first:
        most = gaining.tried[-1]
        told.append(
            f"They still bring {_built(gaining)} nearer, where {most.figure} is {shown(most.seconds)} s with {most.replicas}."
        )
    return Nearest(first, gaining is not None, " ".join(told))


def _why(plan: Plan) -> str:
    most, fewer = plan.tried[-1], _fewer(plan.tried)
    told = f"{shown(most.seconds)} s with {most.replicas}"
    if fewer is None or more_help(plan.tried):
        return f"The nearest is {_built(plan)}: {most.figure} is {told}, the most there may be."
    before = f"{fewer.figure} is {shown(fewer.seconds)} s with {fewer.replicas}"
    other = "" if fewer.figure == most.figure else f"{most.figure} "
    return f"The nearest is {_built(plan)}, and more replicas do not help it: {before}, and {other}{told}."


def _built(plan: Plan) -> str:
    return f"{plan.hardware.count} x {plan.hardware.gpu}{' and the store' if plan.has_store else ''} with {plan.policy}"
