"""The reader against what goes wrong on the way: hosts that vanish, publishers that dial, floods, replays without end."""

import logging
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from indexer.index import ReplicaId
from indexer.sources import subscription, vllm
from indexer.sources.vllm import EventReader, Publisher
from indexer.stream import Step
from indexer.wire import MAX_PAYLOAD
from simulations.demo import free_ports
from tests.indexer.sources.publisher import FakePublisher
from tests.indexer.sources.reading import SETTINGS, A, B, Received, Start, batch, is_settled, subscribe, until
from tests.support.wires import wire


def port(address: str | None) -> int:
    assert address is not None
    return int(address.rpartition(":")[2])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# A host that vanishes -------------------------------------------------------------------------------------------------


@pytest.fixture
def hasty(received: Received) -> Iterator[EventReader]:
    """Misses a host long before it asks, by the replay socket's own way, whether there is more."""
    settings = msgspec.structs.replace(SETTINGS, heartbeat=0.1, recheck_idle=5.0)
    reader = EventReader(received.deliver, settings)
    yield reader
    reader.close()


def test_a_host_that_vanishes_without_a_word_is_missed_and_followed_again(
    start: Start, hasty: EventReader, received: Received
) -> None:
    publisher = start()
    with wire(port(publisher.events)) as between:
        hasty.add(Publisher(A, f"tcp://127.0.0.1:{between.port}", publisher.replay))
        until(hasty, is_settled)
        publisher.publish(batch(0.0))
        received.wait_for(A, 0.0)
        between.silence()
        publisher.publish(batch(1.0))
        status = until(hasty, lambda status: not status.is_connected)
        assert (status.is_complete, received.applied[A]) == (False, [0.0])
        threading.Event().wait(0.5)  # the attempts made meanwhile are swallowed, too
        between.mend()
        received.wait_for(A, 0.0, 1.0)
        until(hasty, is_settled)
        publisher.publish(batch(2.0))
        received.wait_for(A, 0.0, 1.0, 2.0)
        assert received.forgotten[A] == 0, "the same engine, as its replay has shown"


def test_a_silent_but_living_publisher_is_not_missed(start: Start, hasty: EventReader, received: Received) -> None:
    publisher = start()
    subscribe(hasty, publisher)
    until(hasty, is_settled)
    threading.Event().wait(0.6)  # three times what a dead one would be given
    assert until(hasty, is_settled).counters["connections"] == 1


# Messages of two lives ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_replay", [True, False])
def test_what_the_old_engine_sent_last_is_not_taken_for_the_new_ones(start: Start, has_replay: bool) -> None:
    """The reader is busy while the engine restarts: the last message of the old life is read with the new connection."""
    received = Received()
    may_go_on = threading.Event()
    may_go_on.set()

    def deliver(replica: ReplicaId, steps: list[Step]) -> None:
        received.deliver(replica, steps)
        assert may_go_on.wait(20)

    reader = EventReader(deliver, SETTINGS)
    tick = threading.Event()
    try:
        publisher = start(has_replay=has_replay)
        subscribe(reader, publisher)
        while not received.applied[A]:
            publisher.publish(batch(0.0))
            tick.wait(0.02)
        may_go_on.clear()
        publisher.publish(batch(0.5))
        received.wait(lambda: 0.5 in received.applied[A])  # and now it is busy
        publisher.publish(batch(1.0))
        tick.wait(0.3)
        publisher.stop()
        publisher.start()
        tick.wait(0.5)  # it is connected again, and does not know yet
        may_go_on.set()
        while not any(time >= 1_000 for time in received.applied[A]):
            publisher.publish(batch(1_000.0 + len(publisher.buffer)))
            tick.wait(0.02)
        status = until(reader, lambda status: status.is_connected)
        assert received.forgotten[A] == 1
        assert 1.0 not in received.applied[A]
        assert status.counters["messages_of_two_connections"] > 0
    finally:
        may_go_on.set()
        reader.close()


# Publishers that dial -------------------------------------------------------------------------------------------------


@pytest.fixture
def dialled() -> str:
    return f"tcp://127.0.0.1:{free_ports(1)[0]}"


def listen(reader: EventReader, publisher: FakePublisher) -> None:
    reader.add(Publisher(A, publisher.events, publisher.replay, is_dialling=True))


def test_a_publisher_that_dials_is_followed_through_a_restart(
    start: Start, reader: EventReader, received: Received, dialled: str
) -> None:
    publisher = start(dials=dialled)
    publisher.publish(batch(0.0))
    listen(reader, publisher)
    received.wait_for(A, 0.0)
    until(reader, is_settled)
    publisher.publish(batch(1.0))
    received.wait_for(A, 0.0, 1.0)
    publisher.stop()
    until(reader, lambda status: not status.is_connected)
    publisher.start()
    publisher.publish(batch(1_000.0))
    received.wait_for(A, 1_000.0)
    assert received.forgotten[A] == 1


def test_two_engines_that_dial_one_port_are_not_mixed(
    start: Start, reader: EventReader, received: Received, dialled: str, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = start(dials=dialled)
    listen(reader, publisher)
    until(reader, is_settled)
    publisher.publish(batch(0.0))
    received.wait_for(A, 0.0)
    other = FakePublisher(dials=dialled)
    try:
        until(reader, lambda status: not status.is_connected)
        for number in range(20):
            other.publish(batch(500.0 + number))
            threading.Event().wait(0.02)  # its subscription takes a moment
        publisher.publish(batch(1.0))
        threading.Event().wait(0.1)
        assert any(f"2 engines connect to {dialled}" in each for each in warnings(caplog))
        assert received.applied[A] == [0.0]
    finally:
        other.stop()
    received.wait_for(A, 0.0, 1.0)
    publisher.publish(batch(2.0))
    received.wait_for(A, 0.0, 1.0, 2.0)
    assert received.forgotten[A] == 0


def test_who_dials_in_and_is_no_engine_changes_nothing(
    start: Start, reader: EventReader, received: Received, dialled: str
) -> None:
    publisher = start(dials=dialled)
    listen(reader, publisher)
    until(reader, is_settled)
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f", b""):
        with socket.create_connection(("127.0.0.1", port(dialled))) as probe:
            probe.sendall(greeting)
    publisher.publish(batch(0.0))
    received.wait_for(A, 0.0)
    status = until(reader, is_settled)
    assert (status.counters["connections"], received.forgotten[A]) == (1, 0)


def test_an_address_that_is_in_use_is_tried_again(
    start: Start,
    reader: EventReader,
    received: Received,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(vllm, "RESTART_DELAY", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        publisher = start(dials=f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        publisher.publish(batch(0.0))
        listen(reader, publisher)
        threading.Event().wait(0.5)
        assert [record.levelname for record in caplog.records] == ["ERROR"], "tried ten times, told once"
    received.wait_for(A, 0.0)


# Floods and giants ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_frames", [True, False])
def test_a_publisher_of_garbage_is_left_alone_for_a_while(
    start: Start,
    reader: EventReader,
    received: Received,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_frames: bool,
) -> None:
    monkeypatch.setattr(vllm, "QUARANTINE", 0.3)
    bad, good = start(has_replay=False), start()
    subscribe(reader, bad, A)
    subscribe(reader, good, B)
    until(reader, is_settled, B)
    while not warnings(caplog):
        for _ in range(100):
            if has_frames:
                bad.publish(b"\xc1")
            else:
                bad.send(b"")
        threading.Event().wait(0.005)
    good.publish(batch(5.0))
    received.wait_for(B, 5.0)
    (told,) = warnings(caplog)
    assert told.startswith("A: left alone for 0.3 s: 1000 messages in a row cannot be read")
    while 7.0 not in received.applied[A]:
        bad.publish(batch(7.0))
        threading.Event().wait(0.02)
    assert received.forgotten[B] == 0


def test_now_and_then_something_unreadable_is_no_flood(
    start: Start, reader: EventReader, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "MAX_UNREADABLE", 3)
    publisher = start()
    subscribe(reader, publisher)
    until(reader, is_settled)
    for number in range(5):
        publisher.publish(batch(float(number + 1)))
        publisher.send(b"")
        publisher.publish(b"\xc1")
    received.wait_for(A, 1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0, 0.0, 5.0, 0.0)
    assert received.forgotten[A] == 0


def test_a_giant_costs_itself_alone(start: Start, reader: EventReader, received: Received) -> None:
    publisher, good = start(), start()
    subscribe(reader, publisher)
    subscribe(reader, good, B)
    for replica in (A, B):
        until(reader, is_settled, replica)
    publisher.publish(bytes(MAX_PAYLOAD + 1))
    good.publish(batch(5.0))
    publisher.publish(batch(1.0))
    received.wait_for(A, 0.0, 1.0)
    received.wait_for(B, 5.0)
    status = until(reader, is_settled)
    assert status.counters["events_skipped"] >= 1, "and once more for each replay that it is in"
    assert (status.counters["connections"], received.skipped) == (1, 1)


# A consumer that is busy ----------------------------------------------------------------------------------------------


def test_what_comes_while_the_consumer_is_busy_is_not_lost(start: Start) -> None:
    received = Received()
    may_go_on = threading.Event()

    def deliver(replica: ReplicaId, steps: list[Step]) -> None:
        received.deliver(replica, steps)
        assert not received.applied[A] or may_go_on.wait(20)

    publisher = start(has_replay=False)
    reader = EventReader(deliver, SETTINGS)
    try:
        subscribe(reader, publisher)
        while not received.applied[A]:
            publisher.publish(batch(-1.0))
            threading.Event().wait(0.02)
        times = [float(number) for number in range(20_000)]
        for time in times:
            publisher.publish(batch(time))
        may_go_on.set()
        received.wait(lambda: received.applied[A][-1:] == times[-1:])
        assert [time for time in received.applied[A] if time >= 0] == times
    finally:
        may_go_on.set()
        reader.close()


# A replay without an end ----------------------------------------------------------------------------------------------


def test_a_replay_that_drips_does_not_hold_up_the_live_stream_for_ever(start: Start, received: Received) -> None:
    publisher = start(pause=0.15)
    for number in range(20):
        publisher.publish(batch(float(number)))
    reader = EventReader(received.deliver, msgspec.structs.replace(SETTINGS, replay_limit=0.5))
    try:
        subscribe(reader, publisher)
        received.wait(lambda: bool(received.applied[A]))
        publisher.publish(batch(20.0))
        received.wait(lambda: received.applied[A][-1] == 20.0)
        (lost,) = received.lost[A]
        assert (lost.last, received.forgotten[A]) == (19, 0)
        assert received.applied[A][:-1] == [float(number) for number in range(lost.first)]
        assert not until(reader, lambda status: not status.is_replaying).is_complete
    finally:
        reader.close()


def test_a_long_replay_that_is_in_time_loses_nothing(start: Start, reader: EventReader, received: Received) -> None:
    publisher = start(pause=0.02)
    times = [float(number) for number in range(40)]  # 0.8 s: longer than the silence that ends a replay
    for time in times:
        publisher.publish(batch(time))
    subscribe(reader, publisher)
    received.wait_for(A, *times)
    assert received.lost[A] == []


# Addresses ------------------------------------------------------------------------------------------------------------


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("topic", [b"", b"kv@[fd00::1]:8000@org/model", b"a:b@c"])
def test_ipv6_and_any_topic(start: Start, reader: EventReader, received: Received, topic: bytes) -> None:
    publisher = start(host="[::1]", topic=topic)
    publisher.publish(batch(0.0))
    subscribe(reader, publisher, topic=topic.decode())
    received.wait_for(A, 0.0)
    until(reader, is_settled)
    publisher.publish(batch(1.0))
    received.wait_for(A, 0.0, 1.0)


def test_topics_name_nobody(start: Start, reader: EventReader, received: Received) -> None:
    """Identity is the connection's, whatever a publisher calls itself, and two may call themselves alike."""
    for replica, base in ((A, 100.0), (B, 200.0)):
        publisher = start(topic=b"kv@10.0.0.1:8000@m")
        subscribe(reader, publisher, replica)
        publisher.publish(batch(base))
    received.wait_for(A, 100.0)
    received.wait_for(B, 200.0)
    assert received.lost == {A: [], B: []}


# Lives that follow each other too fast --------------------------------------------------------------------------------


def test_a_sequence_that_never_goes_on_is_left_alone(
    start: Start, reader: EventReader, received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a proxy mixes the events of several engines: each would empty the cache of the one before."""
    publisher, good = start(has_replay=False), start()
    subscribe(reader, publisher)
    subscribe(reader, good, B)
    until(reader, lambda status: status.is_connected)
    while not warnings(caplog):
        publisher.send(b"", bytes(8), batch(0.0))
        threading.Event().wait(0.001)
    assert received.forgotten[A] <= subscription.LIVES_AT_ONCE + 10
    assert "its sequence has begun anew more than 30 times" in warnings(caplog)[0]
    good.publish(batch(5.0))
    received.wait_for(B, 5.0)
