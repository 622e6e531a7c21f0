"""``simulations/arrivals.py``: requests come by the clock, or a pause after the answer before them."""

import pytest

from simulations.arrivals import Arrivals, scale_to
from simulations.traces.trace import Trace, TraceBuilder


def trace() -> Trace:
    builder = TraceBuilder("made", 4, is_chained=False)
    builder.add(0.0, 8, 1, session="a")
    builder.add(1.0, 8, 1, session="a", pause=5.0)
    builder.add(2.0, 8, 1)
    builder.add(3.0, 8, 1, session="a", pause=7.0)
    builder.add(4.0, 8, 1, session="b", pause=9.0)
    builder.add(5.0, 8, 1, session="a")
    return builder.build()


def test_by_the_clock_every_request_comes_at_its_time() -> None:
    arrivals = Arrivals(trace(), 2.0)
    assert list(arrivals) == [(2.0 * at, at) for at in range(6)]
    assert all(arrivals.follow(request, 9.0) is None for request in range(6))


def test_in_a_closed_loop_turns_wait_for_the_answer_and_their_pause_is_not_stretched() -> None:
    arrivals = Arrivals(trace(), 2.0, closed_loop=True)
    assert [request for _, request in list(arrivals)] == [0, 2, 4, 5]
    assert arrivals.follow(0, 100.0) == (105.0, 1)
    assert arrivals.follow(2, 100.0) is None, "of no session"
    assert arrivals.follow(4, 100.0) is None, "nobody comes after it"
    assert arrivals.follow(1, 200.0) == (207.0, 3)
    assert arrivals.follow(3, 300.0) is None, "the last one tells no pause, so it comes by the clock"


def test_the_first_of_a_session_comes_by_the_clock_whatever_pause_it_tells() -> None:
    assert (8.0, 4) in list(Arrivals(trace(), 2.0, closed_loop=True))


def test_the_time_is_stretched_to_a_rate() -> None:
    scale = scale_to(trace(), 4.8)
    assert trace().seconds * scale == pytest.approx(48 / 4.8)


def test_what_takes_no_time_cannot_be_stretched() -> None:
    builder = TraceBuilder("made", 4, is_chained=False)
    builder.add(3.0, 8, 1)
    assert scale_to(builder.build(), 1.0) == 0
