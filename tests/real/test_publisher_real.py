"""The reader against vLLM's own publisher class: a full buffer, fetched late and through a replay that may lose frames."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from balancer import facts
from indexer.index import CacheIndex, ReplicaId
from indexer.sources.vllm import EventReader, Publisher, ReaderSettings
from indexer.stream import Apply, Standing, Step
from simulations.demo import free_ports
from tests.real.environment import vllm_python

A = ReplicaId("A")
BUFFERED = 10_000
BLOCKS_PER_BATCH = 64
DEADLINE = 120.0

pytestmark = pytest.mark.real


class RealPublisher:
    def __init__(self, host: str = "*") -> None:
        self.events, self.replay = free_ports(2)
        self.process = subprocess.Popen(
            [vllm_python(), Path(__file__).with_name("publish_events.py"), str(self.events), str(self.replay), host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        while "tcp://" not in (line := self.process.stdout.readline()) or " " in line.strip():
            assert line, "the publisher has ended"
        self.told = line.strip()

    def publish(self, count: int) -> None:
        """Returns when they are sent and in the replay buffer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(count, file=self.process.stdin, flush=True)
        while not (line := self.process.stdout.readline()).strip().isdigit():
            assert line, "the publisher has ended"  # vLLM logs to stdout, too

    def stop(self) -> None:
        self.process.communicate(timeout=20)


@pytest.fixture
def publisher() -> Iterator[RealPublisher]:
    publisher = RealPublisher()
    yield publisher
    publisher.stop()


class Index:
    """What a gateway does with the steps, done in the reader's thread; a slow one dawdles over every batch."""

    def __init__(self, seconds_per_batch: float = 0.0) -> None:
        self.index = CacheIndex()
        self.index.add(A)
        self.applied: list[float] = []
        self.others: list[Step] = []
        self.standing = Standing()
        self._delay = seconds_per_batch
        self._news = threading.Condition()

    def deliver(self, replica: ReplicaId, steps: list[Step]) -> None:
        with self._news:
            for step in steps:
                match step:
                    case Apply():
                        self._apply(replica, step)
                    case Standing():
                        self.standing = step
                    case _:
                        self.others.append(step)
            self._news.notify_all()

    def _apply(self, replica: ReplicaId, step: Apply) -> None:
        for batch in step.batches:
            self.index.apply(replica, batch.events)
            self.applied.append(batch.timestamp)
            if self._delay:
                threading.Event().wait(self._delay)

    def wait_for(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.applied) >= count, DEADLINE), len(self.applied)


@pytest.mark.parametrize("seconds_per_batch", [0.0, 0.0005], ids=["prompt", "slow"])
def test_a_late_subscriber_gets_all_of_a_full_buffer_in_order(
    publisher: RealPublisher, seconds_per_batch: float
) -> None:
    """A naive reader got 3,000 to 10,000 of these: the ROUTER drops what its pipe cannot take, end marker or not."""
    publisher.publish(BUFFERED)
    consumer = Index(seconds_per_batch)
    reader = EventReader(consumer.deliver, ReaderSettings(replay_timeout=1.0))
    try:
        endpoint = f"tcp://127.0.0.1:{publisher.replay}"
        reader.add(Publisher(A, f"tcp://127.0.0.1:{publisher.events}", endpoint))
        consumer.wait_for(BUFFERED)
        publisher.publish(100)
        consumer.wait_for(BUFFERED + 100)
        status = reader.status()[A]
    finally:
        reader.close()
    assert consumer.applied == [float(sequence) for sequence in range(BUFFERED + 100)]
    assert not consumer.others
    assert consumer.standing == Standing(is_connected=True, is_complete=True)
    assert (status.is_complete, status.incarnation) == (True, 0)
    assert consumer.index.gpu.blocks(A) == (BUFFERED + 100) * BLOCKS_PER_BATCH
    print({"seconds_per_batch": seconds_per_batch, **status.counters})


def test_what_a_full_buffer_has_thrown_away_is_told(publisher: RealPublisher) -> None:
    publisher.publish(BUFFERED + 500)
    consumer = Index()
    reader = EventReader(consumer.deliver)
    try:
        endpoint = f"tcp://127.0.0.1:{publisher.replay}"
        reader.add(Publisher(A, f"tcp://127.0.0.1:{publisher.events}", endpoint))
        consumer.wait_for(BUFFERED)
        status = reader.status()[A]
    finally:
        reader.close()
    assert consumer.applied == [float(sequence) for sequence in range(500, BUFFERED + 500)]
    assert [(step.first, step.last) for step in consumer.others] == [(0, 499)]  # type: ignore[union-attr]
    assert not status.is_complete


def test_a_publisher_without_a_wildcard_connects_and_tells_so() -> None:
    publisher = RealPublisher("localhost")
    consumer = Index()
    reader = EventReader(consumer.deliver)
    try:
        assert facts.dials(publisher.told)
        publisher.publish(50)
        address = f"tcp://127.0.0.1:{publisher.events}"
        reader.add(Publisher(A, address, f"tcp://127.0.0.1:{publisher.replay}", is_dialling=True))
        consumer.wait_for(50)
        publisher.publish(50)
        consumer.wait_for(100)
        assert consumer.applied == [float(sequence) for sequence in range(100)]
        assert reader.status()[A].counters["connections"] == 1
    finally:
        reader.close()
        publisher.stop()


def test_a_publisher_with_a_wildcard_is_not_taken_for_one_that_connects(publisher: RealPublisher) -> None:
    assert not facts.dials(publisher.told)
