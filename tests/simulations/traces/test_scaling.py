from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.traces import scaling
from simulations.traces.sessions import WIDE_USES, derived_sessions, wide_blocks
from simulations.traces.trace import Trace, TraceBuilder
from tests.support.traces import check_chained, hit


def chats(users: int, turns: int, *, has_sessions: bool = False, has_pauses: bool = False) -> Trace:
    """Each user has a conversation behind one system prompt of two blocks."""
    builder = TraceBuilder("chats", 16, is_chained=True)
    for user in range(users):
        for turn in range(turns):
            ids = [1, 2, *[1000 * (user + 1) + each for each in range(turn + 1)]]
            builder.add(
                user + 100 * turn,
                16 * len(ids),
                1 + turn,
                ids,
                session=user if has_sessions else None,
                pause=50.0 if has_pauses and turn else None,
            )
    return builder.build()


def check(trace: Trace) -> None:
    assert all(before <= after for before, after in pairwise(trace.arrivals))
    assert not len(trace) or trace.arrivals[0] == 0
    check_chained(trace)


def test_faster() -> None:
    trace = chats(3, 2)
    assert list(scaling.faster(trace, 4).arrivals) == [each / 4 for each in trace.arrivals]
    assert scaling.faster(trace, 4).blocks == trace.blocks


def test_first() -> None:
    trace = chats(3, 2)
    assert list(scaling.first(trace, seconds=2).arrivals) == [0, 1, 2]
    assert list(scaling.first(trace, requests=4).arrivals) == [0, 1, 2, 100]
    assert list(scaling.first(trace, seconds=1, requests=4).arrivals) == [0, 1]
    assert len(scaling.first(trace, requests=0)) == 0
    assert list(scaling.between(trace, 2, 4).arrivals) == [0, trace.arrivals[3] - trace.arrivals[2]]
    assert list(scaling.between(trace, 2, 4).inputs) == list(trace.inputs[2:4])
    assert len(scaling.between(trace, 4, 10**6)) == len(trace) - 4
    assert len(scaling.between(trace, 10**6, 10**7)) == 0
    check(scaling.first(trace, seconds=50))


@given(st.floats(0.1, 5), st.booleans(), st.booleans(), st.integers(0, 9))
def test_each_copy_has_whole_conversations_of_its_own(
    times: float, has_sessions: bool, has_pauses: bool, seed: int
) -> None:
    users = WIDE_USES + 6
    trace = chats(users, 2, has_sessions=has_sessions, has_pauses=has_sessions and has_pauses)
    scaled = scaling.sessions_times(trace, times, Random(seed))
    check(scaled)
    turns = Counter(derived_sessions(scaled))
    assert set(turns.values()) == {2}
    assert len(turns) == pytest.approx(times * users, abs=1)
    if times >= 1:  # all begin with the same two blocks, and with nothing else that is another's
        assert {tuple(ids[:2]) for ids in scaled.blocks} == {(0, 1)}
        assert sum(wide_blocks(scaled)) == 2
    used = {each for ids in scaled.blocks for each in ids}
    assert len(used) == 2 + 2 * len(turns)
    if scaled.has_pauses:
        first: dict[int, float] = {}
        for arrival, session, pause in zip(scaled.arrivals, scaled.sessions, scaled.pauses, strict=True):
            assert (pause > 0) == (session in first)  # no turn comes before the first
            assert arrival == pytest.approx(first.setdefault(session, arrival) + (100 if pause > 0 else 0))


def test_once_as_many_is_the_same() -> None:
    trace = chats(3, 2)
    assert scaling.sessions_times(trace, 1, Random(0)) == trace


@pytest.mark.parametrize("times", [0, -1, float("nan"), float("inf"), 10_001])
def test_what_cannot_be_is_refused(times: float) -> None:
    with pytest.raises(ValueError, match="times: must be"):
        scaling.sessions_times(chats(1, 1), times, Random(0))
    if times != 10_001:
        with pytest.raises(ValueError, match="times: must be"):
            scaling.faster(chats(1, 1), times)


@pytest.mark.parametrize("times", [0.5, 2, 2.5])
@pytest.mark.parametrize("name", ["mooncake_conversation", "agentic_a"])
def test_what_is_shared_stays_shared(golden_trace: Callable[[str], Trace], name: str, times: float) -> None:
    trace = golden_trace(name)
    scaled = scaling.sessions_times(trace, times, Random(1))
    check(scaled)
    assert len(scaled) == pytest.approx(times * len(trace), rel=0.1)
    assert hit(scaled) == pytest.approx(hit(trace), abs=0.02)
    assert scaled.seconds == pytest.approx(trace.seconds, rel=0.06 if trace.has_pauses else 0.01)


def test_nothing_is_scaled_to_nothing() -> None:
    for times in (0.5, 1, 3):
        assert len(scaling.sessions_times(chats(0, 0), times, Random(0))) == 0
