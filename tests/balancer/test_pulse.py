"""``balancer/pulse.py``: what an engine's own metrics say that its events have not said yet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.pulse import Order, Pulse, Pulses, read_pulse
from indexer.index import ReplicaId
from simulations.fake.metrics import RankFigures, page
from tests.support.engines import config

A = ReplicaId("a")


def figures(rank: int = 0, queries: int = 0) -> RankFigures:
    return RankFigures(rank, 0, 0, 0.0, queries, 0, 0, 0, 0, {})


# Reading --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.11.0", "0.14.0", "0.32.0"])
def test_the_page_of_every_release_is_read(version: str) -> None:
    engine = config(vllm_version=version, model='a "b" engine="7"} 1')
    found = read_pulse(page(engine, 12.5, [figures(0, 100), figures(1, 20)]).encode())
    assert (found.started, found.asleep, found.emptied) == (12.5, frozenset(), frozenset())
    assert found.queries == (240 if version == "0.11.0" else 120), "0.11 has the counter under two names"


@pytest.mark.parametrize("version", ["0.11.0", "0.32.0"])
def test_how_much_of_each_cache_is_needed_is_read(version: str) -> None:
    needed = [RankFigures(rank, 0, 0, share, 0, 0, 0, 0, 0, {}) for rank, share in enumerate((0.25, 1.0))]
    found = read_pulse(page(config(vllm_version=version), 1.0, needed).encode())
    assert dict(found.usage_of) == {0: 0.25, 1: 1.0}


@pytest.mark.parametrize(("level", "emptied"), [(0, set()), (1, {0, 1}), (2, {0, 1})])
def test_sleep_of_each_level_is_seen(level: int, emptied: set[int]) -> None:
    text = page(config(), 1.0, [figures(0), figures(1)], is_asleep=True, sleep_level=level)
    found = read_pulse(text.encode())
    assert (set(found.asleep), set(found.emptied)) == ({0, 1}, emptied)


@given(
    st.binary(max_size=60)
    | st.sampled_from(
        [
            b"process_start_time_seconds",
            b"process_start_time_seconds soon",
            b'vllm:engine_sleep_state{sleep_state="awake"} 0',
            b'vllm:engine_sleep_state{engine="0"} 1',
            b'vllm:prefix_cache_queries_total{engine="0"} x',
        ]
    )
)
def test_no_page_upsets_it(body: bytes) -> None:
    assert read_pulse(body) == Pulse()


# Restarts -------------------------------------------------------------------------------------------------------------


def looks(*pulses: Pulse) -> list[Order | None]:
    seen = Pulses()
    return [seen.look(A, 0, pulse, clears=0) for pulse in pulses]


@pytest.mark.parametrize(
    ("before", "after", "order"),
    [
        (Pulse(started=1.0), Pulse(started=2.0), Order.BEGIN_ANEW),
        (Pulse(started=1.0), Pulse(started=1.0), None),
        (Pulse(queries=50), Pulse(queries=3), Order.BEGIN_ANEW),
        (Pulse(queries=50), Pulse(queries=50), None),
        (Pulse(started=1.0, queries=50), Pulse(started=1.0, queries=3), None),
        (Pulse(started=1.0), Pulse(), None),
        (Pulse(), Pulse(started=1.0, queries=3), None),
    ],
)
def test_another_process_is_told_by_its_start_or_by_a_counter_that_went_back(
    before: Pulse, after: Pulse, order: Order | None
) -> None:
    assert looks(before, after) == [None, order]
    assert looks(before, after, after) == [None, order, None], "told once"


def test_a_restart_that_events_have_told_needs_no_order() -> None:
    seen = Pulses()
    seen.look(A, 0, Pulse(started=1.0), 0)
    seen.began(A)
    assert seen.look(A, 0, Pulse(started=2.0), 0) is None
    assert seen.look(A, 0, Pulse(started=3.0), 0) is Order.BEGIN_ANEW


def test_two_engines_behind_one_address_are_not_taken_for_restarts_for_ever() -> None:
    first, second = Pulse(started=1.0), Pulse(started=2.0)
    assert looks(first, second, first, second, first, second).count(Order.BEGIN_ANEW) <= 1


def test_replicas_are_looked_at_apart_and_forgotten_wholly() -> None:
    seen = Pulses()
    seen.look(A, 0, Pulse(started=1.0), 0)
    seen.began(A)
    seen.serves(A, ["m"])
    assert seen.look(ReplicaId("b"), 0, Pulse(started=2.0), 0) is None
    seen.forget(A)
    assert seen.look(A, 0, Pulse(started=9.0), 0) is None
    assert seen.serves(A, ["other"]) is None


# Sleep ----------------------------------------------------------------------------------------------------------------

ASLEEP = Pulse(asleep=frozenset({0}), emptied=frozenset({0}))


def test_an_emptied_cache_is_cleared_although_no_event_has_come() -> None:
    seen = Pulses()
    assert [seen.look(A, 0, pulse, 0) for pulse in (Pulse(), ASLEEP)] == [None, Order.CLEAR]


def test_events_of_before_that_arrive_late_are_cleared_as_well() -> None:
    seen = Pulses()
    clears = 0
    for pulse in (Pulse(), ASLEEP, ASLEEP, ASLEEP):
        if seen.look(A, 0, pulse, clears) is Order.CLEAR:
            clears += 1  # the order, obeyed
    assert clears == 3


def test_what_is_stored_behind_the_engines_own_clear_is_never_cleared() -> None:
    """It has slept, woken up, taken a step and slept again between two looks; or the page is older than the event."""
    seen = Pulses()
    seen.look(A, 0, Pulse(), 0)
    assert seen.look(A, 0, ASLEEP, 1) is None
    assert seen.look(A, 0, ASLEEP, 1) is Order.CLEAR


def test_paused_at_level_0_keeps_its_cache() -> None:
    assert looks(Pulse(), Pulse(asleep=frozenset({0}))) == [None, None]


def test_a_first_look_at_one_that_sleeps_waits_for_its_events() -> None:
    assert looks(ASLEEP, ASLEEP) == [None, Order.CLEAR]


def test_another_rank_may_be_awake() -> None:
    seen = Pulses()
    assert [seen.look(A, 1, pulse, 0) for pulse in (Pulse(), ASLEEP)] == [None, None]


# Another model --------------------------------------------------------------------------------------------------------


def test_another_model_is_another_cache_unless_events_have_said_so() -> None:
    seen = Pulses()
    assert seen.serves(A, ["m"]) is None
    assert seen.serves(A, ["m"]) is None
    assert seen.serves(A, ["n"]) is Order.BEGIN_ANEW
    seen.began(A)
    assert seen.serves(A, ["m"]) is None
