"""The order of one publisher's batches, every branch with plain lists."""

from collections.abc import Sequence

import pytest

from indexer import stream as stream_module
from indexer.stream import Apply, EventStream, Forget, Lost, Position, Replay, Standing, Step
from indexer.wire import Batch

OLD, NEW = 1_000.0, 2_000.0


def at(sequence: int, life: float = OLD) -> Batch:
    """The batch that the engine of this life published under this number; its timestamp tells both."""
    return Batch(life + sequence, [], digest=round(life) + sequence)


def applied(steps: Sequence[Step]) -> list[float]:
    return [batch.timestamp for step in steps if isinstance(step, Apply) for batch in step.batches]


def times(first: int, last: int, life: float = OLD) -> list[float]:
    return [life + sequence for sequence in range(first, last + 1)]


def live(stream: EventStream, *sequences: int, life: float = OLD) -> list[Step]:
    return [step for sequence in sequences for step in stream.receive(sequence, at(sequence, life))]


def replay(stream: EventStream, *sequences: int, life: float = OLD) -> list[Step]:
    return [step for sequence in sequences for step in stream.replayed(sequence, at(sequence, life))]


def with_replay(until: int = 0) -> EventStream:
    """Connected, complete, the batches below ``until`` applied."""
    stream = EventStream(has_replay=True)
    assert stream.connected() == [Replay(0)]
    assert stream.replay_ended() == []
    live(stream, *range(until))
    assert stream.is_complete
    return stream


def without_replay(until: int = 0) -> EventStream:
    stream = EventStream(has_replay=False)
    assert stream.connected() == []
    live(stream, *range(until))
    return stream


# Starting -------------------------------------------------------------------------------------------------------------


def test_a_late_subscriber_gets_the_past_by_replay() -> None:
    stream = EventStream(has_replay=True)
    assert stream.connected() == [Replay(0)]
    assert not stream.is_complete
    assert applied(replay(stream, 0, 1, 2)) == times(0, 2)
    assert not stream.is_complete, "the tail may have been dropped"
    assert stream.replay_ended() == [Replay(3)]
    assert stream.replay_ended() == []
    assert stream.is_complete


def test_live_batches_wait_for_the_past() -> None:
    stream = EventStream(has_replay=True)
    stream.connected()
    assert live(stream, 2, 3) == []
    assert not stream.is_complete
    assert applied(replay(stream, 0, 1)) == times(0, 3)


def test_without_replay_the_past_is_lost_and_the_present_is_not() -> None:
    stream = without_replay()
    assert live(stream, 7) == [Lost(0, 6), Apply([at(7)])]
    assert applied(live(stream, 8, 9)) == times(8, 9)
    assert not stream.is_complete
    assert stream.lost_batches == 7


def test_without_replay_the_first_batch_of_a_life_makes_it_complete() -> None:
    stream = without_replay()
    assert live(stream, 0) == [Apply([at(0)])]
    assert stream.is_complete


def test_nothing_is_complete_before_anything_was_heard() -> None:
    assert not without_replay().is_complete
    assert not EventStream(has_replay=True).is_complete


# Gaps -----------------------------------------------------------------------------------------------------------------


def test_a_gap_is_asked_for_once_from_the_batch_before_it() -> None:
    stream = with_replay(until=5)
    assert live(stream, 7) == [Replay(4)]
    assert live(stream, 8, 10) == [], "an answer is on its way"
    assert (stream.gaps, sorted(stream.pending)) == (1, [7, 8, 10])
    assert not stream.is_complete


def test_a_replay_fills_a_gap_in_order() -> None:
    stream = with_replay(until=5)
    live(stream, 7)
    assert applied(replay(stream, 5)) == times(5, 5)
    assert applied(replay(stream, 6)) == times(6, 7)
    assert replay(stream, 7) == []
    assert stream.replay_ended() == [Replay(8)]
    assert stream.replay_ended() == []
    assert stream.is_complete


def test_a_forward_gap_never_wipes_the_replica() -> None:
    for stream in (with_replay(until=10), without_replay(until=10)):
        steps = live(stream, 12)
        assert not any(isinstance(step, Forget) for step in steps)
        assert stream.incarnation == 0


def test_a_gap_without_replay_is_lost_at_once() -> None:
    stream = without_replay(until=10)
    assert live(stream, 12) == [Lost(10, 11), Apply([at(12)])]
    assert not stream.is_complete
    live(stream, 13)
    assert not stream.is_complete, "a hole stays a hole for the whole incarnation"


def test_a_removed_block_does_not_come_back_to_life() -> None:
    """2 is lost, 3 removes what 2 stored: whatever comes first, 3 is applied after 2."""
    stream = with_replay(until=2)
    steps = [*live(stream, 3), *replay(stream, 2, 3), *stream.replay_ended(), *live(stream, 4)]
    assert applied(steps) == times(2, 4)


def test_a_hole_in_a_replay_is_asked_for_again_from_the_hole() -> None:
    stream = EventStream(has_replay=True)
    stream.connected()
    assert applied(replay(stream, 0, 1, 4, 5)) == times(0, 1)
    assert stream.replay_ended() == [Replay(2)]
    assert applied(replay(stream, 2, 3, 4, 5)) == times(2, 5)


def test_a_second_gap_during_a_replay_is_asked_for_after_it() -> None:
    stream = with_replay(until=2)
    assert live(stream, 3) == [Replay(1)]
    replay(stream, 1, 2)
    assert live(stream, 6) == []
    assert stream.replay_ended() == [Replay(4)]
    assert applied(replay(stream, 4, 5, 6)) == times(4, 6)


def test_a_gap_that_opens_while_a_recheck_is_under_way_gets_its_own_replays() -> None:
    stream = with_replay(until=2)
    assert stream.recheck() == [Replay(1)]
    live(stream, 2, 4)
    assert stream.replay_ended() == [Replay(3)]
    assert applied(replay(stream, 3)) == times(3, 4)


def test_the_end_marker_is_not_trusted_while_something_is_missing() -> None:
    stream = with_replay(until=5)
    live(stream, 7)
    assert stream.replay_ended() == [Replay(5)]
    assert stream.replay_ended() == [Replay(5)]
    assert stream.replay_ended() == [Lost(5, 6), Apply([at(7)])]
    assert not stream.is_complete


def test_a_replay_without_an_end_marker_goes_on_where_it_stopped() -> None:
    stream = EventStream(has_replay=True)
    stream.connected()
    replay(stream, 0, 1, 2)
    assert stream.replay_ended(answered=False) == [Replay(3)]
    assert applied(replay(stream, 3)) == times(3, 3)


def test_giving_up_one_hole_asks_at_once_for_the_next() -> None:
    stream = with_replay(until=1)
    live(stream, 2, 4)
    for _ in range(2):
        assert stream.replay_ended() == [Replay(1)]
    assert stream.replay_ended() == [Lost(1, 1), Apply([at(2)]), Replay(3)]
    assert applied(replay(stream, 3)) == times(3, 4)


def test_what_the_publisher_has_thrown_away_is_lost_and_the_rest_is_not() -> None:
    stream = EventStream(has_replay=True)
    stream.connected()
    assert replay(stream, 2_000) == [Lost(0, 1_999), Apply([at(2_000)])]
    assert applied(replay(stream, 2_001)) == times(2_001, 2_001)
    stream.replay_ended()
    assert stream.replay_ended() == []
    assert not stream.is_complete


def test_thrown_away_up_to_a_batch_that_came_live() -> None:
    stream = with_replay(until=5)
    live(stream, 20)
    assert replay(stream, 20) == [Lost(5, 19), Apply([at(20)])]


def test_a_hole_in_the_middle_of_a_replay_is_not_taken_for_thrown_away() -> None:
    stream = EventStream(has_replay=True)
    stream.connected()
    assert not any(isinstance(step, Lost) for step in replay(stream, 0, 5))


# Busy and idle --------------------------------------------------------------------------------------------------------


def test_a_busy_publisher_is_not_asked_for_ever() -> None:
    """vLLM answers a replay only after its next batch: if each of those led to another replay, none were the last."""
    stream = EventStream(has_replay=True)
    steps = stream.connected()
    for sequence in range(20):
        steps += [*live(stream, sequence), *replay(stream, sequence), *stream.replay_ended()]
    assert stream.replays <= 2
    assert stream.is_complete
    assert applied(steps) == times(0, 19)


def test_a_live_batch_proves_completeness_by_itself() -> None:
    stream = EventStream(has_replay=True)
    stream.connected()
    live(stream, 0)
    assert stream.is_complete, "everything up to the newest batch is here, whether or not a replay was answered"


def test_recheck_finds_the_last_batch_before_a_pause() -> None:
    stream = with_replay(until=3)
    assert stream.recheck() == [Replay(2)]
    assert stream.recheck() == [], "one at a time"
    assert applied(replay(stream, 2, 3)) == times(3, 3)
    assert stream.replay_ended() == [Replay(4)]
    assert stream.replay_ended() == []
    assert stream.is_complete


def test_a_recheck_shows_a_restart_that_has_come_as_far() -> None:
    """Behind a forwarder nothing disconnects, and the next live batch has the expected number."""
    stream = with_replay(until=3)
    stream.recheck()
    assert [type(step) for step in replay(stream, 2, life=NEW)] == [Forget, Replay]


def test_a_recheck_shows_a_restart_that_has_not_come_as_far() -> None:
    stream = with_replay(until=3)
    stream.recheck()
    replay(stream, 2)
    assert stream.replay_ended() == [Replay(3)]
    assert stream.replay_ended() == []
    assert stream.is_complete
    stream.recheck()
    assert [type(step) for step in stream.replay_ended()] == [Forget, Replay]


def test_a_publisher_that_keeps_no_batches_is_not_taken_for_a_restarted_one() -> None:
    stream = with_replay(until=3)
    for _ in range(3):
        assert stream.recheck() == [Replay(2)]
        assert stream.replay_ended() == []
    assert stream.is_complete


def test_recheck_asks_nobody_where_nobody_answers() -> None:
    assert without_replay(until=3).recheck() == []
    assert EventStream(has_replay=False).recheck() == []


def test_a_recheck_that_is_never_answered_leaves_the_state_in_doubt() -> None:
    stream = with_replay(until=3)
    stream.recheck()
    assert stream.replay_ended(answered=False) == [Replay(3)]
    assert stream.replay_ended(answered=False) == [Replay(3)]
    assert stream.replay_ended(answered=False) == []
    assert not stream.is_complete
    live(stream, 3)
    assert stream.is_complete


def test_a_publisher_that_never_answers_does_not_hold_up_the_live_stream() -> None:
    stream = EventStream(has_replay=True)
    stream.connected()
    live(stream, 4)
    steps = [step for _ in range(3) for step in stream.replay_ended(answered=False)]
    assert steps == [Replay(0), Replay(0), Lost(0, 3), Apply([at(4)])]
    assert applied(live(stream, 5)) == times(5, 5)


def test_duplicates_are_dropped_and_counted() -> None:
    stream = with_replay(until=3)
    live(stream, 4)
    steps = [*replay(stream, 3, 4), *stream.replay_ended(), *replay(stream, 3, 4)]
    assert applied(steps) == times(3, 4)
    assert stream.duplicates == 3


def test_answers_to_a_replay_that_was_given_up_are_dropped() -> None:
    stream = with_replay(until=3)
    assert replay(stream, 3) == []
    assert stream.replay_ended() == []
    assert stream.next_sequence == 3


# Restarts -------------------------------------------------------------------------------------------------------------


def test_a_sequence_that_goes_back_is_another_life() -> None:
    stream = without_replay(until=10)
    steps = live(stream, 0, life=NEW)
    assert isinstance(steps[0], Forget)
    assert steps[1:] == [Apply([at(0, NEW)])]
    assert (stream.incarnation, stream.is_complete) == (1, True)


def test_a_sequence_that_goes_back_asks_for_the_start_of_the_new_life() -> None:
    stream = with_replay(until=10)
    steps = live(stream, 3, life=NEW)
    assert isinstance(steps[0], Forget)
    assert steps[1:] == [Replay(0)]
    assert applied(replay(stream, 0, 1, 2, life=NEW)) == times(0, 3, NEW)


def test_a_repeated_live_sequence_is_another_life() -> None:
    stream = without_replay(until=1)
    assert isinstance(live(stream, 0, life=NEW)[0], Forget)


def test_a_reconnect_to_the_same_engine_loses_nothing() -> None:
    stream = with_replay(until=5)
    assert stream.disconnected() == []
    assert not stream.is_complete
    assert stream.connected() == [Replay(4)]
    steps = [*live(stream, 7), *replay(stream, 4, 5, 6, 7), *stream.replay_ended()]
    assert applied(steps) == times(5, 7)
    assert stream.replay_ended() == []
    assert (stream.incarnation, stream.is_complete, stream.lost_batches) == (0, True, 0)


def test_a_reconnect_to_another_engine_forgets_although_the_sequence_is_contiguous() -> None:
    """The old series ended at 4; the new one was at 5 when the subscriber was back."""
    stream = with_replay(until=5)
    stream.disconnected()
    stream.connected()
    assert live(stream, 5, life=NEW) == []
    steps = replay(stream, 4, life=NEW)
    assert isinstance(steps[0], Forget)
    assert steps[1:] == [Replay(0)]
    assert applied(replay(stream, *range(6), life=NEW)) == times(0, 5, NEW)


def test_pending_batches_of_the_old_life_never_reach_the_new_one() -> None:
    stream = with_replay(until=3)
    live(stream, 5, 6)
    stream.disconnected()
    stream.connected()
    replay(stream, 2, life=NEW)
    assert applied(replay(stream, *range(8), life=NEW)) == times(0, 7, NEW)


def test_pending_batches_of_an_engine_of_which_nothing_was_applied_do_not_either() -> None:
    stream = EventStream(has_replay=True)
    stream.connected()
    live(stream, 2)
    stream.disconnected()
    assert stream.connected() == [Replay(0)]
    assert applied(replay(stream, *range(4), life=NEW)) == times(0, 3, NEW)
    assert stream.incarnation == 0, "there was nothing to forget"


def test_a_verification_whose_other_frames_were_dropped_asks_on() -> None:
    stream = with_replay(until=3)
    stream.disconnected()
    stream.connected()
    replay(stream, 2)
    assert stream.replay_ended() == [Replay(3)]
    assert not stream.is_complete


def test_two_batches_that_cannot_be_decoded_do_not_verify_each_other() -> None:
    """Both have timestamp 0; the sequence still tells them apart."""
    stream = with_replay()
    stream.receive(0, Batch(0.0, []))
    stream.disconnected()
    stream.connected()
    assert isinstance(stream.replayed(500, Batch(0.0, []))[0], Forget)


def test_an_engine_whose_buffer_is_empty_is_another_one() -> None:
    stream = with_replay(until=3)
    stream.disconnected()
    stream.connected()
    steps = stream.replay_ended()
    assert isinstance(steps[0], Forget)
    assert steps[1:] == [Replay(0)]


def test_an_engine_that_has_thrown_our_last_batch_away_cannot_be_told_from_another_one() -> None:
    stream = with_replay(until=3)
    stream.disconnected()
    stream.connected()
    assert isinstance(replay(stream, 500)[0], Forget)


def test_a_renewed_connection_that_is_behind_us_needs_no_answer() -> None:
    stream = with_replay(until=5)
    stream.disconnected()
    stream.connected()
    assert isinstance(live(stream, 4, life=NEW)[0], Forget)


def test_an_engine_that_cannot_be_verified_is_asked_three_times_and_then_forgotten() -> None:
    stream = with_replay(until=3)
    stream.disconnected()
    stream.connected()
    assert stream.replay_ended(answered=False) == [Replay(2)]
    assert stream.replay_ended(answered=False) == [Replay(2)]
    steps = stream.replay_ended(answered=False)
    assert isinstance(steps[0], Forget)
    assert steps[1:] == [Replay(0)]


def test_nothing_is_applied_while_the_engine_is_in_doubt() -> None:
    stream = with_replay(until=3)
    stream.disconnected()
    stream.connected()
    assert live(stream, 3, 4, 5) == []
    assert not stream.is_complete


def test_a_batch_that_is_read_after_the_connection_broke_does_not_spoil_the_verification() -> None:
    stream = with_replay(until=3)
    stream.disconnected()
    stream.connected()
    stream.disconnected()
    assert live(stream, 3) == [Replay(2)], "the one that identifies the engine, not the next one"
    assert stream.recheck() == []
    assert stream.connected() == [Replay(2)]
    assert applied(replay(stream, 2, 3)) == times(3, 3)


def test_a_batch_that_is_read_after_the_connection_broke_says_nothing_of_the_renewed_one() -> None:
    """It was on its way before, and the engine that is there now may be another one."""
    stream = with_replay(until=3)
    stream.disconnected()
    assert applied(live(stream, 3)) == times(3, 3)
    assert stream.connected() == [Replay(3)]
    assert not stream.is_complete
    replay(stream, 3)
    assert stream.replay_ended() == [Replay(4)]
    assert stream.replay_ended() == []
    assert stream.is_complete


def test_a_reconnect_without_replay_forgets() -> None:
    stream = without_replay(until=5)
    stream.disconnected()
    (step,) = stream.connected()
    assert isinstance(step, Forget)
    assert live(stream, 5, life=NEW) == [Lost(0, 4), Apply([at(5, NEW)])]
    assert not stream.is_complete


def test_the_first_connection_forgets_nothing() -> None:
    stream = EventStream(has_replay=False)
    stream.disconnected()
    assert stream.connected() == []


def test_a_restart_behind_a_gap_is_seen_though_the_connection_lives_on() -> None:
    """A forwarder stands between: nobody tells of a disconnection, and the new series is further than the old one."""
    stream = with_replay(until=10)
    assert live(stream, 15, life=NEW) == [Replay(9)]
    steps = replay(stream, 9, life=NEW)
    assert isinstance(steps[0], Forget)
    assert steps[1:] == [Replay(0)]
    assert applied(replay(stream, *range(16), life=NEW)) == times(0, 15, NEW)
    assert stream.replay_ended() == [Replay(16)]
    assert stream.replay_ended() == []
    assert (stream.is_complete, stream.incarnation, stream.problem) == (True, 1, "")


def test_the_batch_before_a_gap_may_be_all_that_a_replay_did_not_drop() -> None:
    """Only first frames are sure to come, so the missing ones are asked for by themselves."""
    stream = with_replay(until=5)
    live(stream, 7)
    assert replay(stream, 4) == []
    assert stream.replay_ended() == [Replay(5)]
    assert stream.duplicates == 0


def test_a_publisher_that_has_thrown_away_the_batch_before_a_gap_is_not_another_one() -> None:
    stream = with_replay(until=5)
    assert live(stream, 7) == [Replay(4)]
    assert applied(replay(stream, 5, 6)) == times(5, 7)
    assert stream.incarnation == 0


def test_a_restart_is_seen_though_the_clock_of_the_engine_stands_still() -> None:
    stream = with_replay()
    stream.receive(0, Batch(0.0, [], digest=1))
    stream.disconnected()
    assert stream.connected() == [Replay(0)]
    assert isinstance(stream.replayed(0, Batch(0.0, [], digest=2))[0], Forget)


def test_a_batch_that_waits_must_come_by_replay_as_it_came_live() -> None:
    stream = with_replay(until=2)
    live(stream, 4)
    replay(stream, 1, 2)
    assert isinstance(replay(stream, 4, life=NEW)[0], Forget)


def test_a_batch_that_waits_must_come_live_as_it_came_by_replay() -> None:
    stream = with_replay(until=2)
    stream.recheck()
    replay(stream, 1, 3)
    assert isinstance(live(stream, 3, life=NEW)[0], Forget)


# Another engine's replay socket ----------------------------------------------------------------------------------------

FOREIGN = 3_000.0


def misled(until: int = 10) -> EventStream:
    """Its replay endpoint is another engine's, which has published these batches."""
    stream = EventStream(has_replay=True)
    assert stream.connected() == [Replay(0)]
    replay(stream, *range(until), life=FOREIGN)
    stream.replay_ended()
    replay(stream, until - 1, life=FOREIGN)
    stream.replay_ended()
    assert stream.is_complete
    return stream


def test_a_live_batch_that_is_not_what_a_replay_brought_is_no_duplicate() -> None:
    stream = misled()
    steps = live(stream, 0)
    assert isinstance(steps[0], Forget)
    assert steps[1:] == [Replay(0), Apply([at(0)])]


def test_a_replay_that_contradicts_what_comes_live_again_and_again_is_not_believed() -> None:
    stream = misled()
    steps = [*live(stream, 0, 1), *replay(stream, 0, 1, life=FOREIGN), *live(stream, 2, 4, 5)]
    assert [type(step) for step in steps] == [Forget, Replay, Apply, Apply, Apply, Lost, Apply, Apply]
    assert applied(steps) == [*times(0, 2), *times(4, 5)]
    assert "another engine's" in stream.problem
    assert stream.recheck() == []


def test_what_was_applied_of_a_replay_that_is_not_believed_is_forgotten() -> None:
    stream = misled()
    live(stream, 4)
    steps = replay(stream, 0, 1, 2, 3, 4, life=FOREIGN)
    assert isinstance(steps[-1], Forget)
    assert live(stream, 5) == [Lost(0, 4), Apply([at(5)])]
    assert not stream.is_complete


def test_a_renewed_connection_is_asked_again() -> None:
    stream = misled()
    live(stream, 4)
    replay(stream, 0, 1, 2, 3, 4, life=FOREIGN)
    stream.disconnected()
    assert stream.connected() == [Replay(0)]
    assert stream.problem == ""
    assert applied(replay(stream, *range(8))) == times(0, 7)


def test_several_restarts_behind_a_forwarder_are_restarts() -> None:
    stream = with_replay(until=3)
    for at_sequence, life in ((2, NEW), (8, FOREIGN), (14, NEW + 500)):
        assert live(stream, at_sequence + 5, life=life) == [Replay(at_sequence)]
        assert isinstance(replay(stream, at_sequence, life=life)[0], Forget)
        replay(stream, *range(at_sequence + 6), life=life)
        assert live(stream, at_sequence + 6, life=life) != []
        assert stream.replay_ended() == [Replay(at_sequence + 7)]
        assert stream.replay_ended() == []
        assert (stream.problem, stream.is_complete) == ("", True)


def test_a_live_stream_that_lags_behind_its_replay_is_the_same() -> None:
    stream = EventStream(has_replay=True)
    stream.connected()
    replay(stream, *range(100))
    steps = live(stream, *range(50, 110))
    assert applied(steps) == times(100, 109)
    assert (stream.incarnation, stream.duplicates, len(stream._ahead)) == (0, 50, 0)


# Bounds ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def few_pending(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(stream_module, "MAX_PENDING", 10)
    return 10


def test_pending_is_bounded_while_a_gap_is_open(few_pending: int) -> None:
    stream = with_replay(until=1)
    steps = live(stream, *range(2, 100))
    assert len(stream.pending) <= few_pending
    assert [step for step in steps if isinstance(step, Lost)] == [Lost(1, 1)]
    assert applied(steps) == times(2, 99)


def test_pending_is_bounded_while_the_engine_is_in_doubt(few_pending: int) -> None:
    stream = with_replay(until=3)
    stream.disconnected()
    stream.connected()
    live(stream, *range(3, 4 + few_pending))
    assert not stream.pending
    assert not stream.is_complete
    live(stream, *range(4 + few_pending, 100))
    assert len(stream.pending) <= few_pending
    assert applied(replay(stream, *range(2, 200))) == times(3, 199)


def test_pending_is_bounded_while_a_replay_has_a_hole_and_nothing_is_lost_by_that(few_pending: int) -> None:
    stream = EventStream(has_replay=True)
    stream.connected()
    steps = replay(stream, 0, *range(2, 100))
    assert len(stream.pending) <= few_pending
    assert stream.replay_ended() == [Replay(1)]
    steps += replay(stream, *range(1, 100))
    assert applied(steps) == times(0, 99)


def test_of_what_a_full_pending_hides_only_what_was_thrown_away_is_lost(few_pending: int) -> None:
    stream = with_replay(until=1)
    live(stream, *range(20, 20 + few_pending))
    assert replay(stream, 5) == [Lost(1, 4), Apply([at(5)])]


def test_giving_up_a_hole_for_want_of_room_does_not_disturb_the_replay_under_way(few_pending: int) -> None:
    stream = with_replay(until=1)
    steps = live(stream, *range(2, 6), *range(7, 4 + few_pending))
    assert [step for step in steps if not isinstance(step, Apply)] == [Replay(0), Lost(1, 1)]


def test_a_replay_that_lasts_too_long_is_given_up_with_what_it_has_not_brought() -> None:
    stream = with_replay(until=1)
    live(stream, 5, 8)
    assert replay(stream, 1) == [Apply([at(1)])]
    assert stream.replay_given_up() == [Lost(2, 4), Apply([at(5)]), Replay(6)]
    assert stream.replay_given_up() == [Lost(6, 7), Apply([at(8)])]
    assert not stream.is_replaying
    assert not stream.is_complete


def test_giving_up_a_replay_of_the_past_leaves_the_state_in_doubt() -> None:
    stream = EventStream(has_replay=True)
    stream.connected()
    replay(stream, 0, 1)
    assert stream.replay_given_up() == []
    assert not stream.is_complete
    assert stream.recheck() == [Replay(1)]


def test_a_verification_that_lasts_too_long_is_one_that_was_not_answered() -> None:
    stream = with_replay(until=3)
    stream.disconnected()
    stream.connected()
    assert [stream.replay_given_up()[0] for _ in range(2)] == [Replay(2), Replay(2)]
    assert isinstance(stream.replay_given_up()[0], Forget)


def test_its_name_tells_its_state() -> None:
    assert repr(with_replay(until=3)) == "<EventStream next 3, complete, 0 pending, incarnation 0>"


def test_a_replay_that_calls_lost_what_then_comes_live_is_not_believed() -> None:
    """Else one random high sequence would make the stream deaf: everything live would be taken for a duplicate."""
    stream = EventStream(has_replay=True)
    stream.connected()
    lie = stream.replayed(10**9, Batch(1.0, []))
    assert Lost(0, 10**9 - 1) in lie
    steps = stream.receive(7, Batch(2.0, []))
    assert isinstance(steps[0], Forget)
    assert Replay(0) in steps
    assert not stream.is_complete


# Going on where another stream ended ----------------------------------------------------------------------------------


def resumed(at_sequence: int = 5, lost_batches: int = 0) -> EventStream:
    """A stream that goes on behind the batches below ``at_sequence``, with its first question asked."""
    position = Position(at_sequence, at(at_sequence - 1).digest, lost_batches)
    stream = EventStream(has_replay=True, resume=position)
    assert stream.connected() == [Replay(at_sequence - 1)]
    assert (stream.is_restored, stream.is_complete) == (True, False)
    return stream


def test_a_resumed_stream_applies_what_it_missed_once_the_engine_is_known_to_be_the_same() -> None:
    stream = resumed()
    assert live(stream, 7) == [], "nothing is applied before"
    assert applied(replay(stream, 4, 5, 6)) == times(5, 7)
    assert not stream.is_restored
    assert not stream.is_complete, "the tail may have been dropped"
    assert stream.replay_ended() == [Replay(8)]
    assert stream.replay_ended() == []
    assert stream.is_complete


def test_a_resumed_stream_that_missed_nothing_is_complete() -> None:
    stream = resumed()
    assert replay(stream, 4) == []
    stream.replay_ended()
    assert stream.replay_ended() == []
    assert (stream.is_restored, stream.is_complete) == (False, True)


@pytest.mark.parametrize("sequence", [4, 9])
def test_another_engine_is_never_taken_for_the_one_that_was_left(sequence: int) -> None:
    stream = resumed()
    assert isinstance(replay(stream, sequence, life=NEW)[0], Forget)
    assert (stream.is_restored, stream.next_sequence) == (False, 0)


def test_an_engine_that_no_longer_has_our_last_batch_may_be_another_one() -> None:
    stream = resumed()
    assert isinstance(replay(stream, 300)[0], Forget)
    assert not stream.is_restored


def test_an_engine_that_does_not_answer_for_its_past_is_another_one() -> None:
    stream = resumed()
    steps = [step for _ in range(3) for step in stream.replay_ended(answered=False)]
    assert isinstance(steps[-2], Forget)
    assert not stream.is_restored


def test_a_hole_is_still_a_hole_after_a_resume() -> None:
    stream = resumed(lost_batches=2)
    replay(stream, 4)
    stream.replay_ended()
    stream.replay_ended()
    assert (stream.is_restored, stream.is_complete) == (False, False)


def test_without_a_replay_socket_nothing_is_resumed() -> None:
    with pytest.raises(AssertionError):
        EventStream(has_replay=False, resume=Position(5, 1))


@pytest.mark.parametrize(
    ("step", "position"),
    [
        (Apply([at(5), at(6)]), Position(7, at(6).digest, 2)),
        (Lost(5, 8), Position(9, None, 6)),
        (Forget("a restart"), Position()),
        (Standing(is_connected=True), Position(5, at(4).digest, 2)),
    ],
)
def test_a_position_follows_the_steps(step: Step, position: Position) -> None:
    assert Position(5, at(4).digest, 2).after(step) == position
    assert position.can_be_resumed == (position.digest is not None)
