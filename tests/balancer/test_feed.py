"""``balancer/feed.py``: floods in order and in slices, and a replica whose events cannot be applied costs only itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from balancer.feed import BATCHES_AT_ONCE, SLICE_SECONDS, EventFeed
from indexer.index import ReplicaId
from indexer.sources.vllm import Publisher
from indexer.stream import Apply, Forget, Standing, Step
from indexer.wire import Batch
from tests.indexer.sources.publisher import FakePublisher
from tests.support.waiting import eventually, run

A, B = ReplicaId("a"), ReplicaId("b")
Taken = list[tuple[ReplicaId, Step]]


def batches(first: int, count: int) -> Apply:
    return Apply([Batch(float(at), []) for at in range(first, first + count)])


def with_feed(take: Callable[[ReplicaId, Step], None], check: Callable[[EventFeed], Awaitable[None]]) -> None:
    async def begin() -> None:
        feed = EventFeed(take)
        try:
            await check(feed)
        finally:
            await feed.close()

    run(begin())


def applied(taken: Taken, replica: ReplicaId) -> list[float]:
    return [
        batch.timestamp for name, step in taken if name == replica and isinstance(step, Apply) for batch in step.batches
    ]


def test_every_batch_arrives_once_and_in_the_order_of_its_replica() -> None:
    taken: Taken = []

    async def check(feed: EventFeed) -> None:
        for at in range(50):
            feed.deliver(A, [batches(at * 100, 100), Standing(is_connected=True)])
            feed.deliver(B, [batches(at, 1)])
        assert not taken, "nothing is applied before the loop has its turn"
        await eventually(lambda: feed.is_idle)
        assert applied(taken, A) == list(range(5_000))
        assert applied(taken, B) == list(range(50))
        assert max(len(step.batches) for _, step in taken if isinstance(step, Apply)) <= BATCHES_AT_ONCE
        assert sum(isinstance(step, Standing) for _, step in taken) == 50

    with_feed(lambda replica, step: taken.append((replica, step)), check)


def test_a_long_flood_lets_others_have_their_turn() -> None:
    taken: list[Step] = []

    def slow(_: ReplicaId, step: Step) -> None:
        taken.append(step)
        time.sleep(2 * SLICE_SECONDS)

    async def check(feed: EventFeed) -> None:
        for _ in range(5):
            feed.deliver(A, [Standing()])
        seen = []
        while not feed.is_idle:
            await asyncio.sleep(0)
            seen.append(len(taken))
        assert set(seen) >= {1, 2, 3, 4}, "one slice, one turn"

    with_feed(slow, check)


def test_steps_that_come_while_the_last_ones_are_applied_are_not_left() -> None:
    taken: list[ReplicaId] = []

    async def check(feed: EventFeed) -> None:
        feed.deliver(A, [Standing()])
        for at in range(1, 201):
            await asyncio.to_thread(feed.deliver, B, [Standing()])
            await eventually(lambda: taken.count(B) == at)  # noqa: B023
        assert feed.is_idle

    with_feed(lambda replica, _: taken.append(replica), check)


def test_events_that_cannot_be_applied_cost_their_replica_a_fresh_start(caplog: pytest.LogCaptureFixture) -> None:
    taken: Taken = []
    failures = 0

    def take(replica: ReplicaId, step: Step) -> None:
        nonlocal failures
        if replica == A and isinstance(step, Apply) and not failures:
            failures += 1
            raise ValueError("broken on purpose")
        taken.append((replica, step))

    async def check(feed: EventFeed) -> None:
        one = FakePublisher()
        try:
            feed.reader.add(Publisher(A, one.events, one.replay))
            await eventually(lambda: (A, Standing(is_connected=True, is_complete=True)) in taken)
            feed.deliver(A, [batches(1, 1), batches(2, 1), Standing(is_connected=True, is_complete=True)])
            feed.deliver(B, [batches(3, 1)])
            await eventually(lambda: applied(taken, B))
            assert not applied(taken, A), "what follows the failure is void"
            told = [step for replica, step in taken if replica == A and isinstance(step, Forget)]
            assert told[0] == Forget("its events could not be applied")
            await eventually(lambda: taken[-1] == (A, Standing(is_connected=True, is_complete=True)))
            feed.deliver(A, [batches(4, 1)])
            await eventually(lambda: applied(taken, A) == [4.0])
            assert "a: its events could not be applied; its index begins anew" in caplog.text
        finally:
            one.stop()

    with_feed(take, check)


def test_a_replica_that_cannot_even_be_forgotten_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[ReplicaId] = []

    def take(replica: ReplicaId, _: Step) -> None:
        if replica == A:
            raise ValueError("broken on purpose")
        taken.append(replica)

    async def check(feed: EventFeed) -> None:
        for replica in (A, A, B):
            feed.deliver(replica, [Standing()])
        await eventually(lambda: taken == [B])
        assert caplog.text.count("a: nor could it be forgotten") == 2, "once a step, and the second delivery is void"

    with_feed(take, check)


def test_nothing_is_applied_while_it_is_held_and_everything_afterwards() -> None:
    taken: Taken = []

    async def check(feed: EventFeed) -> None:
        feed.deliver(A, [batches(0, 10 * BATCHES_AT_ONCE)])
        await asyncio.sleep(0)
        with feed.held():
            before = len(applied(taken, A))
            for at in range(3):
                feed.deliver(B, [batches(at, 1)])
                await asyncio.sleep(0.01)
            assert len(applied(taken, A)) == before
            assert not applied(taken, B)
        await eventually(lambda: feed.is_idle)
        assert (len(applied(taken, A)), len(applied(taken, B))) == (10 * BATCHES_AT_ONCE, 3)
        with feed.held():
            pass
        feed.deliver(B, [batches(3, 1)])
        await eventually(lambda: len(applied(taken, B)) == 4)

    with_feed(lambda replica, step: taken.append((replica, step)), check)
