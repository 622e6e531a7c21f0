"""``balancer/stalls.py``: an engine that has work and gives no sign of life is found, one that is only slow is not."""

from balancer.stalls import Stalls
from indexer.index import ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")


class Stream:
    """An answer of which so many bytes have come."""

    def __init__(self, arrived: int = 0) -> None:
        self.arrived = arrived


def watching(*streams: Stream, of: ReplicaId = A) -> Stalls:
    owner = Stalls(30.0)
    for lease, stream in enumerate(streams):
        owner.sent(lease, of, stream)
    return owner


def test_streams_that_stand_still_are_a_stall() -> None:
    stream, other = Stream(5), Stream(7)
    owner = watching(stream)
    assert owner.look(0.0) == ({}, {A})
    assert owner.look(29.0) == ({}, set())
    owner.sent(9, B, other)
    assert owner.look(30.0) == ({A: 30.0}, {B})
    stream.arrived = 6
    assert owner.look(31.0) == ({}, {A}), "it goes on"


def test_one_stream_that_goes_on_speaks_for_the_engine() -> None:
    moving = Stream()
    owner = watching(Stream(5), moving)
    for second in range(100):
        moving.arrived += 1
        assert owner.look(second)[0] == {}


def test_a_long_prefill_is_no_stall_where_no_events_tell_of_it() -> None:
    owner = watching(Stream())
    assert [owner.look(second)[0] for second in (0.0, 500.0)] == [{}, {}]


def test_a_prefill_of_which_events_told_and_tell_no_more_is_a_stall() -> None:
    owner = watching(Stream())
    owner.told(A)
    assert owner.look(0.0) == ({}, {A})
    assert owner.look(30.0)[0] == {A: 30.0}
    owner.unheard(A)
    assert owner.look(31.0)[0] == {}, "the subscription is gone, which says nothing of the engine"


def test_events_are_signs_of_life() -> None:
    owner = watching(Stream(5))
    for second in range(0, 100, 10):
        owner.told(A)
        assert owner.look(second) == ({}, {A})
    assert owner.look(120.0)[0] == {A: 30.0}


def test_clients_that_leave_and_come_are_no_signs_of_life() -> None:
    owner = watching(Stream(5), Stream(5))
    owner.look(0.0)
    owner.ended(0, is_good=False)
    owner.sent(2, A, Stream())
    owner.look(20.0)
    owner.ended(2, is_good=False)
    owner.sent(3, A, Stream())
    assert owner.look(30.0)[0] == {A: 30.0}


def test_an_answer_that_ended_between_two_looks_is_a_sign_of_life() -> None:
    owner = watching(Stream(5))
    owner.look(0.0)
    owner.sent(7, A, Stream(3))
    owner.ended(7, is_good=True)
    assert owner.look(30.0) == ({}, {A})


def test_time_without_work_does_not_count() -> None:
    owner = watching(Stream(5))
    owner.told(A)
    owner.look(0.0)
    owner.ended(0, is_good=False)
    owner.look(10.0)
    owner.sent(1, A, Stream())
    assert owner.look(100.0) == ({}, set())
