"""``simulations/shared_store.py``, and the detailed model with such a store: what it must and cannot change."""

from itertools import pairwise
from typing import Any, Final, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.economics.links import Link
from balancer.router import Router
from indexer.events import BlockRemoved, BlockStored, KVEvent
from simulations.bounds import bounds
from simulations.detailed import play_detailed
from simulations.detailed_fleet import DetailedFleet, Restart
from simulations.generators.base import generators
from simulations.grid import encode
from simulations.latency import LatencyModel
from simulations.named_policies import parse
from simulations.paths import Paths
from simulations.results import Run, summarise
from simulations.shared_store import SharedStore, most_loaded
from simulations.simple import SimpleFleet, play
from simulations.store import LEAST_GBITS, StoreSettings
from simulations.traces.sessions import derived_sessions
from simulations.traces.trace import Trace
from tests.support import traces
from tests.support.routing import decisions_noted
from tests.support.traces import SIZE, alone, trace_of

RATES: Final = LatencyModel.from_rates(prefill_tokens_per_second=1000, decode_seconds_per_token=0.001)
FLEET: Final = DetailedFleet(replicas=2, blocks=60, block_size=SIZE, latency=RATES, knows_speeds=True, event_lag=0.0)
Loads = Literal["mixed", "always", "never"]


def store(seconds_a_token: float, loads: Loads = "always", latency: float = 0.0, tokens: int | None = None) -> Any:
    return StoreSettings(8e-9 / seconds_a_token, latency, token_bytes=1, loads=loads, tokens=tokens)


def talks(count: int = 40, turns: int = 6, gap: float = 1.0) -> Trace:
    """None ends with its block."""
    return traces.talks(count, turns, gap, lacks=1)


def played(trace: Trace, fleet: DetailedFleet, policy: str = "round_robin", seed: int = 1) -> Run:
    (named,) = parse(policy)
    return play_detailed(trace, fleet, named.make, policy, derived_sessions(trace), seed)


def changed(**changes: Any) -> DetailedFleet:
    return msgspec.structs.replace(FLEET, **changes)


def columns(run: Run) -> bytes:
    """All that came of it."""
    return encode(msgspec.structs.replace(run, settings={}))


TWICE: Final = trace_of((0.0, 18, 1, [1, 2, 3, 4, 5]), (10.0, 18, 1, [1, 2, 3, 4, 6]))
"""Two prompts that begin alike, which round robin sends to one replica and to the other."""


# What lies there


def told(events: list[KVEvent]) -> tuple[list[int], list[int]]:
    """Keys that came, and keys that went."""
    came = [key for event in events if isinstance(event, BlockStored) for key in event.block_hashes]
    went = [key for event in events if isinstance(event, BlockRemoved) for key in event.block_hashes]
    return came, went


def test_a_store_without_end_tells_each_block_once() -> None:
    made = SharedStore(store(0.001), SIZE)
    assert told(made.put([1, 2, 3])) == ([1, 2, 3], [])
    assert told(made.put([1, 2, 4])) == ([4], [])
    assert made.put([1]) == []
    assert [made.reach([1, 2, 4, 9], first, 4) for first in (0, 2, 3)] == [3, 1, 0]
    assert made.reach([1, 2, 4], 1, 2) == 1
    assert made.seconds(30) == pytest.approx(0.03)
    assert made.link == Link(1000.0)


def test_what_was_used_the_longest_time_ago_goes_first_and_of_one_prompt_its_end() -> None:
    made = SharedStore(store(0.001, tokens=4 * SIZE + 1), SIZE)
    made.put([1, 2, 3])
    assert told(made.put([8, 9])) == ([8, 9], [3])
    made.put([1])
    assert told(made.put([7])) == ([7], [2]), "the other one was asked for again"
    assert told(made.put([21, 22, 23, 24, 25])) == ([21, 22, 23, 24], [9, 8, 1, 7]), "as much of it as there is room"
    assert len(made) == 4


@pytest.mark.parametrize(
    ("hint", "most"),
    [
        ({}, None),
        ({"max_load_tokens": 12}, 12),
        ({"max_load_tokens": 0}, 0),
        ({"kv_load_tiers": []}, 0),
        ({"kv_load_tiers": [{"medium": "STORAGE"}], "max_load_tokens": 8}, 8),
    ],
)
def test_an_engine_does_what_it_is_told(hint: dict[str, Any], most: int | None) -> None:
    assert most_loaded(hint) == most


# What it brings


@pytest.mark.parametrize(
    ("loads", "seconds", "hit", "ttft"),
    [
        ("never", 0.0001, 0, 0.018),
        ("mixed", 0.0001, 16, 16 * 0.0001 + 0.003 + 0.002),
        ("always", 0.0001, 16, 16 * 0.0001 + 0.003 + 0.002),
        ("mixed", 0.002, 0, 0.018),
        ("always", 0.002, 16, 16 * 0.002 + 0.003 + 0.002),
    ],
)
def test_what_another_replica_has_computed_is_loaded_where_that_is_quicker(
    loads: Loads, seconds: float, hit: int, ttft: float
) -> None:
    run = played(TWICE, changed(store=store(seconds, loads, latency=0.003)))
    assert list(run.chosen) == [0, 1]
    assert list(run.hits) == [0, hit]
    assert list(run.ttfts) == pytest.approx([0.018, ttft])
    assert run.loading == (pytest.approx([0.0, 0.003 + hit * seconds]) if hit else [])


def test_of_a_prompt_that_is_there_to_its_end_one_token_is_computed() -> None:
    run = played(trace_of((0.0, 16, 1, [1, 2, 3, 4]), (10.0, 16, 1, [1, 2, 3, 4])), changed(store=store(0.0001)))
    assert list(run.hits) == [0, 15]
    assert sum(msgspec.structs.astuple(run.misses)) == 16 + 1


def test_loads_of_one_replica_go_one_after_the_other_and_others_are_computed_meanwhile() -> None:
    """Round robin: replica 0 has computed two prompts, which replica 1 loads, 40 ms each; its last one has nothing to load."""
    first, second = list(range(100, 111)), list(range(200, 211))
    trace = trace_of(
        *[(0.0, 42, 1, first), (2.0, 6, 1, [1, 2]), (4.0, 42, 1, second), (6.0, 6, 1, [3, 4]), (8.0, 6, 1, [5, 6])],
        *[
            (10.0, 42, 1, first),
            (10.0, 6, 1, [7, 8]),
            (10.0, 42, 1, second),
            (10.0, 6, 1, [9, 10]),
            (10.0, 10, 1, [11, 12, 13]),
        ],
    )
    run = played(trace, changed(store=store(0.001)))
    assert list(run.chosen) == [0, 1] * 5
    assert [run.hits[at] for at in (5, 7, 9)] == [40, 40, 0]
    assert [run.ttfts[at] for at in (5, 7, 9)] == pytest.approx([0.042, 0.082, 0.010])


def test_a_restarted_engine_loads_what_it_had_computed() -> None:
    again = trace_of(*[(at, 41, 1, list(range(11))) for at in (0.0, 10.0, 30.0)])
    fleet = changed(replicas=1, restarts=(Restart(20.0, 0, 1.0),))
    assert list(played(again, fleet).hits) == [0, 40, 0]
    assert list(played(again, msgspec.structs.replace(fleet, store=store(0.0001))).hits) == [0, 40, 40]


def test_who_dies_while_he_loads_is_served_elsewhere() -> None:
    """It begins to load at 10 s, for 1.6 s."""
    run = played(TWICE, changed(store=store(0.1), restarts=(Restart(10.5, 1, 1.0),)))
    assert list(run.chosen) == [0, 0]
    assert list(run.hits) == [0, 16]
    assert run.ttfts[1] == pytest.approx(0.502)


def test_who_comes_back_does_not_wait_for_what_was_being_loaded_before() -> None:
    """It dies twice: before it loads, which takes 3.2 s, and while it does; one second later it is tried again."""
    trace = trace_of((0.0, 162, 1, list(range(41))), (10.0, 162, 1, list(range(41))))
    run = played(trace, changed(replicas=1, store=store(0.02), restarts=(Restart(5.0, 0, 1.0), Restart(10.2, 0, 0.5))))
    assert list(run.hits) == [0, 160]
    assert run.ttfts[1] == pytest.approx(0.2 + 1.0 + 3.2 + 0.002)


def test_the_router_knows_what_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = decisions_noted(monkeypatch)
    played(TWICE, changed(store=store(0.0001, "mixed")))
    assert [sum(load.tokens for load in each.loadable) for each in decided] == [0, 16]
    mix = decided[1].mix
    assert mix is not None
    assert (mix.hit_tokens, mix.loaded_tokens, mix.computed_tokens) == (0, 16, 2)
    assert mix.load_seconds == pytest.approx(0.0016)


# Laws


LINKS: Final = {1: 0.001, 5: 0.001, 10: 0.001, 25: 0.001, 100: 0.001, 450: 0.0}
"""Data rates from a network that is of no use to host memory, in Gbit/s, with their delays."""


LENGTHS: Final = {"task_tokens": 15_000, "result_tokens": 3_000, "answer_tokens": 60}


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_choosing_is_not_worse_than_always_or_never_to_load_nor_than_no_store(load: float) -> None:
    """Agents on an 8B model (128 KiB a token, about 25,000 tokens/s) whose prompts push each other out of the GPUs' caches.

    Much of what a router has counted on is gone when its turn comes. What is equal but for chance may differ by 2 %.
    """
    agents = generators.make("agents", {"rate": 0.3, "seconds": 60, "steps": 6, "block_size": 256, **LENGTHS})
    trace = agents.generate(1)
    plain = DetailedFleet(replicas=3, blocks=300, block_size=256, load=load, max_num_batched_tokens=8192)
    none = played(trace, plain, "predicted_ttft")
    kept: dict[int, Run] = {}
    for gbits, latency in LINKS.items():
        always, mixed = (
            played(
                trace,
                msgspec.structs.replace(plain, store=StoreSettings(gbits, latency, loads=loads)),
                "predicted_ttft",
            )
            for loads in ("always", "mixed")
        )
        best = min(summarise(none).ttft_mean, summarise(always).ttft_mean)
        found = summarise(mixed).ttft_mean
        assert found <= best * 1.02, f"{gbits} Gbit/s: {found:.3f} s, where {best:.3f} s could be had"
        kept[gbits] = mixed
    assert columns(kept[1]) == columns(none), "a store that is of no use changes nothing"
    assert summarise(kept[450]).ttft_mean < 0.5 * summarise(none).ttft_mean, "and host memory is of use"


@pytest.mark.parametrize("policy", ["round_robin", "predicted_ttft", "session_sticky"])
@pytest.mark.parametrize("gateways", [1, 2])
def test_a_store_that_is_never_read_is_none_to_the_bit(policy: str, gateways: int) -> None:
    trace, fleet = talks(), changed(gateways=gateways)
    never = played(trace, msgspec.structs.replace(fleet, store=store(0.001, "never")), policy)
    assert columns(never) == columns(played(trace, fleet, policy))


@settings(max_examples=40)
@given(trace=alone(), blocks=st.integers(8, 20), replicas=st.integers(1, 3), loads=st.sampled_from(["mixed", "always"]))
def test_over_a_link_without_end_one_prompt_at_a_time_hits_what_an_infinite_cache_does(
    trace: Trace, blocks: int, replicas: int, loads: Loads
) -> None:
    run = played(trace, changed(replicas=replicas, blocks=blocks, store=store(1e-12, loads)))
    assert list(run.hits) == list(bounds(trace, []).infinite_by_request)


@pytest.mark.parametrize("loads", ["always", "never"])
@pytest.mark.parametrize("policy", ["round_robin", "predicted_ttft(eviction=0)"])
@settings(max_examples=40)
@given(trace=alone(), blocks=st.integers(8, 30))
def test_one_prompt_at_a_time_hits_what_the_simple_model_says(
    loads: Loads, policy: str, trace: Trace, blocks: int
) -> None:
    chosen = store(0.0005, loads)
    simple = SimpleFleet(2, blocks, SIZE, prefill_tps=1000.0, store=chosen)
    (named,) = parse(policy)  # how full a cache is, events tell in their own time
    theirs = play(trace, Paths(trace, SIZE), simple, named.make(), policy, derived_sessions(trace))
    mine = played(trace, changed(blocks=blocks, store=chosen), policy)
    assert (list(mine.chosen), list(mine.hits)) == (list(theirs.chosen), list(theirs.hits))


@settings(max_examples=40)
@given(
    trace=alone(), loads=st.sampled_from(["mixed", "always"]), times=st.lists(st.floats(1, 10), min_size=2, max_size=5)
)
def test_over_a_slower_link_one_prompt_at_a_time_is_never_sooner(
    trace: Trace, loads: Loads, times: list[float]
) -> None:
    seconds = 1e-5
    before = [0.0] * len(trace)
    for each in times:
        seconds *= each
        run = played(trace, changed(blocks=20, store=store(seconds, loads)))
        assert all(late >= soon - 1e-9 for late, soon in zip(run.ttfts, before, strict=True))
        before = list(run.ttfts)


@pytest.mark.parametrize("policy", ["round_robin", "predicted_ttft"])
def test_over_slower_links_a_busy_fleet_is_slower(policy: str) -> None:
    means = [
        summarise(played(talks(60, gap=0.3), changed(store=store(seconds)), policy)).ttft_mean
        for seconds in (1e-9, 1e-5, 1e-4, 5e-4, 1e-3, 2e-3)
    ]
    # Where one of them is chosen, ties fall otherwise.
    assert all(slower > 0.99 * quicker for quicker, slower in pairwise(means))
    assert means[-1] > 1.5 * means[0]


def test_choosing_is_not_worse_than_always_or_never_to_load() -> None:
    trace = talks(60, gap=0.3)
    for seconds in (1e-5, 1e-4, 5e-4, 2e-3):
        mixed, always, never = (
            summarise(played(trace, changed(store=store(seconds, loads)), "predicted_ttft")).ttft_mean
            for loads in ("mixed", "always", "never")
        )
        assert mixed <= 1.02 * min(always, never), f"{seconds} s a token"


def test_more_room_is_more_hits() -> None:
    trace = talks()
    hits = [
        summarise(played(trace, changed(store=store(1e-6, tokens=tokens)))).hit
        for tokens in (40, 400, 1600, 10**6, None)
    ]
    assert hits == sorted(hits)
    assert hits[0] < hits[2] < hits[3] == hits[4]


@settings(max_examples=20)
@given(
    restarts=st.lists(st.builds(Restart, st.floats(0, 3), st.integers(0, 1), st.floats(0, 2)), max_size=3),
    loss=st.sampled_from([0.0, 0.3, 1.0]),
    lag=st.sampled_from([0.0, 1.0]),
    gateways=st.integers(1, 2),
    seconds=st.sampled_from([1e-6, 1e-3, 0.01]),
    tokens=st.sampled_from([None, 40, 400]),
    loads=st.sampled_from(["mixed", "always"]),
    policy=st.sampled_from(["predicted_ttft", "round_robin", "cache_aware"]),
)
def test_everybody_is_served_whatever_fails_and_all_of_it_repeats(
    restarts: list[Restart],
    loss: float,
    lag: float,
    gateways: int,
    seconds: float,
    tokens: int | None,
    loads: Loads,
    policy: str,
) -> None:
    trace = talks(15, turns=5, gap=0.4)
    fleet = changed(
        restarts=tuple(restarts),
        event_loss=loss,
        event_lag=lag,
        gateways=gateways,
        store=store(seconds, loads, tokens=tokens),
    )
    run = played(trace, fleet, policy)
    assert summarise(run).refused == 0
    for at, tokens_of in enumerate(run.inputs):
        assert 0 <= run.hits[at] < tokens_of
        assert 0 < run.ttfts[at] <= run.latencies[at]
    misses = msgspec.structs.astuple(run.misses)
    assert min(misses) >= 0
    if not restarts:
        assert sum(misses) == sum(run.inputs) - sum(run.hits)
    assert encode(run) == encode(played(trace, fleet, policy))


def test_a_store_without_room_for_a_block_is_told() -> None:
    with pytest.raises(ValueError, match=r"store.tokens: must be one block \(4\) at least, got 3"):
        changed(store=store(0.001, tokens=3)).__post_init__()


def test_a_load_that_takes_years_is_played_at_once_and_then_each_second_is_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 tokens of a gigabyte each, over a bit more than 100 bytes a second; then an answer of 4 s."""
    told: list[float] = []
    tick = Router.tick

    def noted(self: Router, now: float) -> None:
        told.append(now)
        tick(self, now)

    monkeypatch.setattr(Router, "tick", noted)
    trace = trace_of((0.0, 18, 1, [1, 2, 3, 4, 5]), (10.0, 18, 4000, [1, 2, 3, 4, 6]))
    slow = StoreSettings(LEAST_GBITS, token_bytes=1e9, loads="always")
    run = played(trace, changed(blocks=2000, store=slow))
    loaded = 10 + 16 * 1e9 / (LEAST_GBITS * 1e9 / 8)
    assert run.ttfts[1] == pytest.approx(loaded - 10, rel=1e-6)
    assert len(told) < 700
    assert all(later - earlier == 1.0 for earlier, later in pairwise(told[3:500]))
    assert [each - run.arrivals[1] - run.ttfts[1] > 0 for each in told[-3:]] == [True] * 3
    assert all(later - earlier == 1.0 for earlier, later in pairwise(told[-3:]))


def test_who_comes_meanwhile_has_each_second_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(Router, "tick", lambda _, now: told.append(now))
    many = [(at, 18, 1, [1, 2, 3, 4, 5 + int(at)]) for at in (0.0, 10.0, 49_000.0)]
    slow = StoreSettings(LEAST_GBITS, token_bytes=1e9, loads="always")
    played(trace_of(*many, (50_000.0, 18, 1, [7, 8, 9, 10, 11])), changed(blocks=8, store=slow))
    assert [each for each in told if 50_000 <= each < 50_004] == [50_001, 50_002, 50_003], (
        "though it has to wait for room"
    )


# Links that are shared, and what writing costs


def half(shop: StoreSettings) -> StoreSettings:
    """The same, of which all together read no more than one can."""
    return msgspec.structs.replace(shop, total_gbits=shop.gbits)


THRICE: Final = trace_of((0.0, 17, 1, [1, 2, 3, 4, 5]), (10.0, 17, 1, [1, 2, 3, 4, 6]), (10.0, 17, 1, [1, 2, 3, 4, 7]))
"""Round robin over three: the second and the third load 16 tokens at once."""


@pytest.mark.parametrize("model", ["simple", "detailed"])
def test_two_that_load_at_once_take_twice_as_long_where_they_share(model: str) -> None:
    alone, shared = store(0.0001, latency=0.003), half(store(0.0001, latency=0.003))
    for shop, seconds in ((alone, 0.0016), (shared, 0.0032)):
        if model == "detailed":
            run = played(THRICE, changed(replicas=3, store=shop))
        else:
            fleet = SimpleFleet(replicas=3, blocks=60, block_size=SIZE, prefill_tps=1000.0, store=shop)
            (named,) = parse("round_robin")
            run = play(THRICE, Paths(THRICE, SIZE), fleet, named.make(), "round_robin", derived_sessions(THRICE))
        assert list(run.hits) == [0, 16, 16]
        assert list(run.ttfts)[1:] == pytest.approx([0.003 + seconds + 0.001] * 2)
        assert run.loading == pytest.approx([0.0, 0.003 + seconds, 0.003 + seconds])


@pytest.mark.parametrize("model", ["simple", "detailed"])
@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_gives_all_that_all_links_carry_is_as_none_that_is_shared(model: str, seed: int) -> None:
    trace, plain = talks(gap=0.3), store(0.0002, latency=0.002)
    enough = msgspec.structs.replace(plain, total_gbits=2.001 * plain.gbits)
    found = []
    for each in (plain, enough):
        if model == "detailed":
            found.append(played(trace, changed(store=each), "round_robin", seed))
        else:
            fleet = SimpleFleet(replicas=2, blocks=60, block_size=SIZE, prefill_tps=1000.0, store=each)
            (named,) = parse("round_robin")
            paths = Paths(trace, SIZE)
            found.append(play(trace, paths, fleet, named.make(), "round_robin", derived_sessions(trace), seed))
    assert list(found[0].ttfts) == pytest.approx(list(found[1].ttfts), rel=1e-6)
    assert found[0].hits == found[1].hits
    assert found[0].loading == pytest.approx(found[1].loading)
    assert sum(found[0].loading) > 0


@pytest.mark.parametrize("model", ["simple", "detailed"])
@pytest.mark.parametrize(("after", "hit"), [(0.056, 0), (0.058, 16)])
def test_what_is_written_over_a_link_is_there_when_all_of_it_is(model: str, after: float, hit: int) -> None:
    """17 tokens are computed in 17 ms, and 16 of them written in 40; each replica computes its own ends besides."""
    trace = trace_of((0.0, 17, 1, [1, 2, 3, 4, 5]), (after, 17, 1, [1, 2, 3, 4, 6]))
    written = msgspec.structs.replace(store(0.0001), write_gbits=8e-9 / 0.0025)
    if model == "detailed":
        run = played(trace, changed(store=written))
    else:
        fleet = SimpleFleet(replicas=2, blocks=60, block_size=SIZE, prefill_tps=1000.0, store=written)
        (named,) = parse("round_robin")
        run = play(trace, Paths(trace, SIZE), fleet, named.make(), "round_robin", derived_sessions(trace))
    assert list(run.chosen) == [0, 1]
    assert list(run.hits) == [0, hit]


def test_prompts_are_written_one_after_the_other_and_what_is_there_is_not_written_again() -> None:
    """Replica 0 writes two prompts, 40 ms each; replica 1 asks for the second one when only the first is there."""
    first, second = [1, 2, 3, 4], [11, 12, 13, 14]
    written = msgspec.structs.replace(store(0.0001), write_gbits=8e-9 / 0.0025)
    for when, hit in ((0.095, 0), (0.099, 16)):
        trace = trace_of(
            (0.0, 17, 1, [*first, 5]), (0.001, 3, 1, [99]), (0.010, 17, 1, [*second, 6]), (when, 17, 1, [*second, 7])
        )
        run = played(trace, changed(store=written))
        assert list(run.chosen) == [0, 1, 0, 1]
        assert run.hits[3] == hit
    again = trace_of(
        (0.0, 17, 1, [*first, 5]),
        (1.0, 3, 1, [99]),
        (1.05, 17, 1, [*first, 6]),
        (1.06, 3, 1, [98]),
        (1.07, 17, 1, [*second, 7]),
        (1.129, 17, 1, [*second, 8]),
    )
    run = played(again, changed(store=written))
    assert list(run.chosen) == [0, 1] * 3
    assert list(run.hits) == [0, 0, 16, 0, 0, 16], "written from 1.087 to 1.127, as the first one was there"


def test_who_dies_while_it_writes_has_written_nothing() -> None:
    trace = trace_of((0.0, 17, 1, [1, 2, 3, 4, 5]), (5.0, 17, 1, [1, 2, 3, 4, 6]))
    written = msgspec.structs.replace(store(0.0001), write_gbits=8e-9 / 0.0025)
    for at, hit in ((0.056, 0), (0.058, 16)):
        run = played(trace, changed(store=written, restarts=(Restart(at, 0, 1.0),)))
        assert run.hits[1] == hit


@settings(max_examples=25)
@given(
    restarts=st.lists(st.builds(Restart, st.floats(0, 6), st.integers(0, 2), st.floats(0.1, 2)), max_size=3),
    total=st.sampled_from([None, 4e-6, 4e-5]),
    write=st.sampled_from([None, 1e-5, 1e-3]),
    loads=st.sampled_from(["mixed", "always"]),
    gateways=st.integers(1, 2),
    policy=st.sampled_from(["predicted_ttft", "round_robin"]),
)
def test_everybody_is_served_whatever_is_shared_and_whoever_dies(
    restarts: list[Restart], total: float | None, write: float | None, loads: Loads, gateways: int, policy: str
) -> None:
    trace = talks(12, gap=0.4)
    shared = msgspec.structs.replace(store(0.0002, loads, 0.001), total_gbits=total, write_gbits=write)
    fleet = changed(replicas=3, blocks=80, gateways=gateways, restarts=tuple(restarts), store=shared)
    run = played(trace, fleet, policy)
    assert summarise(run).refused == 0
    for at in range(len(trace)):
        assert 0 < run.ttfts[at] <= run.latencies[at]
    assert encode(run) == encode(played(trace, fleet, policy))
