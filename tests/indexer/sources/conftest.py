"""A reader on loopback, what it delivers, and publishers for it."""

from collections.abc import Callable, Iterator

import pytest

from indexer.sources.vllm import EventReader
from tests.indexer.sources.publisher import FakePublisher
from tests.indexer.sources.reading import SETTINGS, Received


@pytest.fixture
def received() -> Received:
    return Received()


@pytest.fixture
def reader(received: Received) -> Iterator[EventReader]:
    reader = EventReader(received.deliver, SETTINGS)
    yield reader
    reader.close()


@pytest.fixture
def start() -> Iterator[Callable[..., FakePublisher]]:
    started: list[FakePublisher] = []

    def make(**options: object) -> FakePublisher:
        started.append(FakePublisher(**options))  # type: ignore[arg-type]
        return started[-1]

    yield make
    for publisher in started:
        publisher.stop()
