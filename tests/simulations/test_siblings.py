"""Three gateways that tell each other what they have under way, in moved time: as good as one, before twelve replicas.

The routers are production's, and so is what they tell each other; the model plays engines, the lag of events and of answers.
Figures are means over several traffics, as one alone is partly luck: where a conversation begins it stays, and 450 of them fall
on 12 replicas as they may. ``imbalance`` is what the busiest replica has over the mean.
"""

from functools import cache
from statistics import fmean
from typing import Final

import msgspec
import pytest

from balancer.siblings import book
from simulations.detailed_fleet import DetailedFleet, told
from tests.simulations.pathologies.playing import FLEET, Played, Traffic, play
from tests.simulations.pathologies.scenarios import talks

REPLICAS: Final = 12
SEEDS: Final = (3, 4, 5)
SECONDS: Final = 35
ONE: Final = msgspec.structs.replace(FLEET, replicas=REPLICAS)
THREE: Final = msgspec.structs.replace(ONE, gateways=3, exchange=0.5)
STRANGERS: Final = msgspec.structs.replace(ONE, gateways=3)


class Figures(msgspec.Struct, frozen=True):
    hit: float
    ttft_p95: float
    imbalance: float
    """Of requests."""
    computed_imbalance: float
    """Of tokens that were computed."""


@cache
def figures(rate: float, fleet: DetailedFleet) -> Figures:
    """Conversations behind four hot system prompts, so many new ones in ten seconds."""
    found = []
    for seed in SEEDS:
        played = play(talks(rate, SECONDS, system=1024, seed=seed), fleet, seed=seed)
        late = played.those(15, SECONDS)
        asked, computed = played.asked(late), played.computed(late)
        found.append((played.hit(late), played.ttft(0.95, late), _most(asked), _most(computed)))
    return Figures(*(fmean(each) for each in zip(*found, strict=True)))


def _most(counts: list[int]) -> float:
    return max(counts) * len(counts) / sum(counts)


@pytest.mark.parametrize("rate", [50.0, 150.0])
def test_three_that_tell_each_other_are_as_good_as_one(rate: float) -> None:
    one, three = figures(rate, ONE), figures(rate, THREE)
    assert three.hit > 0.97 * one.hit
    assert three.imbalance < 1.03 * one.imbalance
    assert three.computed_imbalance < 1.03 * one.computed_imbalance
    assert three.ttft_p95 < 1.03 * one.ttft_p95


def test_three_that_know_nothing_of_each_other_are_not() -> None:
    strangers, three = figures(50.0, STRANGERS), figures(50.0, THREE)
    assert strangers.hit < 0.98 * three.hit
    assert strangers.imbalance > 1.3 * three.imbalance


def flow(fleet: DetailedFleet) -> Played:
    """One hot prefix that one replica holds, and 300 requests a second that begin with it, before an idle fleet."""
    traffic = Traffic()
    now = traffic.warm_up(replicas=REPLICAS)
    traffic.ask(now, ("hot", 4096))
    first = len(traffic)
    for each in range(900):
        traffic.ask(now + 10 + each / 300, ("hot", 4096), (f"tail {each}", 200), answer=64)
    return play(traffic, fleet, first=first)


def test_they_do_not_all_run_after_the_replica_that_was_idle_a_moment_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    one, three = flow(ONE), flow(THREE)
    assert _most(three.asked()) < 1.1 * _most(one.asked())
    assert three.ttft(0.95) < 1.2 * one.ttft(0.95)
    monkeypatch.setattr(book, "ECHO", 0.0)  # as if nobody did what all do
    assert flow(THREE).ttft(0.95) > three.ttft(0.95)


def test_a_run_with_an_exchange_repeats_and_is_told() -> None:
    traffic = talks(60, 10)
    first, second = play(traffic, THREE), play(traffic, THREE)
    assert first.run.ttfts == second.run.ttfts
    assert first.run.chosen != play(traffic, STRANGERS).run.chosen
    assert told(THREE)["exchange"] == "0.5"
    assert "exchange" not in told(ONE)
