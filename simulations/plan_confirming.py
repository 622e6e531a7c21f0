"""Which plans the detailed model is asked for, and what comes of it: the cheapest fleet that it holds, of each side.

Knows plans, their prices and targets. Never knows how a fleet is played, or what is shown. What the simple model says of a plan
is where the detailed one begins, so a plan costs that at least. The plans are asked for in this order, until what is left costs
more than a fleet that holds; devices that were too dear go on where that fleet is dearer than was thought. Each plan is asked
for as it would be alone, so the answer for several policies or devices is never dearer than for some of them.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from balancer.words import counted
from simulations.confirming import beside, confirm
from simulations.named_policies import NamedPolicy, parse
from simulations.plan_table import unconfirmed
from simulations.planning import Build, Plan, Planner, tried_of
from simulations.report.figures import duration
from simulations.results import Summary
from simulations.targets import Target, distance

Played: TypeAlias = Callable[[Build, NamedPolicy, int], tuple[Summary, float]]
"""The figures of a fleet by the detailed model, and how many seconds it took to play it."""

_Key: TypeAlias = tuple[Build, str]


class Confirming:
    """Asks for the plans of a planner; mutable, and used once."""

    def __init__(
        self, planner: Planner, targets: Sequence[Target], at_most: int, play: Played, told: Callable[[str], None]
    ) -> None:
        self._planner = planner
        self._targets = targets
        self._at_most = at_most
        self._play = play
        self._told = told
        self._asked: dict[_Key, Plan] = {}
        self._seen: dict[_Key, dict[int, Summary]] = {}
        self._took: float | None = None

    def plans(self, sides: Sequence[bool]) -> list[Plan]:
        """The plans with what the detailed model says of them: of each side the cheapest that holds comes first.

        Behind those that hold stand those that were not asked for, which cost more, and then those that do not hold.
        """
        for side in sides:
            while self._ask_next(side):
                pass
            if (first := self._best(side)) is not None:
                self._look_beside(first)
        plans = [self._asked.get(_key(plan), plan) for plan in self._planner.plans()]
        return sorted(plans, key=self._order)

    def _ask_next(self, side: bool) -> bool:
        """Whether there was anything left on this side that may hold for less, or for as much."""
        limit = self._limit(side)
        left = [
            plan
            for plan in self._planner.plans()
            if plan.has_store is side and _key(plan) not in self._asked and plan.price <= limit
        ]
        if not left:
            return self._planner.resume(has_store=side, limit=limit)
        self._ask(left[0], limit, others=len(left) - 1)
        return True

    def _ask(self, plan: Plan, limit: float, others: int) -> None:
        def far(replicas: int, following: int) -> float:
            return distance(self._targets, self._of(plan, replicas, following + others + 1))

        def is_wanted(replicas: int) -> bool:
            return self._planner.price(plan, replicas) <= limit

        found = confirm(plan.replicas, self._at_most, far, is_wanted)
        seen = self._seen[_key(plan)]
        summary = None if found.least is None else seen[found.least]
        why = "" if found.least is not None or found.at_least is not None else unconfirmed(found, seen, self._targets)
        self._asked[_key(plan)] = msgspec.structs.replace(
            plan,
            confirmed=found.least,
            was_confirmed=True,
            at_least=found.at_least,
            confirmed_hit=None if summary is None else summary.hit,
            unconfirmed=why,
            confirmed_summary=summary,
            confirmed_tried=tried_of(self._targets, seen),
        )

    def _look_beside(self, plan: Plan) -> None:
        """One replica more, which should hold, too, but for chance."""
        seen = self._seen[_key(plan)]
        if (more := beside(plan.confirmed, seen, self._at_most)) is not None:
            self._of(plan, more, 0)
            tried = tried_of(self._targets, seen)
            self._asked[_key(plan)] = msgspec.structs.replace(plan, confirmed_tried=tried)

    def _of(self, plan: Plan, replicas: int, following: int) -> Summary:
        """What so many replicas do by the detailed model; about ``following`` more fleets are to come."""
        build = Build(plan.hardware, plan.has_store)
        (policy,) = parse(plan.policy)
        words = (
            f"the detailed model plays {counted(replicas, 'replica')} of {build.hardware.count} x {build.hardware.gpu}"
        )
        words += f"{' with the store and' if plan.has_store else ' with'} {plan.policy}"
        words += f", and about {counted(following, 'fleet')} after that" if following else ", the last fleet"
        if self._took is not None:
            words += f"; the one before took {duration(self._took)}"
        self._told(f"{words} ...")
        summary, self._took = self._play(build, policy, replicas)
        return self._seen.setdefault(_key(plan), {}).setdefault(replicas, summary)

    def _holding(self, side: bool) -> list[Plan]:
        return [plan for plan in self._asked.values() if plan.has_store is side and plan.confirmed is not None]

    def _limit(self, side: bool) -> float:
        """What the cheapest fleet costs that is known to hold."""
        return min([self._cost(plan) for plan in self._holding(side)], default=math.inf)

    def _best(self, side: bool) -> Plan | None:
        return min(self._holding(side), key=self._order, default=None)

    def _cost(self, plan: Plan) -> float:
        return self._planner.price(plan, plan.confirmed or plan.replicas)

    def _order(self, plan: Plan) -> tuple[int, float, float, float, str]:
        """Those that hold and then those that were not asked for, the cheapest first; then the others, the nearest first."""
        if not plan.was_confirmed:
            return 1, plan.price, 0.0, plan.summary.ttft_p95, plan.policy
        if plan.confirmed_summary is None:
            nearest = min([each.distance for each in plan.confirmed_tried])
            return 2, nearest, plan.price, plan.summary.ttft_p95, plan.policy
        far = distance(self._targets, plan.confirmed_summary)
        return 0, self._cost(plan), far, plan.summary.ttft_p95, plan.policy


def _key(plan: Plan) -> _Key:
    return Build(plan.hardware, plan.has_store), plan.policy
