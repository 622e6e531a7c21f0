"""The reader against real sockets on loopback: whatever publishers do, each one's batches arrive in order, and only its own."""

import logging
import os
import threading
from pathlib import Path

import msgspec
import pytest

from indexer.sources import subscription, vllm
from indexer.sources.vllm import EventReader, Publisher
from indexer.stream import Lost, Position
from indexer.wire import digest_of
from tests.indexer.samples import CLEARED_ARRAY, payload, stored_map
from tests.indexer.sources.publisher import END
from tests.indexer.sources.reading import SETTINGS, A, B, Received, Start, batch, is_settled, subscribe, until

# The common way -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["map", "array"])
@pytest.mark.parametrize("has_topic_in_replay", [True, False])
def test_a_late_subscriber_gets_the_past_and_then_the_present(
    start: Start, reader: EventReader, received: Received, form: str, has_topic_in_replay: bool
) -> None:
    publisher = start(has_topic_in_replay=has_topic_in_replay, topic=b"kv@[fd00::1]:8000@m")
    for time in (0.0, 1.0, 2.0):
        publisher.publish(batch(time, form))
    subscribe(reader, publisher)
    received.wait_for(A, 0.0, 1.0, 2.0)
    until(reader, is_settled)
    publisher.publish(batch(3.0, form))
    received.wait_for(A, 0.0, 1.0, 2.0, 3.0)
    status = until(reader, is_settled)
    assert (status.incarnation, status.next_sequence, received.skipped) == (0, 4, 0)
    assert status.counters.get("malformed_messages", 0) == 0


def test_without_replay_the_present_alone(start: Start, reader: EventReader, received: Received) -> None:
    publisher = start(has_replay=False)
    publisher.publish(batch(0.0))
    subscribe(reader, publisher)
    until(reader, lambda status: status.is_connected)
    tick = threading.Event()
    while not received.applied[A]:  # the handshake is done before the subscription has arrived
        publisher.publish(batch(float(len(publisher.buffer))))
        tick.wait(0.01)
    assert received.lost[A][0].first == 0
    assert not until(reader, lambda status: status.next_sequence is not None).is_complete


def test_a_lost_live_batch_is_asked_for(start: Start, reader: EventReader, received: Received) -> None:
    publisher = start()
    subscribe(reader, publisher)
    until(reader, is_settled)
    publisher.publish(batch(0.0))
    publisher.publish(batch(1.0), is_lost=True)
    publisher.publish(batch(2.0))
    received.wait_for(A, 0.0, 1.0, 2.0)
    until(reader, is_settled)
    assert not received.lost[A]


def test_the_last_batch_before_a_pause_is_found_by_a_recheck(
    start: Start, reader: EventReader, received: Received
) -> None:
    publisher = start()
    subscribe(reader, publisher)
    until(reader, is_settled)
    publisher.publish(batch(0.0), is_lost=True)
    received.wait_for(A, 0.0)


def test_two_publishers_do_not_mix(start: Start, reader: EventReader, received: Received) -> None:
    """Same topic, same numbers: identity is the connection's."""
    for replica, base in ((A, 100.0), (B, 200.0)):
        publisher = start(topic=b"kv-events")
        subscribe(reader, publisher, replica)
        until(reader, is_settled, replica)
        for number in range(5):
            publisher.publish(batch(base + number))
    received.wait_for(A, *(100.0 + number for number in range(5)))
    received.wait_for(B, *(200.0 + number for number in range(5)))


def test_what_is_not_read_in_one_turn_is_read_in_the_next(
    start: Start, reader: EventReader, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "READ_AT_ONCE", 7)
    monkeypatch.setattr(subscription.receive_all, "__defaults__", (7,))
    publisher = start()
    times = [float(number) for number in range(1_000)]
    for time in times[:500]:
        publisher.publish(batch(time))
    subscribe(reader, publisher)
    received.wait(lambda: len(received.applied[A]) >= 500)
    for time in times[500:]:
        publisher.publish(batch(time))
    received.wait_for(A, *times)


# Replays that fail ----------------------------------------------------------------------------------------------------


def test_frames_that_a_replay_has_dropped_are_asked_for_again(
    start: Start, reader: EventReader, received: Received
) -> None:
    publisher = start(drops=[{3, 4, 8, 9}, {8}, {9}], drops_end=1)
    times = [float(number) for number in range(10)]
    for time in times:
        publisher.publish(batch(time))
    subscribe(reader, publisher)
    received.wait_for(A, *times)
    until(reader, is_settled)
    assert publisher.asked[:3] == [0, 3, 8]


def test_a_replay_socket_that_never_answers_does_not_stop_the_live_stream(
    start: Start, reader: EventReader, received: Received
) -> None:
    publisher = start(is_mute=True)
    publisher.publish(batch(0.0))
    subscribe(reader, publisher)
    until(reader, lambda status: status.counters.get("replays_unanswered", 0) >= 1)
    publisher.publish(batch(1.0))
    received.wait_for(A, 1.0)
    publisher.publish(batch(2.0))
    received.wait_for(A, 1.0, 2.0)
    assert received.lost[A] == [Lost(0, 0)]
    assert not until(reader, lambda status: status.next_sequence == 3).is_complete


def test_a_replay_address_that_cannot_be_used_does_not_stop_the_live_stream(
    start: Start, reader: EventReader, received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = start(has_replay=False)
    reader.add(Publisher(A, publisher.events, "tcp://no port"))
    until(reader, lambda status: status.counters.get("replays_unanswered", 0) >= 1)
    publisher.publish(batch(0.0))
    received.wait_for(A, 0.0)
    assert "no replay from tcp://no port" in caplog.text
    assert len(caplog.records) <= 10, "no busy loop"


# Restarts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_replay", [True, False])
def test_twenty_restarts_on_the_same_port(
    start: Start, reader: EventReader, received: Received, has_replay: bool
) -> None:
    publisher = start(has_replay=has_replay)
    subscribe(reader, publisher)
    tick = threading.Event()
    for life in range(20):
        first = 1_000.0 * (life + 1)
        connections = life + 1
        until(reader, lambda status, at_least=connections: status.counters.get("connections", 0) >= at_least)  # type: ignore[misc]
        while not any(time >= first for time in list(received.applied[A])):
            publisher.publish(batch(first + len(publisher.buffer)))
            tick.wait(0.01)
        times = [first + number for number in range(len(publisher.buffer))]
        if has_replay:
            received.wait_for(A, *times)
        else:
            received.wait(lambda times=times, first=first: all(time >= first for time in received.applied[A]))  # type: ignore[misc]
        publisher.stop()
        publisher.start()
    assert received.forgotten[A] >= 19


def test_a_restart_whose_numbers_go_on_where_the_old_ones_ended(
    start: Start, reader: EventReader, received: Received
) -> None:
    """The new engine has published more than the old one before the subscriber is back; nothing of both may mix."""
    publisher = start()
    subscribe(reader, publisher)
    for number in range(5):
        publisher.publish(batch(float(number)))
    received.wait(lambda: len(received.applied[A]) == 5)
    publisher.stop()
    publisher.start()
    times = [1_000.0 + number for number in range(50)]
    for time in times:
        publisher.publish(batch(time), is_lost=True)
    received.wait_for(A, *times)
    until(reader, is_settled)
    assert (received.forgotten[A], received.lost[A]) == (1, [])


def test_a_publisher_that_is_away_is_not_called_complete(start: Start, reader: EventReader, received: Received) -> None:
    publisher = start()
    subscribe(reader, publisher)
    until(reader, is_settled)
    publisher.stop()
    status = until(reader, lambda status: not status.is_connected)
    assert not status.is_complete
    publisher.start()
    until(reader, is_settled)


def test_the_replay_socket_of_another_engine_is_told_and_not_asked_any_more(
    start: Start, reader: EventReader, received: Received
) -> None:
    ours, other = start(), start()
    for time in range(10):
        other.publish(batch(100.0 + time))
    reader.add(Publisher(A, ours.events, other.replay))
    until(reader, is_settled)
    for time in range(4):
        ours.publish(batch(float(time)))
    status = until(reader, lambda status: bool(status.problem))
    assert "another engine's" in status.problem
    ours.publish(batch(4.0))
    received.wait(lambda: received.applied[A][-1:] == [4.0])
    assert not any(time >= 100 for time in received.applied[A])
    assert not until(reader, lambda status: status.next_sequence == 5).is_complete


# Going on where another reader ended ----------------------------------------------------------------------------------


def test_a_subscription_goes_on_where_another_one_ended(start: Start, reader: EventReader, received: Received) -> None:
    publisher = start()
    for time in (5.0, 6.0, 7.0, 8.0):
        publisher.publish(batch(time))
    reader.add(Publisher(A, publisher.events, publisher.replay), Position(2, digest_of(batch(6.0))))
    received.wait_for(A, 7.0, 8.0)
    until(reader, is_settled)
    assert received.forgotten[A] == 0
    assert publisher.asked[0] == 1, "the last batch is asked for again, by which the engine is known"


def test_a_subscription_that_finds_another_engine_begins_anew(
    start: Start, reader: EventReader, received: Received
) -> None:
    publisher = start()
    for time in (15.0, 16.0, 17.0):
        publisher.publish(batch(time))
    reader.add(Publisher(A, publisher.events, publisher.replay), Position(2, digest_of(batch(6.0))))
    received.wait_for(A, 15.0, 16.0, 17.0)
    assert received.forgotten[A] == 1
    until(reader, is_settled)


def test_what_cannot_be_subscribed_to_confirms_no_snapshot(
    start: Start, reader: EventReader, received: Received
) -> None:
    reader.add(Publisher(A, "not an address", start().replay), Position(2, digest_of(batch(6.0))))
    received.wait(lambda: received.forgotten[A] == 1)


# Garbage --------------------------------------------------------------------------------------------------------------


def test_one_publishers_garbage_disturbs_neither_it_nor_another(
    start: Start, reader: EventReader, received: Received
) -> None:
    bad, good = start(), start()
    subscribe(reader, bad, A)
    subscribe(reader, good, B)
    for replica in (A, B):
        until(reader, is_settled, replica)
    bad.publish(batch(1.0))
    received.wait_for(A, 1.0)
    for frames in (
        (b"",),
        (b"", bytes(8)),
        (b"", bytes(7), b"\x90"),
        (b"", bytes(8), b"\x90", b"", b""),
        (b"", b"\x40" + bytes(7), b"\x90"),
    ):
        bad.send(*frames)
    bad.publish(b"\xc1garbage")
    bad.publish(payload(stored_map([1]), "garbage", CLEARED_ARRAY, timestamp=3.0))
    good.publish(batch(5.0))
    received.wait_for(A, 1.0, 0.0, 3.0)
    received.wait_for(B, 5.0)
    status = until(reader, lambda status: status.counters.get("malformed_messages", 0) == 5)
    assert (received.skipped, status.counters["events_skipped"], status.is_complete) == (2, 2, True)
    assert until(reader, is_settled, B).counters.get("events_skipped", 0) == 0
    assert received.forgotten == {A: 0, B: 0}


def test_a_wrong_topic_is_told(
    start: Start, reader: EventReader, received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = start(topic=b"other")
    publisher.publish(batch(0.0))
    publisher.publish(batch(1.0))
    subscribe(reader, publisher, topic="kv-events")
    received.wait_for(A, 0.0, 1.0)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "A: publishes under topic 'other', subscribed to 'kv-events': no live events will come"
    ]
    status = until(reader, lambda status: not status.is_replaying)
    assert (status.is_connected, status.is_complete) == (True, False)
    assert status.problem == "publishes under topic 'other', subscribed to 'kv-events'"


@pytest.mark.parametrize(("told", "is_heard"), [("kv-events@a", True), ("other", False), ("", False), (None, True)])
def test_a_topic_that_the_engine_tells_is_compared_at_once(
    start: Start, reader: EventReader, told: str | None, is_heard: bool
) -> None:
    publisher = start(topic=b"kv-events")
    reader.add(Publisher(A, publisher.events, publisher.replay, "kv-events", told_topic=told))
    status = until(reader, lambda status: status.is_connected and not status.is_replaying)
    assert bool(status.problem) is not is_heard
    assert until(reader, lambda status: status.is_complete is is_heard)


def test_what_comes_live_is_heard_whatever_the_engine_has_told(start: Start, reader: EventReader) -> None:
    publisher = start(topic=b"kv-events")
    reader.add(Publisher(A, publisher.events, publisher.replay, "kv-events", told_topic="other"))
    until(reader, lambda status: status.is_connected and not status.is_replaying)
    publisher.publish(batch(0.0))
    assert until(reader, is_settled).problem == ""


def test_an_end_marker_without_a_payload_ends_a_replay(start: Start, received: Received) -> None:
    settings = msgspec.structs.replace(SETTINGS, replay_timeout=60.0)  # which must not be what ends it
    reader = EventReader(received.deliver, settings)
    try:
        publisher = start(has_topic_in_replay=False, end=[END])
        publisher.publish(batch(0.0))
        subscribe(reader, publisher)
        received.wait_for(A, 0.0)
        assert until(reader, is_settled).counters["malformed_messages"] == 0
    finally:
        reader.close()


def of_rank(time: float, rank: int | None) -> bytes:
    return payload(stored_map([1]), timestamp=time, rank=rank)


def test_batches_of_another_rank_are_told_and_put_all_of_it_in_doubt(
    start: Start, reader: EventReader, received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = start()
    reader.add(Publisher(A, publisher.events, publisher.replay, ranks=(2,)))
    assert until(reader, is_settled).problem == ""
    for at, rank in enumerate((2, None, 5, 2, 0)):
        publisher.publish(of_rank(float(at), rank))
    received.wait_for(A, 0.0, 1.0, 2.0, 3.0, 4.0)
    told = f"its events are those of rank 5, and it is rank 2: is {publisher.events} another rank's, or do several share it?"
    status = until(reader, lambda status: not status.is_complete)
    assert (status.is_connected, status.problem) == (True, told)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [f"A: {told}"]


def test_another_rank_is_forgiven_to_whoever_connects_anew(
    start: Start, reader: EventReader, received: Received
) -> None:
    publisher = start()
    reader.add(Publisher(A, publisher.events, publisher.replay, ranks=(2,)))
    until(reader, is_settled)
    publisher.publish(of_rank(0.0, 5))
    until(reader, lambda status: status.problem != "")
    publisher.stop()
    publisher.start()
    publisher.publish(of_rank(1.0, 2))
    received.wait_for(A, 1.0)
    assert until(reader, is_settled).problem == ""


@pytest.mark.parametrize(("ranks", "said"), [(None, 7), ((0,), 0), ((3,), 3), ((3,), None), ((3, 0), 0)])
def test_batches_may_name_the_rank_or_none(
    start: Start, reader: EventReader, received: Received, ranks: tuple[int, ...] | None, said: int | None
) -> None:
    publisher = start()
    reader.add(Publisher(A, publisher.events, publisher.replay, ranks=ranks))
    publisher.publish(of_rank(0.0, said))
    received.wait_for(A, 0.0)
    assert until(reader, is_settled).problem == ""


def test_an_address_that_cannot_be_used_costs_that_publisher(
    start: Start, reader: EventReader, received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    reader.add(Publisher(B, "not an address"))
    publisher = start()
    subscribe(reader, publisher)
    publisher.publish(batch(0.0))
    received.wait_for(A, 0.0)
    assert not until(reader, lambda status: bool(status.problem), B).is_connected
    assert "no subscription to not an address" in caplog.text


def test_a_consumer_that_fails_for_one_replica_costs_that_replica_a_fresh_start(
    start: Start,
    reader: EventReader,
    received: Received,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(vllm, "RESTART_DELAY", 0.05)
    failing, good = start(), start()
    received.fails_for = A
    subscribe(reader, failing, A)
    subscribe(reader, good, B)
    failing.publish(batch(0.0))
    received.wait(lambda: received.forgotten[A] >= 1)
    good.publish(batch(5.0))
    received.wait_for(B, 5.0)
    received.fails_for = None
    received.wait_for(A, 0.0)
    assert "the consumer has a fault" in caplog.text


# Coming and going -----------------------------------------------------------------------------------------------------


def test_a_replica_that_is_removed_is_no_longer_heard_and_may_come_back(
    start: Start, reader: EventReader, received: Received
) -> None:
    publisher = start()
    publisher.publish(batch(0.0))
    subscribe(reader, publisher)
    received.wait_for(A, 0.0)
    reader.remove(A)
    reader.remove(A)
    tick = threading.Event()
    while reader.status():
        tick.wait(0.01)
    received.applied[A].clear()
    publisher.publish(batch(1.0))
    subscribe(reader, publisher)
    received.wait_for(A, 0.0, 1.0)
    assert until(reader, is_settled).incarnation == 0


def test_a_publisher_of_the_same_replica_is_replaced(start: Start, reader: EventReader, received: Received) -> None:
    first, second = start(), start()
    subscribe(reader, first)
    until(reader, is_settled)
    subscribe(reader, second)
    second.publish(batch(7.0))
    received.wait_for(A, 7.0)
    assert len(reader.status()) == 1


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")


@needs_proc
def test_addresses_that_cannot_be_used_leave_no_socket_behind(
    start: Start, reader: EventReader, received: Received
) -> None:
    publisher = start()
    publisher.publish(batch(0.0))
    subscribe(reader, publisher)
    received.wait_for(A, 0.0)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        reader.add(Publisher(B, "not an address"))
    subscribe(reader, publisher, B)
    received.wait_for(B, 0.0)
    tick = threading.Event()
    for _ in range(200):  # ZMQ closes them in a thread of its own
        if len(os.listdir("/proc/self/fd")) < before + 20:
            return
        tick.wait(0.02)
    raise AssertionError("50 sockets are still open")


@needs_proc
def test_closing_leaves_no_thread_and_no_open_file(start: Start, received: Received) -> None:
    publisher = start()
    publisher.publish(batch(0.0))

    def live() -> tuple[int, set[str]]:
        threads = {thread.name for thread in threading.enumerate()}
        return len(os.listdir("/proc/self/fd")), threads

    before = live()
    for _ in range(3):
        received.applied[A].clear()
        reader = EventReader(received.deliver, SETTINGS)
        subscribe(reader, publisher)
        for _ in range(20):
            reader.add(Publisher(B, "not an address"))
        received.wait_for(A, 0.0)
        reader.close()
        reader.close()
        reader.add(Publisher(B, publisher.events))
        assert not reader.status()
    tick = threading.Event()
    for _ in range(200):  # the publisher closes its ends when it notices
        if live() == before:
            return
        tick.wait(0.02)
    assert live() == before
