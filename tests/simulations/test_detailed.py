"""``simulations/detailed.py``: engines behind the router, and whatever fails loses only what was under way."""

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.core import Decision
from balancer.policies.base import make
from balancer.router import Router
from hashing.recipes import Recipe
from simulations.detailed import play_detailed
from simulations.detailed_fleet import DetailedFleet, Restart
from simulations.engine import Engine
from simulations.engine_values import EngineConfig, EngineRequest
from simulations.grid import encode
from simulations.keys import TraceKeys
from simulations.latency import LatencyModel
from simulations.named_policies import parse
from simulations.paths import Paths
from simulations.results import REFUSED, Run, summarise
from simulations.sequences import KeyPrompt
from simulations.simple import SimpleFleet, play
from simulations.traces.sessions import derived_sessions
from simulations.traces.trace import NO_PAUSE, Trace, TraceBuilder
from tests.support.traces import SIZE, alone, talks, trace_of

RATES = LatencyModel.from_rates(prefill_tokens_per_second=1000, decode_seconds_per_token=0.01)
FLEET = DetailedFleet(replicas=3, blocks=200, block_size=SIZE, latency=RATES, knows_speeds=True)


def played(trace: Trace, fleet: DetailedFleet = FLEET, policy: str = "predicted_ttft", seed: int = 1) -> Run:
    (named,) = parse(policy)
    return play_detailed(trace, fleet, named.make, policy, derived_sessions(trace), seed)


def changed(**changes: Any) -> DetailedFleet:
    return msgspec.structs.replace(FLEET, **changes)


def is_whole(run: Run) -> None:
    """Every request was served to its end, and its figures are possible."""
    for at, replica in enumerate(run.chosen):
        assert 0 <= replica < run.replicas
        assert 0 < run.ttfts[at] <= run.latencies[at]
        assert 0 <= run.hits[at] < run.inputs[at]
    misses = run.misses
    assert misses.first + misses.in_flight + misses.elsewhere + misses.evicted == sum(run.inputs) - sum(run.hits)
    assert min(misses.first, misses.in_flight, misses.elsewhere, misses.evicted) >= 0


# Times


def test_one_request_takes_as_long_as_its_steps() -> None:
    run = played(trace_of((5.0, 100, 3, list(range(25)))), changed(replicas=1))
    assert (run.arrivals[0], run.chosen[0], run.hits[0]) == (0.0, 0, 0)
    assert run.ttfts[0] == pytest.approx(0.1), "100 tokens at 1,000 a second"
    assert run.latencies[0] == pytest.approx(0.1 + 2 * 0.01), "and two steps more"
    assert list(run.outputs) == [3]
    assert summarise(run).tpot_mean == pytest.approx(0.01)
    assert run.busy == pytest.approx([0.12])
    assert run.misses.first == 100


@pytest.mark.parametrize("policy", ["predicted_ttft", "round_robin"])
def test_who_computes_a_block_first_is_its_first_however_many_wait_for_it(policy: str) -> None:
    burst = [(0.0, 401, 1, [*range(1000, 1101)])] + [(0.01 * at, 81, 1, [*range(20), 100 + at]) for at in range(1, 7)]
    for replicas in (1, 3):
        run = played(trace_of(*burst), changed(replicas=replicas, blocks=1000), policy)
        assert run.misses.first == 401 + 81 + 5, replicas
        assert run.misses.in_flight == 5 * 80 - sum(run.hits) - run.misses.elsewhere


def test_an_answer_ends_where_the_cache_does() -> None:
    run = played(trace_of((0.0, 30, 50, [])), changed(replicas=1, blocks=10))
    assert list(run.outputs) == [10]


def test_a_long_prompt_is_computed_in_chunks() -> None:
    latency = LatencyModel(overhead=1.0, weights=0, token=0, pair=0, context_token=0)
    run = played(trace_of((0.0, 100, 1, list(range(25)))), changed(max_num_batched_tokens=30, latency=latency))
    assert run.ttfts[0] == pytest.approx(4.0)


def test_a_turn_finds_what_the_one_before_it_left_and_computes_its_last_token() -> None:
    run = played(trace_of((0.0, 16, 1, [1, 2, 3, 4]), (9.0, 16, 1, [1, 2, 3, 4]), (18.0, 18, 1, [1, 2, 3, 4, 5])))
    assert list(run.hits) == [0, 12, 16]
    assert len(set(run.chosen)) == 1
    assert list(run.ttfts) == pytest.approx([0.016, 0.01, 0.01])


def test_a_slow_replica_takes_longer() -> None:
    run = played(trace_of((0.0, 100, 1, list(range(25)))), changed(replicas=1, speeds=(0.5,)))
    assert run.ttfts[0] == pytest.approx(0.2)


def test_slow_replicas_are_found_out() -> None:
    dice = Random(1)
    prompts = [(at * 0.4, dice.randrange(40, 800), dice.randrange(1, 20)) for at in range(400)]
    trace = trace_of(*[(when, tokens, answer, []) for when, tokens, answer in prompts])
    run = played(trace, changed(speeds=(1.0, 1.0, 0.25), knows_speeds=False, blocks=1000))
    work = Counter[int]()
    for replica, tokens in list(zip(run.chosen, run.inputs, strict=True))[100:]:
        work[replica] += tokens
    assert work[2] < 0.4 * min(work[0], work[1])
    known = played(trace, changed(speeds=(1.0, 1.0, 0.25), blocks=1000))
    assert summarise(run).ttft_mean < 1.25 * summarise(known).ttft_mean


def test_slow_replicas_get_less() -> None:
    fleet = changed(speeds=(1.0, 1.0, 0.25))
    run = played(talks(60, gap=0.2), fleet)
    is_whole(run)
    work = Counter[int]()
    for replica, tokens, hit in zip(run.chosen, run.inputs, run.hits, strict=True):
        work[replica] += tokens - hit
    assert work[2] < 0.5 * min(work[0], work[1])
    even = played(talks(60, gap=0.2), fleet, "round_robin")
    assert Counter(even.chosen)[2] == len(even.chosen) // 3


def test_time_can_be_played_faster_or_to_a_load() -> None:
    trace = trace_of((0.0, 40, 1, []), (8.0, 40, 1, []))
    assert list(played(trace, changed(rate=4.0)).arrivals) == [0.0, 2.0]
    assert played(trace, changed(replicas=2, load=0.5)).arrivals[1] == pytest.approx(80 / (2 * 1000 * 0.5))


def test_in_a_closed_loop_a_turn_comes_a_pause_after_the_answer() -> None:
    trace = talks(20, gap=0.001, pause=3.0)
    run = played(trace, changed(closed_loop=True))
    is_whole(run)
    last: dict[int, int] = {}
    for at, session in enumerate(trace.sessions):
        before = last.get(session)
        last[session] = at
        if trace.pauses[at] != NO_PAUSE:
            assert before is not None
            assert run.arrivals[at] == pytest.approx(run.arrivals[before] + run.latencies[before] + 3.0)


# Devices


def test_who_computes_on_one_device_at_once_takes_turns() -> None:
    alone_there = trace_of((0.0, 100, 3, list(range(25))))
    together = trace_of((0.0, 100, 3, list(range(25))), (0.0, 100, 3, list(range(100, 125))))
    two = changed(replicas=2)
    shared = changed(replicas=2, replicas_per_device=2)
    (first, *_) = played(alone_there, shared, "round_robin").ttfts
    assert first == pytest.approx(0.1), "nobody else computes"
    assert list(played(together, two, "round_robin").ttfts) == pytest.approx([0.1, 0.1])
    run = played(together, shared, "round_robin")
    assert sorted(run.chosen) == [0, 1]
    assert list(run.ttfts) == pytest.approx([0.2, 0.2])
    assert list(run.latencies) == pytest.approx([0.24, 0.24])
    assert run.busy == pytest.approx([0.24, 0.24]), "a step is under way as long as it takes"


def test_who_ends_first_leaves_the_device_to_the_other() -> None:
    run = played(
        trace_of((0.0, 100, 1, list(range(25))), (0.0, 40, 1, list(range(100, 110)))),
        changed(replicas=2, replicas_per_device=2),
        "round_robin",
    )
    assert list(run.ttfts) == pytest.approx([0.14, 0.08]), "both at half the speed for 0.08 s, then one at the whole"


def test_replicas_are_dealt_out_to_devices() -> None:
    fleet = changed(replicas=4, replicas_per_device=2)
    assert fleet.devices == 2
    prompts = [(0.0, 100, 1, list(range(100 * at, 100 * at + 25))) for at in range(4)]
    three = played(trace_of(*prompts[:3]), fleet, "round_robin")
    by_replica = dict(zip(three.chosen, three.ttfts, strict=True))
    assert by_replica == {0: pytest.approx(0.2), 1: pytest.approx(0.1), 2: pytest.approx(0.2)}
    assert list(played(trace_of(*prompts), fleet, "round_robin").ttfts) == pytest.approx([0.2] * 4)


def test_load_is_of_what_devices_compute() -> None:
    trace = talks()
    own, shared = changed(replicas=4, load=0.5), changed(replicas=4, load=0.5, replicas_per_device=2)
    assert list(played(trace, shared).arrivals) == pytest.approx([2 * each for each in played(trace, own).arrivals])


def test_devices_of_their_own_are_none_that_are_shared() -> None:
    one, none = played(talks(), changed(replicas_per_device=1)), played(talks())
    assert (one.ttfts, one.latencies, one.busy, one.hits) == (none.ttfts, none.latencies, none.busy, none.hits)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1000), at=st.floats(0, 5), per_device=st.integers(1, 4))
def test_who_dies_leaves_the_device_to_the_others(seed: int, at: float, per_device: int) -> None:
    fleet = changed(replicas=4, replicas_per_device=per_device, restarts=(Restart(at, 1, 2.0), Restart(at + 1, 3, 1.0)))
    run = played(talks(), fleet, seed=seed)
    is_whole(run)


# Caches


def test_cached_tokens_are_those_of_an_engine_that_is_asked_the_same() -> None:
    """Without the fleet: one engine, one request after the other, each to its end."""
    trace = talks(25, gap=60.0)
    fleet = changed(replicas=1, blocks=120)
    run = played(trace, fleet)
    longest = max(tokens + answer for tokens, answer in zip(trace.inputs, trace.outputs, strict=True))
    engine = Engine(EngineConfig(Recipe(block_size=SIZE), 121, max_model_len=longest + 1, announce_tokens=False))
    keys, found = TraceKeys(trace, SIZE), list[int]()
    for request, answer in enumerate(trace.outputs):
        engine.add(EngineRequest(str(request), KeyPrompt(trace.inputs[request], keys.of(request)), answer))
        while engine.has_work:
            found += engine.complete(engine.schedule(), lambda _: 0).cached_tokens.values()
    assert list(run.hits) == found
    assert 0 < summarise(run).hit < 1
    assert run.misses.evicted > 0


@pytest.mark.parametrize("policy", ["round_robin", "predicted_ttft(eviction=0)", "longest_prefix"])
@settings(max_examples=40)
@given(trace=alone(), blocks=st.integers(8, 30))
def test_one_prompt_at_a_time_hits_what_the_simple_model_says(policy: str, trace: Trace, blocks: int) -> None:
    sessions = derived_sessions(trace)
    simple = SimpleFleet(replicas=2, blocks=blocks, block_size=SIZE, prefill_tps=1000.0)
    (named,) = parse(policy)  # how full a cache is, events tell in their own time
    theirs = play(trace, Paths(trace, SIZE), simple, named.make(), policy, sessions)
    mine = played(trace, changed(replicas=2, blocks=blocks), policy)
    assert (list(mine.chosen), list(mine.hits)) == (list(theirs.chosen), list(theirs.hits))
    assert mine.misses == theirs.misses


def test_whoever_has_no_room_in_any_cache_is_refused_and_holds_nobody_up() -> None:
    run = played(trace_of((0.0, 800, 1, list(range(200))), (0.0, 16, 1, [1, 2, 3, 4])), changed(replicas=1))
    assert list(run.chosen) == [REFUSED, 0]
    assert run.ttfts[1] == pytest.approx(0.016)
    assert summarise(run).refused == 1


# What the router knows


def predictions(monkeypatch: pytest.MonkeyPatch) -> dict[int, Decision]:
    """By request, the last decision about it."""
    made: dict[int, Decision] = {}
    route = Router.route

    def noted(self: Router, request: Any, now: float, draw: float) -> Decision:
        decision = made[int(request.request_id)] = route(self, request, now, draw)
        return decision

    monkeypatch.setattr(Router, "route", noted)
    return made


def right(run: Run, made: dict[int, Decision]) -> float:
    """Share of requests that had as many tokens cached as was predicted."""
    return sum([made[at].cached_tokens == hit for at, hit in enumerate(run.hits)]) / len(run.hits)


def test_predictions_are_what_the_engine_finds_where_events_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = predictions(monkeypatch)
    run = played(talks(100, gap=2.0), changed(event_lag=0.0, blocks=4000))
    assert all(decision.is_predicted for decision in made.values())
    assert right(run, made) > 0.99
    run = played(talks(100, gap=2.0), changed(event_lag=0.0, blocks=100))
    assert run.misses.evicted > 0
    assert right(run, made) > 0.95, "what is evicted between the choice and the computation was promised in good faith"


def test_late_and_lost_events_lower_what_is_hit_and_break_nothing() -> None:
    trace = talks(60)
    hits = []
    for lag, loss in ((0.0, 0.0), (2.0, 0.0), (0.0, 0.5), (0.0, 1.0)):
        run = played(trace, changed(event_lag=lag, event_loss=loss, blocks=4000), "cache_aware")
        is_whole(run)
        hits.append(summarise(run).hit)
    prompt, *others = hits
    assert all(0.5 < hit < prompt for hit in others), "what was sent somewhere is remembered for a while"


@pytest.mark.parametrize("gateways", [2, 5])
def test_several_gateways_serve_everybody_in_turn(gateways: int, monkeypatch: pytest.MonkeyPatch) -> None:
    routers = Counter[int]()
    route = Router.route

    def noted(self: Router, request: Any, now: float, draw: float) -> Decision:
        routers[id(self)] += 1
        return route(self, request, now, draw)

    monkeypatch.setattr(Router, "route", noted)
    trace = talks(40)
    run = played(trace, changed(gateways=gateways, blocks=4000))
    is_whole(run)
    assert len(routers) == gateways
    assert max(routers.values()) - min(routers.values()) <= 1
    assert summarise(run).hit > 0.5, "events tell all of them where everything is"


def test_gateways_do_not_know_of_each_others_load() -> None:
    trace = trace_of(*[(0.0, 40, 20, []) for _ in range(12)])
    one = Counter(played(trace, changed(gateways=1), "least_load").chosen)
    assert one == {0: 4, 1: 4, 2: 4}
    apart = [Counter(played(trace, changed(gateways=12), "least_load", seed).chosen) for seed in range(5)]
    assert any(max(each.values()) > 4 for each in apart)


def test_siblings_that_come_at_once_stay_together_where_expected_blocks_count() -> None:
    trace = trace_of(*[(0.0, 401, 1, list(range(101))) for _ in range(6)])

    def run(**more: Any) -> Run:
        return play_detailed(trace, FLEET, lambda: make("predicted_ttft", {"price": 3, **more}), "", [-1] * 6)

    assert len(set(run().chosen)) == 1
    assert sum(run().hits) == 5 * 400
    assert len(set(run(counts_expected=False).chosen)) == 3


# Faults


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_restart_loses_only_what_was_under_way(async_scheduling: bool) -> None:
    trace = talks(60, gap=0.2)
    calm = played(trace, changed(async_scheduling=async_scheduling, blocks=400))
    is_whole(calm)
    run = played(trace, changed(async_scheduling=async_scheduling, blocks=400, restarts=(Restart(0.6, 1, 0.3),)))
    assert summarise(run).refused == 0
    lost = [at for at, hit in enumerate(run.chosen) if run.arrivals[at] + run.latencies[at] == pytest.approx(0.6)]
    assert lost
    assert {run.chosen[at] for at in lost} == {1}
    for at, replica in enumerate(run.chosen):
        assert run.ttfts[at] > 0, "who had not begun was sent elsewhere"
        assert run.latencies[at] >= run.ttfts[at]
        if run.arrivals[at] >= 0.6 and replica == 1:
            assert run.arrivals[at] + run.ttfts[at] > 0.9
    assert any(run.arrivals[at] > 0.9 and replica == 1 for at, replica in enumerate(run.chosen)), "it is used again"
    assert summarise(run).hit < summarise(calm).hit
    assert [at for at, tokens in enumerate(run.outputs) if not tokens] == lost, "they have no whole answer"


def test_a_restart_forgets_what_was_cached() -> None:
    again = [(at * 10.0, 41, 1, list(range(11))) for at in range(3)]
    assert list(played(trace_of(*again), changed(replicas=1)).hits) == [0, 40, 40]
    run = played(trace_of(*again), changed(replicas=1, restarts=(Restart(15.0, 0, 1.0),)))
    assert list(run.hits) == [0, 40, 0]
    assert (run.misses.evicted, run.forgotten) == (40, 40), "nobody has evicted it"
    assert list(run.ttfts) == pytest.approx([0.041, 0.01, 0.041])


@pytest.mark.parametrize("lag", [0.001, 5.0])
def test_what_a_dead_engine_held_is_expected_of_nobody(lag: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it when its events are heard after the next one has come."""
    made = predictions(monkeypatch)
    again = trace_of(*[(at, 41, 1, list(range(11))) for at in (0.0, 30.0)])
    fleet = changed(replicas=1, event_lag=lag)
    played(again, fleet)
    assert made[1].cached_tokens == 40
    played(again, msgspec.structs.replace(fleet, restarts=(Restart(2.0, 0, 1.0),)))
    assert made[1].cached_tokens == 0


def test_while_nobody_is_there_requests_wait_and_are_served_when_somebody_is() -> None:
    run = played(
        trace_of((1.0, 16, 1, []), (2.0, 16, 1, []), (9.0, 16, 1, [])),
        changed(replicas=1, restarts=(Restart(0.5, 0, 5.0),)),
    )
    is_whole(run)
    assert run.ttfts[1] > 4.0


def test_who_waits_too_long_is_refused_and_the_session_goes_on() -> None:
    builder = TraceBuilder("made", SIZE, is_chained=False)
    builder.add(0.0, 16, 1, [], session="a")
    builder.add(1.0, 16, 1, [], session="a", pause=1.0)
    builder.add(2.0, 16, 1, [], session="a", pause=100.0)
    run = played(builder.build(), changed(replicas=1, closed_loop=True, restarts=(Restart(0.5, 0, 80.0),)))
    assert list(run.chosen) == [0, REFUSED, 0]
    assert run.arrivals[2] > 100


def test_an_engine_that_dies_again_while_it_is_away_comes_back_once() -> None:
    trace = talks(40, turns=12, gap=0.2)
    run = played(trace, changed(replicas=2, restarts=(Restart(0.3, 1, 0.4), Restart(0.5, 1, 0.6))))
    for at, replica in enumerate(run.chosen):
        assert run.latencies[at] >= run.ttfts[at] > 0
        if replica == 1 and run.arrivals[at] >= 0.3:
            assert run.arrivals[at] + run.ttfts[at] > 1.1
    assert 1 in [replica for at, replica in enumerate(run.chosen) if run.arrivals[at] > 1.1]


@settings(max_examples=15)
@given(
    restarts=st.lists(st.builds(Restart, st.floats(0, 3), st.integers(0, 2), st.floats(0, 2)), max_size=5),
    gateways=st.integers(1, 3),
    loss=st.sampled_from([0.0, 0.3]),
    lag=st.sampled_from([0.0, 0.001, 1.0]),
    policy=st.sampled_from(["predicted_ttft", "session_sticky", "consistent_hash", "round_robin"]),
    closed=st.booleans(),
)
def test_nobody_is_lost_for_ever_whatever_fails(
    restarts: list[Restart], gateways: int, loss: float, lag: float, policy: str, closed: bool
) -> None:
    trace = talks(15, turns=5, gap=0.4, pause=0.2)
    fleet = changed(
        restarts=tuple(restarts), gateways=gateways, event_loss=loss, event_lag=lag, blocks=60, closed_loop=closed
    )
    run = played(trace, fleet, policy)
    assert summarise(run).refused == 0, "nobody is away for as long as requests are tried again"
    for ttft, latency in zip(run.ttfts, run.latencies, strict=True):
        assert latency >= ttft > 0
    assert encode(run) == encode(played(trace, fleet, policy)), "and all of it repeats to the bit"


def test_chance_makes_another_run_and_the_same_seed_the_same() -> None:
    trace = talks(20)
    assert encode(played(trace, policy="random")) == encode(played(trace, policy="random"))
    assert played(trace, policy="random").chosen != played(trace, policy="random", seed=2).chosen


def test_a_restart_of_nobody_is_told() -> None:
    with pytest.raises(ValueError, match="restarts: there is no replica 3 among 3; they are counted from 0"):
        DetailedFleet(replicas=3, restarts=(Restart(1.0, 3),))
