"""``sources/guard.py``: who is not expected cannot send events, nor get in the way of who is."""

import ipaddress
import threading

import pytest

from indexer.sources.guard import Guard, is_among
from indexer.sources.vllm import EventReader, Publisher
from simulations.demo import free_ports
from tests.indexer.sources.publisher import FakePublisher
from tests.indexer.sources.reading import A, B, Received, Start, batch, is_settled, until


@pytest.fixture
def dialled() -> str:
    return f"tcp://127.0.0.1:{free_ports(1)[0]}"


def test_who_is_on_the_list_is_heard(start: Start, reader: EventReader, received: Received, dialled: str) -> None:
    publisher = start(dials=dialled)
    publisher.publish(batch(0.0))
    reader.add(Publisher(A, dialled, publisher.replay, is_dialling=True, senders=("10.0.0.1", "127.0.0.0/8")))
    received.wait_for(A, 0.0)
    until(reader, is_settled)
    publisher.publish(batch(1.0))
    received.wait_for(A, 0.0, 1.0)


def test_who_is_not_on_the_list_cannot_send_and_is_named_once(
    start: Start, reader: EventReader, received: Received, dialled: str, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = start(dials=dialled)
    reader.add(Publisher(A, dialled, None, is_dialling=True, senders=("10.0.0.1", "127.0.0.2")))
    other = start()
    reader.add(Publisher(B, other.events, other.replay))
    for number in range(20):
        stranger.publish(batch(500.0 + number))
        threading.Event().wait(0.02)  # time enough to be heard, if it were
    other.publish(batch(1.0))
    received.wait_for(B, 1.0)
    assert received.applied[A] == []
    status = reader.status()[A]
    assert (status.is_connected, status.counters["connections"]) == (False, 0)
    told = [record.getMessage() for record in caplog.records if "127.0.0.1" in record.getMessage()]
    assert len(told) == 1
    assert "events_from" in told[0]


def test_a_stranger_does_not_end_the_connection_of_the_engine(
    start: Start, reader: EventReader, received: Received, dialled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = start(dials=dialled)
    reader.add(Publisher(A, dialled, publisher.replay, is_dialling=True, senders=("127.0.0.1",)))
    until(reader, is_settled)
    monkeypatch.setattr(Guard, "_may", lambda *_: False)  # whoever comes now is a stranger
    stranger = FakePublisher(dials=dialled)
    try:
        for number in range(10):
            stranger.publish(batch(500.0 + number))
            publisher.publish(batch(float(number)))
            threading.Event().wait(0.02)
        received.wait_for(A, *map(float, range(10)))
        assert received.forgotten[A] == 0
    finally:
        stranger.stop()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.7", True),
        ("::ffff:10.0.0.7", True),
        ("10.0.0.8", False),
        ("10.1.2.3", True),
        ("fe80::1%eth0", True),
        ("::1", False),
        ("", False),
        ("nonsense", False),
    ],
)
def test_an_address_is_known_in_whichever_way_it_is_written(address: str, expected: bool) -> None:
    assert (
        is_among(address, [ipaddress.ip_network(each) for each in ("10.0.0.7", "10.1.0.0/16", "fe80::/10")]) is expected
    )
