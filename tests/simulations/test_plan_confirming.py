"""``simulations/plan_confirming.py``: whatever may be the cheapest is asked for, and nothing makes the answer dearer."""

from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.hardware.estimate import Hardware
from simulations.named_policies import NamedPolicy, parse
from simulations.plan_confirming import Confirming
from simulations.planning import Build, Plan, Planner, Wanted
from simulations.results import Summary
from simulations.targets import Target

NOTHING = Summary("p", 10, 0, 0.5, 0, 0, 0, 0, 0, 0, 0, 1.0, 0.5)
TARGETS = [Target("ttft_p95", 1.0)]
PRICES = {"quick": 3.0, "slow": 1.0}
AT_MOST = 40


class Models:
    """What both models say of each device and policy, by the replicas that hold; what the detailed one played is kept."""

    def __init__(self, simple: Mapping[tuple[str, str], int], detailed: Mapping[tuple[str, str], int]) -> None:
        self.simple = simple
        self.detailed = detailed
        self.asked: list[tuple[str, str, int]] = []
        self.told: list[str] = []

    def search(self, wanted: Sequence[Wanted], _: int) -> list[Summary]:
        return [self._of(self.simple, *each) for each in wanted]

    def play(self, build: Build, policy: NamedPolicy, replicas: int) -> tuple[Summary, float]:
        self.asked.append((build.hardware.gpu, policy.written, replicas))
        return self._of(self.detailed, build, policy, replicas), 1.5

    def _of(self, needs: Mapping[tuple[str, str], int], build: Build, policy: NamedPolicy, replicas: int) -> Summary:
        p95 = needs[build.hardware.gpu, policy.written] / replicas
        return msgspec.structs.replace(NOTHING, ttft_p95=p95)

    def plans(self, gpus: Sequence[str], policies: Sequence[str]) -> list[Plan]:
        planner = Planner(
            [Build(Hardware("m", gpu)) for gpu in gpus],
            parse(",".join(policies)),
            TARGETS,
            prices=PRICES,
            at_most=AT_MOST,
            least=lambda _: {},
            play=self.search,
            told=lambda _: None,
            resumed=lambda _: None,
        )
        self.planner = planner
        return Confirming(planner, TARGETS, AT_MOST, self.play, self.told.append).plans([False])


def price(plans: Sequence[Plan]) -> float:
    """Of the answer: infinity where none holds."""
    if not plans or plans[0].confirmed is None:
        return float("inf")
    return plans[0].confirmed * PRICES[plans[0].hardware.gpu]


GPUS, POLICIES = ("quick", "slow"), ("predicted_ttft", "cache_aware", "round_robin")
needs = st.fixed_dictionaries({(gpu, policy): st.integers(1, 60) for gpu in GPUS for policy in POLICIES})


@settings(max_examples=50, deadline=None)
@given(simple=needs, detailed=needs)
def test_more_policies_and_devices_never_make_the_answer_dearer(
    simple: dict[tuple[str, str], int], detailed: dict[tuple[str, str], int]
) -> None:
    models = Models(simple, detailed)
    together = price(models.plans(GPUS, POLICIES))
    alone = [price(models.plans([gpu], [policy])) for gpu in GPUS for policy in POLICIES]
    assert together == min(alone)


def test_of_two_policies_that_tie_in_the_simple_model_the_detailed_one_decides() -> None:
    simple = {("quick", "cache_aware"): 3, ("quick", "predicted_ttft"): 3, ("quick", "round_robin"): 9}
    detailed = {("quick", "cache_aware"): 5, ("quick", "predicted_ttft"): 4, ("quick", "round_robin"): 9}
    models = Models(simple, detailed)
    plans = models.plans(["quick"], POLICIES)
    assert [(plan.policy, plan.confirmed, plan.was_confirmed) for plan in plans] == [
        ("predicted_ttft", 4, True),
        ("cache_aware", 5, True),
        ("round_robin", None, False),
    ], "who cannot be cheaper any more is not asked for"
    assert [replicas for _, policy, replicas in models.asked if policy == "predicted_ttft"] == [3, 4, 5], (
        "one more, too"
    )
    assert plans[0].confirmed_tried[-1].replicas == 5


def test_who_cannot_be_cheaper_any_more_is_asked_for_no_further() -> None:
    simple = {("quick", "cache_aware"): 3, ("quick", "predicted_ttft"): 4}
    detailed = {("quick", "cache_aware"): 5, ("quick", "predicted_ttft"): 9}
    models = Models(simple, detailed)
    first, second = models.plans(["quick"], POLICIES[:2])
    assert (first.policy, first.confirmed, first.at_least) == ("cache_aware", 5, None)
    assert (second.policy, second.confirmed, second.at_least, second.unconfirmed) == ("predicted_ttft", None, 6, "")
    assert second.was_confirmed
    assert [replicas for _, policy, replicas in models.asked if policy == "predicted_ttft"] == [4, 5]


def test_a_device_that_was_too_dear_is_asked_for_where_the_cheapest_turns_out_dearer() -> None:
    simple = {("quick", "round_robin"): 4, ("slow", "round_robin"): 14}
    models = Models(simple, {("quick", "round_robin"): 6, ("slow", "round_robin"): 15})
    plans = models.plans(GPUS, ["round_robin"])
    assert [(plan.hardware.gpu, plan.confirmed) for plan in plans] == [("slow", 15), ("quick", 6)]
    assert models.planner.stopped == []
    models = Models(simple, {("quick", "round_robin"): 4, ("slow", "round_robin"): 15})
    assert [(plan.hardware.gpu, plan.confirmed) for plan in models.plans(GPUS, ["round_robin"])] == [("quick", 4)]
    assert [stopped.hardware.gpu for stopped in models.planner.stopped] == ["slow"]


def test_where_none_holds_all_are_asked_for_and_each_says_why() -> None:
    simple = dict.fromkeys([(gpu, policy) for gpu in GPUS for policy in POLICIES], 2)
    models = Models(simple, dict.fromkeys(simple, 400) | {("quick", "round_robin"): 300})
    plans = models.plans(GPUS, POLICIES)
    assert (plans[0].hardware.gpu, plans[0].policy) == ("quick", "round_robin"), "the nearest"
    assert {(plan.hardware.gpu, plan.policy) for plan in plans} == set(simple)
    assert all(plan.was_confirmed and plan.confirmed is None and plan.at_least is None for plan in plans)
    assert all("with up to 40 replicas, the most there may be" in plan.unconfirmed for plan in plans)


@pytest.mark.parametrize("policies", [["round_robin"], ["cache_aware", "round_robin"]])
def test_how_many_fleets_are_left_is_told(policies: list[str]) -> None:
    needs = {("quick", policy): 3 for policy in policies}
    models = Models(needs, needs)
    models.plans(["quick"], policies)
    assert len(models.told) == len(models.asked) == len(policies) + 1
    assert models.told[0] == (
        f"the detailed model plays 3 replicas of 1 x quick with {policies[0]}, and about "
        f"{'1 fleet' if len(policies) == 1 else '2 fleets'} after that ..."
    )
    assert models.told[-1].endswith(", the last fleet; the one before took 1.50 s ...")
