"""``balancer/stalls.py``: an engine that has work and gives no sign of life is found, one that is only slow is not."""

from balancer.stalls import Stalls
from indexer.index import ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")


class Stream:
    """An answer of which so many bytes have come."""

    def __init__(self, arrived: int = 0) -> None:
        self.arrived = arrived

    def leave(self) -> None: ...


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


def test_what_has_stalled_is_found_again_although_it_owes_nothing_new() -> None:
    """The trial of an engine without events: nothing of it ever comes."""
    owner = watching(Stream(5))
    owner.look(0.0)
    assert owner.look(30.0)[0] == {A: 30.0}
    owner.ended(0, is_good=False)
    owner.look(31.0)
    owner.sent(1, A, Stream())
    assert [owner.look(second)[0] for second in (40.0, 69.0, 70.0)] == [{}, {}, {A: 30.0}]
    owner.ended(1, is_good=False)
    owner.sent(2, A, moved := Stream())
    moved.arrived = 1
    assert owner.look(71.0) == ({}, {A})
    owner.ended(2, is_good=True)
    owner.sent(3, A, Stream())
    assert [owner.look(second)[0] for second in (72.0, 500.0)] == [{}, {}], "it has given a sign of life"


def test_another_engine_begins_without_a_past() -> None:
    owner = watching(Stream(5))
    owner.look(0.0)
    owner.look(30.0)
    owner.ended(0, is_good=False)
    owner.unheard(A)
    owner.sent(1, A, Stream())
    assert [owner.look(second)[0] for second in (31.0, 500.0)] == [{}, {}]


def test_of_those_that_are_lost_the_silent_ones_are_known_and_what_waits_there() -> None:
    waiting, flowing = Stream(), Stream()
    owner = watching(waiting)
    owner.sent(9, B, flowing)
    owner.look(0.0)
    flowing.arrived = 4
    owner.look(2.0)
    assert owner.silent({A, B, ReplicaId("c")}, 2.0, 2.0) == {A}
    assert owner.silent({B}, 2.0, 4.0) == {B}
    assert owner.silent((), 0.0, 4.0) == set()
    assert owner.waiting_at({A}) == [waiting]
    assert owner.waiting_at({ReplicaId("c")}) == []


def test_a_large_block_may_take_long_and_a_small_one_may_not() -> None:
    owner = watching(Stream())
    owner.told(A, 1056)
    owner.look(0.0)
    assert owner.look(211.0)[0] == {}, "1,056 tokens may take 211 seconds"
    assert owner.look(212.0)[0].keys() == {A}
    owner = watching(Stream())
    owner.told(A, 16)
    owner.look(0.0)
    assert owner.look(30.0)[0] == {A: 30.0}


def test_a_stream_that_stands_still_is_a_stall_however_large_blocks_are() -> None:
    owner = watching(Stream(), Stream(5))
    owner.told(A, 1056)
    owner.look(0.0)
    assert owner.look(30.0)[0] == {A: 30.0}


def test_nobody_is_believed_a_block_without_end() -> None:
    owner = watching(Stream())
    owner.told(A, 10**9)
    owner.look(0.0)
    assert owner.look(1000.0)[0].keys() == {A}


def test_who_waits_for_a_prompt_that_another_one_computes_has_nothing_to_tell() -> None:
    stream = Stream()
    owner = Stalls(30.0)
    owner.told(A)
    owner.sent(1, A, stream, waits=True)
    assert [owner.look(second)[0] for second in (0.0, 500.0)] == [{}, {}]
    assert owner.silent([A], 10.0, 500.0) == set()
    stream.arrived = 1
    assert owner.look(501.0) == ({}, {A})
    assert owner.look(540.0)[0] == {A: 39.0}, "once it has begun it goes on"
    assert owner.waiting_at([A]) == [stream]
