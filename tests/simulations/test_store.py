"""``simulations/store.py``, and the simple model with a store behind it: loads by hand, and what choosing them is worth."""

from typing import Final, Literal

import msgspec
import pytest

from balancer.policies.base import make
from simulations.generators.base import generators
from simulations.paths import Paths
from simulations.results import Run, summarise
from simulations.simple import SimpleFleet, play
from simulations.store import Reader, Store, StoreSettings
from simulations.traces.sessions import derived_sessions
from simulations.traces.trace import Trace
from tests.support.traces import SIZE, trace_of

FLEET: Final = SimpleFleet(replicas=2, blocks=12, block_size=SIZE, prefill_tps=100.0, decode_seconds=0.01)
Loads = Literal["mixed", "always", "never"]


def store(seconds_a_token: float, loads: Loads = "mixed", latency: float = 0.0) -> StoreSettings:
    return StoreSettings(gbits=8e-9 / seconds_a_token, latency=latency, token_bytes=1, loads=loads)


def run_of(trace: Trace, fleet: SimpleFleet, policy: str = "round_robin") -> Run:
    return play(trace, Paths(trace, fleet.block_size), fleet, make(policy), policy, derived_sessions(trace), 1)


TWICE: Final = trace_of((0.0, 16, 1, [1, 2, 3, 4]), (10.0, 16, 1, [1, 2, 3, 4]))
"""The same prompt, which round robin sends to one replica and to the other."""


@pytest.mark.parametrize(
    ("loads", "seconds", "hit", "ttft"),
    [
        ("never", 0.001, 0, 0.16),
        ("mixed", 0.001, 12, 12 * 0.001 + 0.05 + 0.04),
        ("always", 0.001, 12, 12 * 0.001 + 0.05 + 0.04),
        ("mixed", 0.02, 0, 0.16),
        ("always", 0.02, 12, 12 * 0.02 + 0.05 + 0.04),
    ],
)
def test_what_another_replica_has_computed_is_loaded_where_that_is_quicker(
    loads: Loads, seconds: float, hit: int, ttft: float
) -> None:
    run = run_of(TWICE, msgspec.structs.replace(FLEET, store=store(seconds, loads, latency=0.05)))
    assert list(run.chosen) == [0, 1]
    assert list(run.hits) == [0, hit]
    assert list(run.ttfts) == pytest.approx([0.16, ttft])


def test_whoever_loads_gives_way_to_whoever_can_be_computed_and_goes_before_whoever_comes_later() -> None:
    """At replica 1, a prompt loads for 60 ms; the next ones, 40 ms each, are computed before and after it."""
    trace = trace_of(
        (0.0, 16, 1, [1, 2, 3, 4]),
        (10.0, 16, 1, [1, 2, 3, 4]),
        *((10.0, 4, 1, [each]) for each in range(5, 12)),
    )
    run = run_of(trace, msgspec.structs.replace(FLEET, store=store(0.005)))
    assert list(run.chosen) == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert [run.ttfts[at] for at in (1, 3, 5, 7)] == pytest.approx([0.12, 0.04, 0.08, 0.16])


def test_loads_of_one_replica_go_one_after_the_other() -> None:
    trace = trace_of(
        (0.0, 16, 1, [1, 2, 3, 4]),
        (5.0, 4, 1, [9]),
        (8.0, 16, 1, [5, 6, 7, 8]),
        (10.0, 16, 1, [1, 2, 3, 4]),
        (10.0, 4, 1, [10]),
        (10.0, 16, 1, [5, 6, 7, 8]),
    )
    run = run_of(trace, msgspec.structs.replace(FLEET, blocks=100, store=store(0.005)))
    assert list(run.hits) == [0, 0, 0, 12, 0, 12]
    assert [run.ttfts[at] for at in (3, 5)] == pytest.approx([0.06 + 0.04, 0.12 + 0.04])


def test_a_link_that_has_much_to_do_is_spared() -> None:
    """96 ms to load, 120 ms to compute: the second one would wait for the link, and later ones wait for the lane anyhow."""
    firsts = [(at * 1.0, 16, 1, [4 * at + part for part in range(4)]) for at in range(4)]
    fillers = [(at + 0.5, 4, 1, [100 + at]) for at in range(3)]
    again = [(10.0, tokens, answer, ids) for _, tokens, answer, ids in firsts]
    more = [(10.0, 4, 1, [200 + at]) for at in range(3)]
    trace = trace_of(*alternately(firsts, fillers), *alternately(again, more))
    run = run_of(trace, msgspec.structs.replace(FLEET, blocks=100, store=store(0.008)))
    assert [run.hits[at] for at in (7, 9, 11, 13)] == [12, 0, 12, 12]


Request = tuple[float, int, int, list[int]]


def alternately(some: list[Request], others: list[Request]) -> list[Request]:
    """One of these, one of those, so that round robin sends them to different replicas."""
    found = [each for pair in zip(some, others, strict=False) for each in pair]
    return [*found, some[-1]]


def test_a_reader_knows_what_was_planned_and_does_one_thing_at_a_time() -> None:
    reader = Reader()
    assert reader.wait(5.0, 0.0) == 0
    reader.expect(5.0, 2.0)
    reader.expect(5.0, 1.0)
    assert reader.wait(6.0, 0.0) == 2
    assert reader.wait(6.0, 1.5) == 0.5, "it begins later, and the link is at work meanwhile"
    assert reader.wait(20.0, 0.0) == 0
    assert [reader.load(6.0, 2.0), reader.load(6.0, 1.0), reader.load(20.0, 1.0)] == [8.0, 9.0, 21.0]


def test_the_store_holds_the_leading_segments_that_anybody_has_computed() -> None:
    computed = bytearray([1, 1, 0, 1])
    made = Store(store(0.001), SIZE, 100.0, [2, 3, 4, 5], computed)
    assert made.depth([0, 1, 2, 3]) == 5
    computed[2] = 1
    assert made.depth([0, 1, 2, 3]) == 14
    assert Store(store(0.001, "never"), SIZE, 100.0, [2], bytearray([1])).depth([0]) == 0
    mix = made.plan(80, 8, 14, 0.03)
    assert mix.loaded_tokens == 48
    assert mix.load_seconds == pytest.approx(0.048 + 0.03)


LINKS: Final = {10: 0.001, 25: 0.001, 40: 0.001, 100: 0.001, 450: 0.0}
"""Data rates from a slow network to host memory, in Gbit/s, with their delays."""


@pytest.mark.parametrize(
    ("generator", "settings", "blocks", "worth"),
    [
        (
            "chat",
            {"rate": 2, "seconds": 300, "system_tokens": 3000, "question_tokens": 1500, "answer_tokens": 40},
            2000,
            0.5,
        ),
        ("agents", {"rate": 0.5, "seconds": 300, "task_tokens": 3000}, 5000, 0.95),
    ],
)
def test_choosing_is_not_worse_than_the_nearest_holder_nor_than_always_or_never_to_fetch(
    generator: str, settings: dict[str, float], blocks: int, worth: float
) -> None:
    """An 8B model's cache (128 KiB a token), computed at 27,000 tokens/s; what is equal but for chance may differ by 1 %."""
    trace = generators.make(generator, settings | {"block_size": 64}).generate(1)
    fleet = SimpleFleet(4, blocks, 64, prefill_tps=27_000.0, load=0.5)
    never = msgspec.structs.replace(fleet, store=StoreSettings(loads="never"))
    plain = [mean(trace, never, policy) for policy in ("longest_prefix", "predicted_ttft")]
    gained = []
    for gbits, latency in LINKS.items():
        always, mixed = (
            mean(
                trace,
                msgspec.structs.replace(fleet, store=StoreSettings(gbits, latency, loads=loads)),
                "predicted_ttft",
            )
            for loads in ("always", "mixed")
        )
        best = min(*plain, always)
        assert mixed <= best * 1.01, f"{gbits} Gbit/s: {mixed:.4f} s, where {best:.4f} s could be had"
        gained.append(mixed / plain[1])
    assert gained[0] == pytest.approx(1, abs=0.01), "10 Gbit/s are of no use"
    assert gained[-1] < worth, "and host memory is of some"


def mean(trace: Trace, fleet: SimpleFleet, policy: str) -> float:
    return summarise(run_of(trace, fleet, policy)).ttft_mean
