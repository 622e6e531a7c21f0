"""``simulations/planning.py``: the cheapest fleet is found, and what cannot be it is stopped as soon as that is known."""

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from balancer.policies.base import make
from simulations.generators.chat import Chat
from simulations.hardware.estimate import Hardware
from simulations.named_policies import parse
from simulations.paths import Paths
from simulations.planning import Build, Planner, Stopped, Wanted, least_figures, most_hits
from simulations.results import Summary, summarise
from simulations.simple import SimpleFleet, play
from simulations.targets import FIGURES, Target
from simulations.traces.sessions import derived_sessions

QUICK, SLOW = Hardware("m", "quick"), Hardware("m", "slow")
POLICIES = parse("predicted_ttft,round_robin")
NOTHING = Summary("p", 10, 0, 0.5, 0, 0, 0, 0, 0, 0, 0, 1.0, 0.5)


class Fleets:
    """Fleets that hold a target of 1 s from so many replicas on, by device and policy; what was played is kept."""

    def __init__(self, needs: Mapping[tuple[str, str], int], refusing: str = "") -> None:
        self.needs = needs
        self.refusing = refusing
        self.played: list[tuple[str, str, int]] = []
        self.following: list[int] = []

    def __call__(self, wanted: Sequence[Wanted], following: int) -> list[Summary]:
        self.following.append(following)
        found = []
        for build, policy, replicas in wanted:
            gpu = f"{build.hardware.gpu} + store" if build.has_store else build.hardware.gpu
            self.played.append((gpu, policy.written, replicas))
            p95 = self.needs[gpu, policy.written] / replicas
            refused = 3 if gpu == self.refusing else 0
            found.append(msgspec.structs.replace(NOTHING, ttft_p95=p95, refused=refused))
        return found

    def largest(self, gpu: str) -> int:
        return max([replicas for each, _, replicas in self.played if each == gpu], default=0)


def planner(
    fleets: Fleets, least: Mapping[str, float] | None = None, at_most: int = 64, store_price: float | None = None
) -> tuple[Planner, list[Stopped]]:
    told: list[Stopped] = []
    made = Planner(
        [Build(kind, side) for side in ((False,) if store_price is None else (False, True)) for kind in (QUICK, SLOW)],
        POLICIES,
        [Target("ttft_p95", 1.0)],
        prices={"quick": 3.0, "slow": 1.0},
        at_most=at_most,
        least=lambda kind: (least or {}) if kind is SLOW else {},
        play=fleets,
        told=told.append,
        resumed=lambda stopped: told.append(msgspec.structs.replace(stopped, why=f"again: {stopped.why}")),
        store_price=store_price or 0.0,
    )
    return made, told


def needs(quick: int, slow: int, worse: int = 2) -> dict[tuple[str, str], int]:
    """``round_robin`` needs ``worse`` times as many."""
    return {
        (gpu, policy.written): number * (worse if policy.name == "round_robin" else 1)
        for gpu, number in (("quick", quick), ("slow", slow))
        for policy in POLICIES
    }


def test_every_device_and_policy_is_planned_and_the_cheapest_comes_first() -> None:
    made, told = planner(Fleets(needs(quick=5, slow=16, worse=1)))
    plans = made.plans()
    assert [(plan.hardware.gpu, plan.policy, plan.replicas, plan.price) for plan in plans] == [
        ("quick", "predicted_ttft", 5, 15.0),
        ("quick", "round_robin", 5, 15.0),
    ]
    assert [stopped.hardware for stopped in told] == [SLOW], "sixteen of them cost more than five quick ones"


def test_a_device_goes_on_while_its_fewest_may_be_cheaper() -> None:
    made, told = planner(Fleets(needs(quick=6, slow=17)))
    assert [(plan.hardware.gpu, plan.replicas) for plan in made.plans()] == [
        ("slow", 17),
        ("slow", 34),
    ]
    assert [stopped.hardware.gpu for stopped in told] == ["quick"]
    assert "6 replicas at least cost 18, and 17 is enough with another" in told[0].why


def with_stores(without: Mapping[tuple[str, str], int], with_store: Mapping[tuple[str, str], int]) -> Fleets:
    return Fleets({**without, **{(f"{gpu} + store", policy): need for (gpu, policy), need in with_store.items()}})


def test_the_cheapest_is_found_with_a_store_and_without_whatever_the_other_side_costs() -> None:
    made, told = planner(with_stores(needs(quick=5, slow=16), needs(quick=2, slow=5)), store_price=100.0)
    firsts = {plan.has_store: plan for plan in reversed(made.plans())}
    assert [(firsts[side].hardware.gpu, firsts[side].replicas, firsts[side].price) for side in (False, True)] == [
        ("quick", 5, 15.0),
        ("slow", 5, 105.0),
    ]
    assert {(stopped.hardware.gpu, stopped.has_store) for stopped in told} == {("slow", False), ("quick", True)}


def test_a_side_where_nothing_holds_does_not_end_the_other() -> None:
    made, told = planner(with_stores(needs(quick=900, slow=900), needs(quick=2, slow=9)), store_price=1.0)
    plans = made.plans()
    assert {plan.has_store for plan in plans} == {True}
    assert (plans[0].replicas, plans[0].price) == (2, 7.0)
    assert [stopped.why[:11] for stopped in told if not stopped.has_store] == ["64 replicas"] * 2


def test_who_cannot_be_cheapest_is_played_no_further() -> None:
    fleets = Fleets(needs(quick=2, slow=60))
    made, told = planner(fleets, at_most=256)
    assert {plan.hardware.gpu for plan in made.plans()} == {"quick"}
    assert "cost" in told[0].why
    assert fleets.largest("slow") <= 16, "seven of them cost more than two quick ones"


def test_the_most_replicas_there_may_be_are_tried_before_all_sizes_between() -> None:
    fleets = Fleets(needs(quick=1000, slow=2000))
    made, told = planner(fleets)
    assert made.plans() == []
    assert sorted(fleets.played) == [
        ("quick", "predicted_ttft", 4),
        ("quick", "predicted_ttft", 64),
        ("quick", "round_robin", 4),
        ("quick", "round_robin", 64),
        ("slow", "predicted_ttft", 4),
        ("slow", "predicted_ttft", 64),
        ("slow", "round_robin", 4),
        ("slow", "round_robin", 64),
    ]
    assert told[0].why == (
        "64 replicas, the most there may be, do not hold the targets: ttft_p95 is 15.6 s with predicted_ttft"
    )


def test_where_nothing_holds_half_of_the_most_are_played_too_and_the_nearest_comes_first() -> None:
    fleets = Fleets(needs(quick=2000, slow=1000))
    made, _ = planner(fleets)
    assert made.plans() == []
    played = len(fleets.played)
    failed = made.failed()
    assert [(plan.hardware.gpu, plan.policy, plan.replicas) for plan in failed] == [
        ("slow", "predicted_ttft", 64),
        ("slow", "round_robin", 64),
        ("quick", "predicted_ttft", 64),
        ("quick", "round_robin", 64),
    ]
    assert all([each.replicas for each in plan.tried] == [4, 32, 64] for plan in failed)
    assert [replicas for _, _, replicas in fleets.played[played:]] == [32] * 4
    made, _ = planner(Fleets(needs(quick=2000, slow=1000), refusing="slow"), at_most=4)
    made.plans()
    assert {plan.hardware.gpu for plan in made.failed()} == {"quick"}, "the other one's cache is too small"
    made, _ = planner(Fleets(needs(quick=2, slow=2)), at_most=1)
    assert made.plans() == []
    assert [[each.replicas for each in plan.tried] for plan in made.failed()] == [[1]] * 4


def test_whose_cache_takes_no_prompt_is_stopped_at_once() -> None:
    fleets = Fleets(needs(quick=2, slow=2), refusing="slow")
    made, told = planner(fleets)
    assert {plan.hardware.gpu for plan in made.plans()} == {"quick"}
    assert [stopped.why for stopped in told] == ["3 requests do not fit into the cache of a replica"]
    assert fleets.largest("slow") == 4


def test_who_is_too_slow_alone_is_never_played() -> None:
    fleets = Fleets(needs(quick=2, slow=2))
    made, told = planner(fleets, least={"ttft_p95": 1.5})
    made.plans()
    assert fleets.largest("slow") == 0
    assert told[0].why.startswith("no number of replicas holds the targets: ttft_p95 is 1.50 s")
    made, told = planner(fleets, least={"ttft_p95": 1.0, "ttft_p99": 9.0})
    made.plans()
    assert fleets.largest("slow") == 4, "who takes just as long holds it, and of other figures nobody asked"


def test_a_device_with_which_nothing_is_found_is_told() -> None:
    made, told = planner(Fleets(needs(quick=2, slow=9)), at_most=3)
    assert {plan.hardware.gpu for plan in made.plans()} == {"quick"}
    assert [stopped.hardware for stopped in told] == [SLOW]


def test_how_many_runs_will_follow_is_told() -> None:
    fleets = Fleets(needs(quick=5, slow=15, worse=1))
    made, _ = planner(fleets)
    made.plans()
    assert fleets.following[0] == 4 * 2, (
        "four that would hold with four replicas: two more each, to halve what is below"
    )
    assert fleets.following[-1] == 0


@pytest.mark.parametrize("policy", ["predicted_ttft", "round_robin", "longest_prefix"])
@pytest.mark.parametrize("replicas", [1, 3, 40])
def test_no_fleet_has_less_than_the_least_figures(policy: str, replicas: int) -> None:
    trace = Chat(seconds=300.0, rate=1.0, spread=1.0).generate(3)
    fleet = SimpleFleet(replicas=replicas, block_size=trace.block_size, blocks=4000, prefill_tps=800.0)
    least = least_figures(trace, most_hits(trace), fleet)
    assert set(least) == set(FIGURES)
    paths = Paths(trace, fleet.block_size)
    summary = summarise(play(trace, paths, fleet, make(policy), policy, derived_sessions(trace)))
    assert all(getattr(summary, figure) >= value * (1 - 1e-9) for figure, value in least.items())
    assert replicas > 1 or least["ttft_p50"] > 0


def test_a_closed_loop_has_an_order_of_its_own_so_nothing_is_known() -> None:
    trace = Chat(seconds=60.0, rate=1.0).generate(3)
    assert least_figures(trace, most_hits(trace), SimpleFleet(closed_loop=True, block_size=trace.block_size)) == {}


def test_what_is_beside_the_fewest_is_played_as_more_replicas_may_be_slower() -> None:
    class Uneven(Fleets):
        def __call__(self, wanted: Sequence[Wanted], following: int) -> list[Summary]:
            found = super().__call__(wanted, following)
            return [
                msgspec.structs.replace(each, ttft_p95={8: 1.2, 5: 0.9}.get(of[2], each.ttft_p95))
                for of, each in zip(wanted, found, strict=True)
            ]

    made, _ = planner(Uneven(needs(quick=7, slow=99)))
    best = made.around(made.plans()[0])
    assert best.replicas == 9, "eight did not hold, by chance"
    holds = {each.replicas: each.distance <= 1 for each in best.tried}
    assert (holds[7], holds[8], holds[10]) == (True, False, True), "two fewer and one more are looked at, too"
    assert holds[9]
    made, _ = planner(fleets := Uneven(needs(quick=7, slow=99)), at_most=9)
    assert made.around(made.plans()[0]).replicas == 9
    assert fleets.largest("quick") == 9, "no more may be had"


def test_who_does_not_hold_with_all_there_may_be_is_told_with_the_best_of_them() -> None:
    made, told = planner(Fleets(needs(quick=2, slow=9)), at_most=3)
    made.plans()
    assert [(stopped.hardware, stopped.why) for stopped in told] == [
        (
            SLOW,
            "up to 3 replicas do not hold the targets: the nearest is ttft_p95 of 3.00 s, with 3 replicas and predicted_ttft",
        )
    ]


def test_a_policy_that_comes_nearest_does_not_end_the_search_for_the_others() -> None:
    class Crossing(Fleets):
        """``predicted_ttft`` is nearer with few replicas, and only ``round_robin`` holds with many."""

        def __call__(self, wanted: Sequence[Wanted], following: int) -> list[Summary]:
            found = super().__call__(wanted, following)
            return [
                msgspec.structs.replace(each, ttft_p95=max(1.5, each.ttft_p95))
                if of[1].name == "predicted_ttft"
                else each
                for of, each in zip(wanted, found, strict=True)
            ]

    made, _ = planner(Crossing(needs(quick=20, slow=900)))
    assert [(plan.hardware.gpu, plan.policy, plan.replicas) for plan in made.plans()] == [("quick", "round_robin", 40)]


def test_a_device_that_was_too_dear_goes_on_where_the_others_turn_out_dearer() -> None:
    fleets = Fleets(needs(quick=5, slow=16, worse=1))
    made, told = planner(fleets)
    assert {plan.hardware.gpu for plan in made.plans()} == {"quick"}
    assert not made.resume(has_store=False, limit=16.0), "sixteen slow ones cost as much"
    assert made.resume(has_store=False, limit=18.0)
    assert [(plan.hardware.gpu, plan.price) for plan in made.plans()] == [
        ("quick", 15.0),
        ("quick", 15.0),
        ("slow", 16.0),
        ("slow", 16.0),
    ]
    assert made.stopped == []
    assert [(stopped.hardware, stopped.why) for stopped in told] == [
        (SLOW, "16 replicas at least cost 16, and 15 is enough with another"),
        (SLOW, "again: 16 replicas at least cost 16, and what holds costs 18 after all"),
    ]
    made, told = planner(Fleets(needs(quick=5, slow=16, worse=1)))
    made.plans()
    assert made.resume(has_store=False, limit=float("inf"))
    assert told[-1].why == "again: 16 replicas at least cost 16, and nothing that was asked for holds"


def test_what_was_too_dear_is_told_by_what_is_known_in_the_end() -> None:
    made, _ = planner(Fleets(needs(quick=5, slow=30, worse=1)))
    made.plans()
    assert "17 replicas at least cost 17, and 15 is enough" in made.stopped[0].why
    assert not made.resume(has_store=False, limit=16.5)
    assert "17 replicas at least cost 17, and 16.5 is enough" in made.stopped[0].why
