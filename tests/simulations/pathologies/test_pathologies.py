"""What routers are known to fail at, and the law that the default policy keeps there; each figure is as it was recorded.

A figure that changed is told beside the stored one. When it changed for the better, or is worth what it bought:
``.venv/bin/python -m tests.simulations.pathologies.record``.
"""

import pytest

from tests.simulations.pathologies.playing import DEFAULT
from tests.simulations.pathologies.record import differences, stored
from tests.simulations.pathologies.scenarios import SCENARIOS, Figures


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Those of the scenario that the test is named after."""
    return SCENARIOS[request.function.__name__.removeprefix("test_")]()


@pytest.mark.parametrize("name", SCENARIOS)
def test_figures_are_those_that_are_stored(name: str) -> None:
    changed = differences(stored()[name], SCENARIOS[name]())
    assert not changed, "\n".join(["", *changed])


def test_nothing_is_stored_that_is_not_played() -> None:
    assert list(stored()) == list(SCENARIOS)


def test_hot_prefix_at_once(figures: Figures) -> None:
    """It is copied on purpose: everybody shares the work, and most are sooner than if it had simply been spread."""
    assert figures[f"{DEFAULT}.replicas"] == 8
    assert figures[f"{DEFAULT}.largest_share"] < 2
    assert figures[f"{DEFAULT}.ttft_p50"] < figures["round_robin.ttft_p50"]
    assert figures[f"{DEFAULT}.ttft_p95"] < 1.1 * figures["round_robin.ttft_p95"]
    assert figures[f"{DEFAULT}.ttft_p95"] < 0.4 * figures["longest_prefix.ttft_p95"]


def test_hot_prompt_in_a_row(figures: Figures) -> None:
    """The holder is left before it is slow, though no prefill ever waits there; p95 is what making a copy takes."""
    assert 1 <= figures[f"{DEFAULT}.stayed_at_first"] < 20
    assert figures["longest_prefix.stayed_at_first"] == 200
    assert figures[f"{DEFAULT}.largest_share"] < 2
    assert figures[f"{DEFAULT}.ttft_p50"] < 0.7 * figures["longest_prefix.ttft_p50"]
    assert figures[f"{DEFAULT}.ttft_p95"] < 2048 / 23_000 * 1.1


def test_hot_long_prompt(figures: Figures) -> None:
    """What is long is copied, too, before its holder is slow by all who are answered there."""
    assert figures[f"{DEFAULT}.replicas"] == 8
    assert figures[f"{DEFAULT}.largest_share"] < 1.5
    assert figures[f"{DEFAULT}.ttft_p50"] < 1.2 * figures["round_robin.ttft_p50"]
    assert figures[f"{DEFAULT}.seconds_p50"] < 1.2 * figures["round_robin.seconds_p50"]


def test_cold_burst(figures: Figures) -> None:
    """Each computes as much as the others."""
    assert figures[f"{DEFAULT}.most_over_least_computed"] < 1.2
    assert figures[f"{DEFAULT}.ttft_p50"] < figures["round_robin.ttft_p50"]
    assert figures[f"{DEFAULT}.ttft_p95"] < figures["round_robin.ttft_p95"]


def test_one_after_the_other(figures: Figures) -> None:
    """Nothing is ever in flight when a request comes: all replicas are used, and each conversation stays where it is."""
    for system in (0, 512):
        assert figures[f"{DEFAULT}.{system}.moves"] == 0
        assert figures[f"{DEFAULT}.{system}.largest_share"] < 1.5
        assert figures[f"{DEFAULT}.{system}.hit"] > 0.99 * figures[f"session_sticky.{system}.hit"]


def test_behind_a_system_prompt(figures: Figures) -> None:
    """No cache is thrashed while others are empty."""
    assert figures[f"{DEFAULT}.replicas"] > 3
    assert figures[f"{DEFAULT}.hit"] > 0.95 * figures["session_sticky.hit"]
    assert figures[f"{DEFAULT}.hit"] > 0.95 * figures["endless_cache.hit"]


def test_behind_a_long_system_prompt(figures: Figures) -> None:
    """The same, although each request alone would be served soonest where the system prompt lies already."""
    test_behind_a_system_prompt(figures)


def test_newcomer(figures: Figures) -> None:
    """It has more than 60 % of a full share before its first minute is over, and nobody waits for it."""
    assert figures["share_of_computed_30_to_60"] > 0.6
    assert figures["share_of_requests_30_to_60"] > 0.6
    assert figures["ttft_p95_after"] < 1.1 * figures["ttft_p95_before"]


def test_half_as_fast(figures: Figures) -> None:
    """What is learned of it is worth nearly as much as to be told."""
    assert figures["learned.share"] < 0.6
    assert figures["learned.ttft_p95"] < 1.1 * figures["known.ttft_p95"]
    assert figures["learned.ttft_p95"] < 0.5 * figures["round_robin.ttft_p95"]


def test_far_slower(figures: Figures) -> None:
    """It is tried so rarely that next to nobody notices; one that is well again is found all the same (``foreign_load``)."""
    for rate in (2, 20):
        assert 0 < figures[f"{rate}.slow.part_of_requests"] < 0.008
        assert figures[f"{rate}.slow.ttft_p99"] < 1.2 * figures[f"{rate}.well.ttft_p99"]


def test_foreign_load(figures: Figures) -> None:
    """Traffic leaves after a handful of requests, and is back when it is over."""
    assert figures["share_before"] > 0.6
    assert figures["sent_there"] < 20
    assert figures["share_meanwhile"] < 0.1
    assert figures["share_30_to_60_after"] > 0.6
    assert figures["ttft_p95_first_10"] < 2.5 * figures["ttft_p95_before"]
    assert figures["ttft_p95_first_10"] < 0.1 * figures["round_robin.ttft_p95_first_10"]
    assert figures["ttft_p95_meanwhile"] < 1.1 * figures["ttft_p95_before"]


def test_false_reports(figures: Figures) -> None:
    """Who says to be full gets less, but not nothing, and nobody is slower for what one of them says."""
    assert 0.1 < figures["full.share"] < figures["honest.share"]
    for lie in ("empty", "full", "all_full"):
        assert figures[f"{lie}.ttft_p95"] < 1.1 * figures["honest.ttft_p95"]


def test_three_gateways(figures: Figures) -> None:
    """They do not run after the same replica: who waits longest waits little longer, and caches are worth as much."""
    assert figures["3.ttft_p95"] < 1.1 * figures["1.ttft_p95"]
    assert figures["3.ttft_p99"] < 1.2 * figures["1.ttft_p99"]
    assert figures["3.hit"] > 0.97 * figures["1.hit"]
    assert figures["3.largest_share_in_a_second"] < 1.7 * figures["1.largest_share_in_a_second"]


def test_restart_of_a_hot_replica(figures: Figures) -> None:
    """Nothing is refused, the others take over at once, and it is used again when it is back."""
    assert figures["refused"] == 0
    assert figures["ttft_p95_meanwhile"] < 2 * figures["ttft_p95_before"]
    assert figures["ttft_max_meanwhile"] < 5 * figures["ttft_p95_before"]
    assert figures["ttft_p95_after"] < 1.5 * figures["ttft_p95_before"]
    assert figures["share_20_to_40_after"] > 0.6


def test_a_tenant_floods(figures: Figures) -> None:
    """Who asks for little waits for what was sent before, and no longer; the flood pays next to nothing."""
    assert figures["yielding.small_ttft_max"] < 2 * 4000 / 23_000
    assert figures["not_yielding.small_ttft_max"] > 20 * figures["yielding.small_ttft_max"]
    assert figures["yielding.big_ttft_p95"] < 1.1 * figures["not_yielding.big_ttft_p95"]


def test_siblings(figures: Figures) -> None:
    """Of an idle fleet, none waits longer than for its own prompt; of a busy one, the prompt is computed once."""
    assert figures["idle.ttft_p95"] < 1.1 * 6016 / 23_000
    assert figures["idle.times_computed"] < 8, "the first is seen by those after it, although no event has told of it"
    assert figures["warm.replicas"] == 1
    assert figures["busy.replicas"] < 1.5
    assert figures["busy.times_computed"] < 1.5


def test_sub_agents(figures: Figures) -> None:
    """They go where their agent's prompt lies."""
    assert figures[f"{DEFAULT}.replicas"] == 1
    assert figures[f"{DEFAULT}.ttft_p95"] < 0.7 * figures["round_robin.ttft_p95"]
