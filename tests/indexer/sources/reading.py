"""What a reader has delivered, and waiting for it.

Knows two replicas, ``A`` and ``B``, and time-outs that suit a test. The timestamps of batches name them.
"""

import threading
from collections.abc import Callable

from indexer.index import ReplicaId
from indexer.sources.vllm import EventReader, Publisher, PublisherStatus, ReaderSettings
from indexer.stream import Apply, Forget, Lost, Step
from tests.indexer.samples import payload, stored_array, stored_map
from tests.indexer.sources.publisher import FakePublisher

A, B = ReplicaId("A"), ReplicaId("B")
DEADLINE = 20.0
SETTINGS = ReaderSettings(replay_timeout=0.4, recheck_first=0.2, recheck_idle=0.5)


class Received:
    """What was delivered, by replica; waits instead of sleeping."""

    def __init__(self) -> None:
        self.applied: dict[ReplicaId, list[float]] = {A: [], B: []}  # timestamps since the last Forget
        self.forgotten: dict[ReplicaId, int] = {A: 0, B: 0}
        self.lost: dict[ReplicaId, list[Lost]] = {A: [], B: []}
        self.skipped = 0
        self.fails_for: ReplicaId | None = None
        self._news = threading.Condition()

    def deliver(self, replica: ReplicaId, steps: list[Step]) -> None:
        with self._news:
            for step in steps:
                self._take(replica, step)
            self._news.notify_all()
        if replica == self.fails_for:
            raise ValueError("the consumer has a fault")

    def _take(self, replica: ReplicaId, step: Step) -> None:
        match step:
            case Apply(batches):
                self.applied[replica] += [batch.timestamp for batch in batches]
                self.skipped += sum(len(batch.skipped) for batch in batches)
            case Forget():
                self.forgotten[replica] += 1
                self.applied[replica].clear()
            case Lost():
                self.lost[replica].append(step)

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(condition, DEADLINE), f"{self.applied}, {self.forgotten}, {self.lost}"

    def wait_for(self, replica: ReplicaId, *timestamps: float) -> None:
        self.wait(lambda: self.applied[replica] == list(timestamps))


Start = Callable[..., FakePublisher]


def subscribe(reader: EventReader, publisher: FakePublisher, replica: ReplicaId = A, topic: str = "") -> None:
    reader.add(Publisher(replica, publisher.events, publisher.replay, topic))


def until(reader: EventReader, condition: Callable[[PublisherStatus], bool], replica: ReplicaId = A) -> PublisherStatus:
    """The status once the condition holds."""
    tick = threading.Event()
    for _ in range(int(DEADLINE / 0.01)):
        status = reader.status().get(replica)
        if status is not None and condition(status):
            return status
        tick.wait(0.01)
    raise AssertionError(f"never came: {reader.status()}")


def is_settled(status: PublisherStatus) -> bool:
    return status.is_connected and status.is_complete and not status.is_replaying


def batch(time: float, form: str = "map") -> bytes:
    return payload(stored_array([1]) if form == "array" else stored_map([1]), timestamp=time)
