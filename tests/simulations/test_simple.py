"""``simulations/simple.py``: it plays what the model says, as block by block and as the router itself would."""

from array import array

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.policies.base import make, names
from simulations.bounds import bounds
from simulations.paths import Paths
from simulations.results import REFUSED, Run, summarise
from simulations.simple import SimpleFleet, play
from simulations.traces.sessions import derived_sessions
from simulations.traces.trace import Trace, TraceBuilder
from tests.support.block_fleet import play_blocks
from tests.support.traces import SIZE, trace_of

SMALL = SimpleFleet(replicas=3, blocks=12, block_size=SIZE, prefill_tps=100.0, decode_seconds=0.01)


def run_of(trace: Trace, fleet: SimpleFleet = SMALL, policy: str = "predicted_ttft", seed: int = 1) -> Run:
    return play(trace, Paths(trace, fleet.block_size), fleet, make(policy), policy, derived_sessions(trace), seed)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Prompts over a small tree, so that they share beginnings; some end within a block, some at its end."""
    requests = []
    now = 0.0
    for _ in range(draw(st.integers(1, 24))):
        now += draw(st.sampled_from([0.0, 0.0, 0.03, 0.2, 1.0]))
        depth = draw(st.integers(0, 5))
        ids = [draw(st.integers(0, 1)) for _ in range(depth)]
        rest = draw(st.integers(0 if depth else 1, SIZE - 1))
        if rest:
            ids.append(draw(st.integers(2, 3)))
        requests.append((now, depth * SIZE + rest, draw(st.integers(1, 12)), ids))
    return trace_of(*requests)


@pytest.mark.parametrize("name", names())
@settings(max_examples=25)
@given(trace=traces(), seed=st.integers(0, 9), load=st.sampled_from([None, 0.7, 3.0]))
def test_segments_behind_the_fleet_are_as_good_as_blocks_behind_the_router(
    name: str, trace: Trace, seed: int, load: float | None
) -> None:
    fleet = msgspec.structs.replace(SMALL, load=load)
    run = run_of(trace, fleet, name, seed)
    theirs = play_blocks(trace, fleet, make(name), name, derived_sessions(trace), seed)
    assert list(run.chosen) == [replica for replica, _, _ in theirs]
    assert list(run.hits) == [hit for _, hit, _ in theirs]
    assert list(run.ttfts) == pytest.approx([ttft for _, _, ttft in theirs])


@settings(max_examples=50)
@given(trace=traces(), pooled=st.booleans(), size=st.sampled_from([1, 2, 3, 4, 8]))
def test_every_prompt_token_is_hit_or_missed_for_one_reason(trace: Trace, pooled: bool, size: int) -> None:
    run = run_of(trace, msgspec.structs.replace(SMALL, pooled=pooled, block_size=size, blocks=12 * SIZE // size))
    misses = run.misses
    assert misses.first + misses.in_flight + misses.elsewhere + misses.evicted + sum(run.hits) == sum(trace.inputs)
    assert min(misses.first, misses.in_flight, misses.elsewhere, misses.evicted) >= 0
    assert not (pooled and misses.elsewhere > SIZE * len(trace)), "what one cache holds is never elsewhere"


def test_a_turn_hits_what_the_turn_before_it_left_and_computes_its_last_token() -> None:
    trace = trace_of((0.0, 8, 1, [1, 2]), (10.0, 8, 1, [1, 2]), (20.0, 10, 1, [1, 2, 3]))
    run = run_of(trace)
    assert list(run.hits) == [0, 4, 8]
    assert list(run.ttfts) == pytest.approx([0.08, 0.04, 0.02])
    assert run.misses.first == 8 + 4 + 2
    assert (run.misses.in_flight, run.misses.elsewhere, run.misses.evicted) == (0, 0, 0)


def test_misses_say_whose_fault_they_are() -> None:
    one = msgspec.structs.replace(SMALL, replicas=1, blocks=4)
    again = [(0.0, 8, 1, [1, 2]), (10.0, 8, 1, [3, 4]), (20.0, 9, 1, [1, 2, 5])]
    assert run_of(trace_of(*again), one).misses.evicted == 4, "the tail went first, and its head is still there"
    two = msgspec.structs.replace(SMALL, replicas=2)
    assert run_of(trace_of(*again), two, "round_robin").misses.elsewhere == 0, "the third comes where the first was"
    elsewhere = run_of(trace_of((0.0, 8, 1, [1, 2]), (10.0, 9, 1, [1, 2, 5])), two, "round_robin")
    assert elsewhere.misses.elsewhere == 8
    at_once = run_of(trace_of((0.0, 8, 1, [1, 2]), (0.0, 9, 1, [1, 2, 5])), two, "round_robin")
    assert at_once.misses.in_flight == 8


def test_who_computes_a_block_first_is_its_first_however_many_wait_for_it() -> None:
    one = msgspec.structs.replace(SMALL, replicas=1)
    burst = [(0.0, 8, 1, [7, 8]), (0.01, 9, 1, [1, 2, 3]), (0.02, 9, 1, [1, 2, 4]), (0.03, 9, 1, [1, 2, 5])]
    queued = run_of(trace_of(*burst), one)
    assert list(queued.hits) == [0, 0, 8, 8]
    assert msgspec.structs.astuple(queued.misses) == (8 + 9 + 1 + 1, 0, 0, 0)
    two = msgspec.structs.replace(SMALL, replicas=2)
    for policy in ("round_robin", "predicted_ttft"):
        apart = run_of(trace_of(*burst), two, policy)
        assert apart.misses.first == 8 + 9 + 1 + 1, policy
    late = [
        (0.0, 8, 1, [1, 2]),
        (5.0, 8, 1, [3, 4]),
        (10.0, 8, 1, [5, 6]),
        (20.0, 9, 1, [1, 2, 7]),
        (20.0, 9, 1, [1, 2, 8]),
    ]
    again = run_of(trace_of(*late), msgspec.structs.replace(two, blocks=4), "round_robin")
    assert (again.misses.in_flight, again.misses.evicted) == (4, 4), "it was forgotten, and one of two computes it anew"


@settings(max_examples=50)
@given(
    trace=traces(),
    policy=st.sampled_from(["predicted_ttft", "round_robin", "random"]),
    blocks=st.sampled_from([12, 40]),
)
def test_what_nobody_had_computed_is_what_no_cache_could_have_had(trace: Trace, policy: str, blocks: int) -> None:
    uneven = trace_of(
        *[
            (
                trace.arrivals[at],
                tokens + (not tokens % SIZE),
                trace.outputs[at],
                [*trace.blocks[at], *[10**6 + at] * (not tokens % SIZE)],
            )
            for at, tokens in enumerate(trace.inputs)
        ]
    )
    run = run_of(uneven, msgspec.structs.replace(SMALL, blocks=blocks), policy)
    assert run.misses.first == sum(uneven.inputs) - sum(bounds(uneven, []).infinite_by_request)


def test_of_what_another_holds_in_part_the_rest_was_evicted() -> None:
    two = msgspec.structs.replace(SMALL, replicas=2, blocks=4)
    trace = trace_of((0.0, 8, 1, [1, 2]), (10.0, 8, 1, [8, 9]), (20.0, 8, 1, [3, 4]), (30.0, 9, 1, [1, 2, 5]))
    run = run_of(trace, two, "round_robin")
    assert list(run.chosen) == [0, 1, 0, 1]
    assert (run.misses.elsewhere, run.misses.evicted, run.misses.first) == (4, 4, 3 * 8 + 1)


def test_who_can_never_fit_is_refused_and_holds_nobody_up() -> None:
    trace = trace_of((0.0, 400, 1, list(range(100))), (0.0, 8, 1, [1, 2]))
    run = run_of(trace, msgspec.structs.replace(SMALL, replicas=1))
    assert list(run.chosen) == [REFUSED, 0]
    assert summarise(run).refused == 1
    assert run.ttfts[1] == pytest.approx(0.08)


def test_the_first_in_the_lane_waits_until_its_blocks_fit() -> None:
    one = msgspec.structs.replace(SMALL, replicas=1, blocks=4, decode_slowdown=0.0)
    run = run_of(trace_of((0.0, 8, 4, [1, 2]), (0.0, 8, 4, [3, 4])), one)
    assert run.ttfts[0] == pytest.approx(0.08)
    assert run.ttfts[1] == pytest.approx(0.08 + 4 * 0.01 + 0.08)


def test_in_a_closed_loop_a_turn_comes_a_pause_after_the_answer() -> None:
    builder = TraceBuilder("made", SIZE, is_chained=False)
    builder.add(0.0, 8, 100, [1, 2], session="a")
    builder.add(0.1, 12, 1, [1, 2, 3], session="a", pause=5.0)
    builder.add(0.2, 4, 1, [9], session="b", pause=5.0)
    trace = builder.build()
    fleet = msgspec.structs.replace(SMALL, closed_loop=True, blocks=64)
    run = run_of(trace, fleet)
    assert run.arrivals[1] == pytest.approx(run.latencies[0] + 5.0)
    assert run.arrivals[2] == pytest.approx(0.2), "the first of a session waits for nobody"
    assert run_of(trace, msgspec.structs.replace(fleet, closed_loop=False)).arrivals[1] == pytest.approx(0.1)


def test_a_run_repeats_to_the_bit_and_chance_makes_another() -> None:
    trace = trace_of(*[(at * 0.01, 8, 3, [at, at + 1]) for at in range(40)])
    assert run_of(trace, policy="random") == run_of(trace, policy="random")
    assert run_of(trace, policy="random").chosen != run_of(trace, policy="random", seed=2).chosen


def test_a_load_stretches_the_time() -> None:
    trace = trace_of((0.0, 8, 1, [1, 2]), (1.0, 8, 1, [3, 4]))
    run = run_of(trace, msgspec.structs.replace(SMALL, replicas=1, load=0.5))
    assert list(run.arrivals) == pytest.approx([0.0, 16 / (100 * 0.5)])


def test_a_trace_of_no_length_is_played_at_once() -> None:
    trace = trace_of((5.0, 8, 1, [1, 2]))
    assert run_of(trace, msgspec.structs.replace(SMALL, load=0.5)).arrivals == array("d", [0.0])
