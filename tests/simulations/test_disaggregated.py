"""``simulations/disaggregated.py``: prompts computed on one replica and answered by another, and what that must cost."""

import re
from collections import Counter
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.core import Decision, RouteRequest
from balancer.disaggregation.roles import Part
from balancer.errors import NoReplica
from balancer.router import Router
from simulations.detailed import play_detailed
from simulations.detailed_fleet import DetailedFleet, Disaggregation, Restart
from simulations.grid import encode
from simulations.latency import LatencyModel
from simulations.named_policies import parse
from simulations.results import Run, summarise
from simulations.store import StoreSettings
from simulations.traces.sessions import derived_sessions
from simulations.traces.trace import Trace
from tests.support import traces
from tests.support.routing import decisions_noted
from tests.support.traces import SIZE, trace_of

RATES: Final = LatencyModel.from_rates(prefill_tokens_per_second=1000, decode_seconds_per_token=0.001)
FLEET: Final = DetailedFleet(replicas=2, blocks=200, block_size=SIZE, latency=RATES, knows_speeds=True, event_lag=0.0)


STORES: Final = st.sampled_from(
    [
        None,
        StoreSettings(8e-5, 0.0, token_bytes=1),
        StoreSettings(8e-6, 0.01, token_bytes=1, loads="always"),
        StoreSettings(8e-3, 0.0, token_bytes=1, loads="always", tokens=200),
    ]
)


def apart(
    seconds_a_token: float, prefill: int = 1, splits: Literal["quicker", "always"] = "always", **more: Any
) -> Any:
    gbits, latency = 8e-9 / seconds_a_token, more.pop("latency", 0.0)
    return Disaggregation(prefill, gbits, latency, token_bytes=1, splits=splits, **more)


def talks(count: int = 30, gap: float = 1.0, answer: int = 12) -> Trace:
    """Longer ones, none of which ends with its block."""
    return traces.talks(count, 4, gap, shortest=5, spread=20, answer=answer, lacks=1)


def played(trace: Trace, fleet: DetailedFleet, policy: str = "predicted_ttft", seed: int = 1) -> Run:
    (named,) = parse(policy)
    return play_detailed(trace, fleet, named.make, policy, derived_sessions(trace), seed)


def changed(**changes: Any) -> DetailedFleet:
    return msgspec.structs.replace(FLEET, **changes)


def test_a_prompt_is_computed_there_moved_and_answered_here() -> None:
    """42 tokens at 1,000 a second and the step's token there; 42 tokens over the link; the last one here."""
    run = played(trace_of((0.0, 42, 5, list(range(11)))), changed(disaggregation=apart(0.0005, latency=0.003)))
    assert list(run.chosen) == [1]
    assert run.ttfts[0] == pytest.approx(0.042 + 0.003 + 42 * 0.0005 + 0.001)
    assert run.latencies[0] == pytest.approx(run.ttfts[0] + 4 * 0.001)
    assert run.busy == pytest.approx([0.042, 0.005])
    assert run.loading == pytest.approx([0.0, 0.003 + 42 * 0.0005])
    assert (list(run.hits), run.misses.first) == ([0], 42)


def test_both_keep_what_they_had_and_only_the_rest_is_computed_and_moved() -> None:
    again = trace_of((0.0, 42, 1, list(range(11))), (10.0, 50, 1, list(range(13))))
    run = played(again, changed(disaggregation=apart(0.0005)))
    assert list(run.hits) == [0, 40]
    assert run.ttfts[1] == pytest.approx(0.010 + 10 * 0.0005 + 0.001)


def test_what_another_prefill_replica_held_was_elsewhere() -> None:
    """Round robin: the last prompt comes to the one that has not computed it; who answers has evicted its end by then."""
    prompts = [[0, *range(1000 * at, 1000 * at + 10)] for at in (1, 2, 3, 1)]
    trace = trace_of(*[(10.0 * at, 42, 1, ids) for at, ids in enumerate(prompts)])
    run = played(trace, changed(replicas=3, blocks=25, disaggregation=apart(1e-5, prefill=2)), "round_robin")
    assert list(run.hits) == [0, 0, 4, 4]
    assert (run.misses.elsewhere, run.misses.evicted) == (4 + 36, 0)


def stored(seconds_a_token: float, loads: Literal["mixed", "always"] = "always") -> StoreSettings:
    return StoreSettings(8e-9 / seconds_a_token, 0.0, token_bytes=1, loads=loads)


def test_who_computes_prompts_loads_from_a_store_what_another_one_has_computed() -> None:
    """Round robin: the second prompt comes to the other one, which loads its 40 tokens, and computes the two that are new."""
    trace = trace_of((0.0, 42, 1, list(range(11))), (10.0, 42, 1, [*range(10), 99]))
    fleet = changed(replicas=3, disaggregation=apart(0.0005, prefill=2), store=stored(0.0001))
    run = played(trace, fleet, "round_robin")
    assert list(run.hits) == [0, 40]
    assert run.busy[:2] == pytest.approx([0.042, 0.002])
    assert run.ttfts[1] == pytest.approx(40 * 0.0001 + 0.002 + 2 * 0.0005 + 0.001), "who answers holds the 40, too"
    assert run.loading == pytest.approx([0.0, 40 * 0.0001, 44 * 0.0005])
    without = played(trace, msgspec.structs.replace(fleet, store=None), "round_robin")
    assert (list(without.hits), without.misses.elsewhere) == ([0, 0], 40)


def test_who_answers_loads_a_whole_prompt_from_the_store_where_that_is_quicker_than_two_legs() -> None:
    """The first one is computed where it is answered, as nobody answers there yet; the other replica finds it in the store."""
    trace = trace_of((0.0, 42, 1, list(range(11))), (10.0, 42, 1, [*range(10), 99]))
    fleet = changed(replicas=3, disaggregation=apart(10.0, splits="quicker"), store=stored(0.0001, "mixed"))
    run = played(trace, fleet, "round_robin")
    assert list(run.chosen) == [1, 2]
    assert list(run.hits) == [0, 40]
    assert run.busy[0] == 0.0
    assert run.loading == pytest.approx([0.0, 0.0, 40 * 0.0001])


def test_what_a_preempted_answer_loads_anew_comes_from_the_store() -> None:
    """Two answers that do not fit side by side: whoever is put back has let its prompt go there, and finds it in the store."""
    trace = trace_of((0.0, 33, 40, list(range(9))), (0.001, 33, 40, list(range(100, 109))))
    fleet = changed(blocks=24, disaggregation=apart(0.0005), store=stored(0.002))
    run = played(trace, fleet)
    assert list(run.outputs) == [40, 40]
    moved = 2 * 33 * 0.0005
    assert run.loading[1] > moved
    again = (run.loading[1] - moved) / 0.002
    assert again == pytest.approx(round(again)), "tokens of the store's rate"
    assert round(again) % SIZE == 0, "whole blocks"


def ticked(monkeypatch: pytest.MonkeyPatch) -> Counter[Router]:
    """Routers, and how often each was told the time."""
    found, tick = Counter[Router](), Router.tick

    def noted(self: Router, now: float) -> None:
        found[self] += 1
        tick(self, now)

    monkeypatch.setattr(Router, "tick", noted)
    return found


def test_while_a_prompt_is_computed_the_router_is_told_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ticked(monkeypatch)
    played(trace_of((0.0, 9000, 1, list(range(2250)))), changed(blocks=3000, disaggregation=apart(1e-5)))
    assert list(found.values()) == [10]


def test_whatever_is_split_every_lease_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    routers = ticked(monkeypatch)
    played(talks(), changed(replicas=4, disaggregation=apart(1e-4, prefill=2, splits="quicker")))
    (router,) = routers
    assert {(live.in_flight, live.queued_tokens) for live in router.fleet} == {(0, 0)}


def test_transfers_to_one_replica_go_one_after_the_other() -> None:
    trace = trace_of(*[(0.0, 42, 1, list(range(100 * at, 100 * at + 11))) for at in range(2)])
    run = played(trace, changed(replicas=3, disaggregation=apart(0.01, prefill=2)))
    assert sorted(run.ttfts) == pytest.approx([0.042 + 0.42 + 0.001, 0.042 + 0.84 + 0.001])


def test_blocks_are_kept_until_they_are_fetched_and_then_let_go() -> None:
    """The prefill replica's cache holds two of these prompts: the third one waits until the first has been moved."""
    trace = trace_of(*[(0.0, 398, 1, list(range(1000 * at, 1000 * at + 100))) for at in range(3)])
    run = played(trace, changed(disaggregation=apart(0.01)))
    assert sorted(run.ttfts)[1] == pytest.approx(0.398 + 2 * 3.98 + 0.001)
    assert sorted(run.ttfts)[2] == pytest.approx(0.398 + 3 * 3.98 + 0.001), "it was computed meanwhile"
    single = played(trace, changed(blocks=100, disaggregation=apart(0.01)))
    assert sorted(single.ttfts)[1] > 0.398 + 3.98 + 0.398 + 3.98


def test_answers_are_not_held_up_by_prompts() -> None:
    """One answers for 200 ms while a prompt of 300 ms comes: together, the answer stands still for that long."""
    trace = trace_of((0.0, 10, 200, [1, 2, 3]), (0.05, 302, 1, list(range(100, 176))))
    alone = played(trace, changed(replicas=1, max_num_batched_tokens=512))
    split = played(trace, changed(max_num_batched_tokens=512, disaggregation=apart(1e-6)))
    assert alone.latencies[0] > 0.5
    assert split.latencies[0] == pytest.approx(0.010 + 0.2, abs=0.01)


def test_only_what_is_quicker_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = decisions_noted(monkeypatch)
    trace = trace_of((0.0, 10, 300, [1, 2, 3]), (0.1, 302, 1, list(range(100, 176))))
    played(trace, changed(disaggregation=apart(1e-5, splits="quicker")))
    assert [each.is_split for each in decided] == [False, True, False], "nobody answers when the first one comes"
    decided.clear()
    run = played(trace, changed(disaggregation=apart(0.1, splits="quicker")))
    assert not any(each.is_split for each in decided), "the link is too slow"
    assert list(run.chosen) == [1, 1]
    decided.clear()
    played(trace, changed(disaggregation=apart(0.1)))
    assert sum(each.is_split for each in decided) == 2


@pytest.mark.parametrize("policy", ["predicted_ttft", "round_robin"])
def test_over_slower_links_a_busy_fleet_is_slower(policy: str) -> None:
    trace = talks()
    means = [
        summarise(played(trace, changed(replicas=4, disaggregation=apart(seconds, prefill=2)), policy)).ttft_mean
        for seconds in (1e-9, 1e-5, 1e-4, 1e-3, 1e-2)
    ]
    assert all(slower > 0.99 * quicker for quicker, slower in pairwise(means))
    assert means[-1] > 1.5 * means[0]


def test_to_choose_is_not_much_worse_than_to_split_always() -> None:
    trace = talks(60, gap=0.3)
    for seconds in (1e-5, 1e-3):
        quicker, always = (
            summarise(played(trace, changed(replicas=4, disaggregation=apart(seconds, 2, splits)))).ttft_mean
            for splits in ("quicker", "always")
        )
        assert quicker <= 1.1 * always, f"{seconds} s a token"


# Faults

ONE: Final = trace_of((0.0, 42, 5, list(range(11))))
"""Computed from 0 to 42 ms, moved until 84 ms over a link of 1 ms a token, and answered until 89 ms."""


def dying(at: float, replica: int, trace: Trace = ONE, down: float = 1.0, **changes: Any) -> Run:
    split = apart(0.001, prefill=changes.pop("prefill", 1))
    return played(trace, changed(disaggregation=split, restarts=(Restart(at, replica, down),), **changes))


def test_who_computes_a_prompt_and_dies_leaves_it_to_who_answers() -> None:
    """There is no other one: it is computed where it is answered."""
    run = dying(0.02, 0)
    assert list(run.chosen) == [1]
    assert run.ttfts[0] == pytest.approx(0.02 + 0.042, abs=0.002)
    assert list(run.outputs) == [5]


def test_who_computes_a_prompt_and_dies_leaves_it_to_another_one() -> None:
    run = dying(0.02, 1, replicas=3, prefill=2)
    assert run.ttfts[0] == pytest.approx(0.02 + 0.042 + 0.042 + 0.001)
    assert run.busy == pytest.approx([0.042, 0.042, 0.005])


def test_what_was_to_be_fetched_and_is_gone_is_computed_again() -> None:
    run = dying(0.06, 1, replicas=3, prefill=2)
    assert run.ttfts[0] == pytest.approx(0.06 + 0.042 + 0.042 + 0.001)
    assert run.busy == pytest.approx([0.042, 0.042, 0.005])
    assert list(run.outputs) == [5]


def test_who_was_to_answer_and_dies_leaves_it_to_another_one_and_lets_go_of_the_prompt() -> None:
    """The cache of the one that computed it has room for one and a half: what is kept for good would leave none for another."""
    long = trace_of(
        (0.0, 398, 1, list(range(100))), (30.0, 398, 1, list(range(900, 1000))), (60.0, 398, 1, list(range(200, 300)))
    )
    run = dying(0.5, 1, long, blocks=150)
    assert list(run.outputs) == [1, 1, 1]
    assert list(run.chosen) == [1, 1, 1]
    assert run.ttfts[0] > 1.5 - 0.001, "nobody else answers"
    assert run.ttfts[2] == pytest.approx(0.398 + 0.398 + 0.001)


def test_whose_answer_has_begun_is_lost_with_the_one_that_gives_it() -> None:
    run = dying(0.087, 1)
    assert list(run.outputs) == [0]
    assert run.latencies[0] == pytest.approx(0.087)


def test_who_is_to_answer_may_be_gone_when_the_prompt_is_there() -> None:
    """Whoever it is, of two. All but 2 tokens of the prompt are cached where it was computed, and move to the other one."""
    alone = played(ONE, changed(replicas=3, disaggregation=apart(0.001)))
    (chosen,) = alone.chosen
    run = dying(0.02, chosen, replicas=3)
    assert list(run.chosen) == [3 - chosen]
    assert run.ttfts[0] == pytest.approx(0.042 + 0.002 + 0.042 + 0.001)
    assert list(run.outputs) == [5]


def test_where_nobody_computes_prompts_any_more_who_answers_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are gone between the choice of who answers and that of who computes."""
    route = Router.route

    def gone(self: Router, wanted: RouteRequest, now: float, draw: float) -> Decision:
        if wanted.part is Part.PREFILL:
            raise NoReplica("all are gone")
        return route(self, wanted, now, draw)

    monkeypatch.setattr(Router, "route", gone)
    run = played(ONE, changed(disaggregation=apart(0.001)))
    assert run.ttfts[0] == pytest.approx(0.042)
    assert list(run.chosen) == [1]


@settings(max_examples=25)
@given(
    restarts=st.lists(st.builds(Restart, st.floats(0, 4), st.integers(0, 3), st.floats(0, 2)), max_size=6),
    prefill=st.integers(1, 3),
    gateways=st.integers(1, 2),
    lag=st.sampled_from([0.0, 1.0]),
    seconds=st.sampled_from([1e-6, 1e-3, 0.02]),
    splits=st.sampled_from(["quicker", "always"]),
    policy=st.sampled_from(["predicted_ttft", "round_robin", "session_sticky"]),
    blocks=st.sampled_from([40, 200]),
    closed=st.booleans(),
    store=STORES,
)
def test_nobody_is_lost_for_ever_whoever_dies(
    restarts: list[Restart],
    prefill: int,
    gateways: int,
    lag: float,
    seconds: float,
    splits: Literal["quicker", "always"],
    policy: str,
    blocks: int,
    closed: bool,
    store: StoreSettings | None,
) -> None:
    trace = talks(12, gap=0.4)
    fleet = changed(
        replicas=4,
        blocks=blocks,
        gateways=gateways,
        event_lag=lag,
        closed_loop=closed,
        restarts=tuple(restarts),
        disaggregation=apart(seconds, prefill, splits),
        store=store,
    )
    with pytest.MonkeyPatch.context() as patched:
        routers = ticked(patched)
        run = played(trace, fleet, policy)
    assert summarise(run).refused == 0, "nobody is away for as long as requests are tried again"
    for at, tokens in enumerate(run.outputs):
        assert 0 < run.ttfts[at] <= run.latencies[at]
        assert tokens or any(each.at == pytest.approx(run.arrivals[at] + run.latencies[at]) for each in restarts)
    for router in routers:
        assert {(live.in_flight, live.queued_tokens) for live in router.fleet} == {(0, 0)}
    assert encode(run) == encode(played(trace, fleet, policy))


# Any order of things


@settings(max_examples=25)
@given(
    prefill=st.integers(1, 3),
    gateways=st.integers(1, 2),
    loss=st.sampled_from([0.0, 0.3]),
    lag=st.sampled_from([0.0, 1.0]),
    seconds=st.sampled_from([1e-6, 1e-3, 0.02]),
    splits=st.sampled_from(["quicker", "always"]),
    policy=st.sampled_from(["predicted_ttft", "round_robin", "session_sticky", "cache_aware"]),
    blocks=st.sampled_from([40, 60, 200]),
    is_async=st.booleans(),
    store=STORES,
)
def test_everybody_is_served_and_all_of_it_repeats(
    prefill: int,
    gateways: int,
    loss: float,
    lag: float,
    seconds: float,
    splits: Literal["quicker", "always"],
    policy: str,
    blocks: int,
    is_async: bool,
    store: StoreSettings | None,
) -> None:
    trace = talks(15, gap=0.4)
    fleet = changed(
        replicas=4,
        blocks=blocks,
        gateways=gateways,
        event_loss=loss,
        event_lag=lag,
        async_scheduling=is_async,
        disaggregation=apart(seconds, prefill, splits),
        store=store,
    )
    run = played(trace, fleet, policy)
    assert summarise(run).refused == 0
    for at, tokens in enumerate(run.inputs):
        assert prefill <= run.chosen[at] < 4, "who computes prompts answers nobody"
        assert 0 <= run.hits[at] < tokens
        assert 0 < run.ttfts[at] <= run.latencies[at]
    misses = msgspec.structs.astuple(run.misses)
    assert min(misses) >= 0
    assert sum(misses) == sum(run.inputs) - sum(run.hits)
    assert encode(run) == encode(played(trace, fleet, policy))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"disaggregation": apart(1, prefill=2)},
            "disaggregation.prefill: must leave one of 2 replicas to answer at least",
        ),
        (
            {"disaggregation": apart(1), "store": StoreSettings()},
            "disaggregation.token_bytes: a token weighs as much there as in the store (131072), got 1",
        ),
    ],
)
def test_what_cannot_be_played_is_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        DetailedFleet(replicas=2, **changes)
