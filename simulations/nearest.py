"""Where no fleet holds by the simple model: the nearest of those that were played, and whether more replicas would help.

Knows plans and what was tried of them. Never knows how they were played, or flags.
"""

import math
from collections.abc import Sequence

import msgspec

from simulations.confirming import BRINGS, WIDELY
from simulations.planning import Plan, Tried
from simulations.report.figures import seconds as shown


class Nearest(msgspec.Struct, frozen=True):
    """The fleet that comes nearest to the targets.

    Attributes:
        plan: that fleet; it does not hold them.
        more_help: whether more replicas than there may be brought it, or another one that was played, nearer yet.
    """

    plan: Plan
    more_help: bool


def more_help(tried: Sequence[Tried]) -> bool:
    """Whether the last replicas that came to those tried, in order of their number, still brought something."""
    most, compared = tried[-1], _fewer(tried)
    if math.isinf(most.distance):
        return False  # a prompt does not fit into a replica's cache
    return compared is None or most.distance <= BRINGS * compared.distance


def _fewer(tried: Sequence[Tried]) -> Tried | None:
    """What the most that were tried are compared with: the next that are widely fewer."""
    return next((each for each in reversed(tried) if WIDELY * each.replicas <= tried[-1].replicas), None)


def nearest(failed: Sequence[Plan]) -> Nearest | None:
    """Of fleets that do not hold, the nearest first; None where none of them was played."""
    if not failed:
        return None
    return Nearest(failed[0], any(more_help(plan.tried) for plan in failed))


def why(plan: Plan) -> str:
    """What more replicas do for a fleet that does not hold, in a sentence."""
    most, fewer = plan.tried[-1], _fewer(plan.tried)
    told = f"{shown(most.seconds)} s with {most.replicas}"
    built = (
        f"{plan.hardware.count} x {plan.hardware.gpu}{' and the store' if plan.has_store else ''} with {plan.policy}"
    )
    if fewer is None or fewer.figure != most.figure or more_help(plan.tried):
        return f"The nearest is {built}: {most.figure} is {told}, the most there may be."
    before = f"{shown(fewer.seconds)} s with {fewer.replicas}"
    return f"The nearest is {built}, and more replicas do not help: {most.figure} is {before}, and {told}."
