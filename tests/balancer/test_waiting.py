"""``balancer/waiting.py``: whoever waits is served, told or gone, and no place is lost with any of them."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from balancer.admission import AdmissionSettings, Claim, Urgency
from balancer.core import Decision, Failure, Fault, Outcome, Truth
from balancer.decisions import NOBODY
from balancer.errors import Contended, NoReplica, Saturated, UnknownModel
from balancer.fleet import Status
from balancer.service import RouterService
from balancer.settings import Settings
from balancer.waiting import Ended
from indexer.index import ReplicaId
from tests.support.routing import replica, request
from tests.support.waiting import eventually, run

PROMPT = list(range(41))
A, B = ReplicaId("a"), ReplicaId("b")

Waiter = asyncio.Task[Decision]


class Front:
    """A service with replicas that nobody watches, and what its waiting ends with."""

    def __init__(self, **settings: Any) -> None:
        self.service = RouterService(Settings(admission=AdmissionSettings(**{"max_in_flight": 1, **settings})))
        self.service.router.put(replica("a"))
        self.ended: list[Ended] = []
        self.service.waiting.on_end = self.ended.append

    def ask(self, tenant: str = "t", deadline: float | None = None, **changes: Any) -> Waiter:
        claim = Claim(tenant) if deadline is None else Claim(tenant, deadline=deadline)
        return asyncio.create_task(self.service.route(request(PROMPT, **changes), NOBODY, claim))

    async def release(self, decision: Decision, truth: Truth | None = None) -> None:
        await self.service.release(decision.lease, Outcome.OK, truth)

    @property
    def waiting(self) -> int:
        return len(self.service.waiting.queue)

    def is_empty(self) -> bool:
        return not self.waiting and not self.service.waiting._waiters and not self.service.waiting._served

    def outcomes(self) -> list[str]:
        return [ended.outcome for ended in self.ended]


def with_front(check: Callable[[Front], Awaitable[None]], **settings: Any) -> None:
    async def begin() -> None:
        front = Front(**settings)
        await front.service.start()
        try:
            await check(front)
            assert front.is_empty()
            assert front.service.router.fleet.open_leases == 0
        finally:
            await front.service.stop()

    run(begin())


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_nobody_waits_unless_it_is_asked_for() -> None:
    async def check(front: Front) -> None:
        decisions = [await front.ask() for _ in range(100)]
        for decision in decisions:
            await front.release(decision)

    with_front(check, max_in_flight=None)


def test_the_next_one_is_served_when_one_has_ended() -> None:
    async def check(front: Front) -> None:
        first = await front.ask()
        second, third = front.ask(), front.ask()
        await turns()
        assert (second.done(), third.done(), front.waiting) == (False, False, 2)
        await front.release(first)
        await turns()
        assert (second.done(), third.done(), front.waiting) == (True, False, 1)
        await front.release(await second)
        await front.release(await third)
        assert front.outcomes() == ["served", "served"]

    with_front(check)


def test_a_newcomer_overtakes_nobody() -> None:
    async def check(front: Front) -> None:
        first = await front.ask()
        second = front.ask()
        await turns()
        await front.release(first)
        third = front.ask()  # before the second one has had its turn of the loop
        await turns()
        assert (second.done(), third.done()) == (True, False)
        await front.release(await second)
        await front.release(await third)

    with_front(check)


def test_saturated_replicas_are_left_out_while_others_have_a_place() -> None:
    async def check(front: Front) -> None:
        front.service.router.put(replica("b"))
        decisions = [await front.ask(), await front.ask()]
        assert {each.replica.id for each in decisions} == {A, B}
        for decision in decisions:
            await front.release(decision)

    with_front(check)


def test_tokens_that_are_still_to_be_computed_saturate_too() -> None:
    async def check(front: Front) -> None:
        first = await front.ask()
        second = front.ask()
        await turns()
        assert not second.done()
        front.service.started(first.lease)
        await turns()
        assert second.done()
        await front.release(first)
        await front.release(await second)

    with_front(check, max_in_flight=None, max_queued_tokens=41)


def test_whoever_goes_gives_up_the_place_at_once() -> None:
    async def check(front: Front) -> None:
        first = await front.ask()
        gone, stays = front.ask(), front.ask()
        await turns()
        gone.cancel()
        await turns()
        assert front.waiting == 1
        await front.release(first)
        await front.release(await stays)
        assert front.outcomes() == ["cancelled", "served"]

    with_front(check)


def test_a_place_that_came_in_the_moment_of_going_goes_to_the_next() -> None:
    async def check(front: Front) -> None:
        first = await front.ask()
        gone, stays = front.ask(), front.ask()
        await turns()
        await front.release(first)
        gone.cancel()
        await front.release(await stays)
        assert gone.cancelled()

    with_front(check)


def test_one_that_is_going_is_given_no_place() -> None:
    async def check(front: Front) -> None:
        first = await front.ask()
        gone, stays = front.ask(), front.ask()
        await turns()
        gone.cancel()
        await front.release(first)  # before the one that goes has had its turn of the loop
        await front.release(await stays)
        assert gone.cancelled()
        assert front.outcomes() == ["cancelled", "served"]

    with_front(check)


def test_nobody_waits_longer_than_he_may() -> None:
    async def check(front: Front) -> None:
        first = await front.ask()
        with pytest.raises(
            Saturated, match=r"every replica of 'm' has been busy for 0\.\d s, .*admission.max_wait_seconds"
        ) as told:
            await front.ask()
        assert told.value.retry_after == 1
        before = time.monotonic()
        with pytest.raises(Saturated):
            await front.ask(deadline=before)
        assert time.monotonic() - before < 0.1
        await front.release(first)
        assert front.outcomes() == ["expired", "expired"]

    with_front(check, max_wait_seconds=0.15)


def test_where_nobody_is_left_it_is_told_so() -> None:
    async def check(front: Front) -> None:
        first = await front.ask()
        lost = front.ask()
        await turns()
        front.service.router.set_status(A, Status.LOST)
        with pytest.raises(NoReplica):
            await lost
        front.service.router.set_status(A, Status.READY)
        unknown = front.ask()
        await turns()
        front.service.router.put(replica("a", models=("other",)))
        with pytest.raises(UnknownModel):
            await unknown
        assert front.outcomes() == ["failed", "failed"]
        await front.release(first)

    with_front(check, max_wait_seconds=0.1)


def test_a_replica_that_comes_back_serves_those_that_wait() -> None:
    async def check(front: Front) -> None:
        front.service.router.put(replica("b"))
        front.service.router.set_status(B, Status.LOST)
        first = await front.ask()
        second = front.ask()
        await turns()
        front.service._status("http://b:8000", Status.READY)
        assert (await second).replica.id == B
        await front.release(first)
        await front.release(await second)

    with_front(check)


def test_a_replica_that_asked_for_a_rest_is_waited_for() -> None:
    async def check(front: Front) -> None:
        first = await front.ask()
        failure = Failure(Fault.STATUS, 503, retry_after=0.15)
        await front.service.release(first.lease, Outcome.ERROR, None, failure)
        with pytest.raises(Contended):
            await front.ask(deadline=time.monotonic() + 0.02)
        await front.release(await front.ask())
        assert front.outcomes() == ["failed", "served"]

    with_front(check)


def test_what_nobody_announces_is_found_in_a_moment() -> None:
    async def check(front: Front) -> None:
        first = await front.ask()
        second = front.ask()
        await turns()
        front.service.router.put(replica("b"))  # nobody has said that there is one more
        await eventually(second.done)
        await front.release(first)
        await front.release(await second)

    with_front(check)


def test_a_flood_gives_its_places_to_others_and_is_told() -> None:
    async def check(front: Front) -> None:
        first = await front.ask()
        flood = [front.ask("flood") for _ in range(3)]
        await turns()
        guest = front.ask("guest")
        with pytest.raises(Saturated, match="gave its place to those of others"):
            await flood[2]
        with pytest.raises(Saturated, match=r"3 requests wait for one already \(admission.max_waiting\)"):
            await front.ask("flood")
        assert front.service.waiting.refused == {Urgency.NORMAL: 1}
        await front.release(first)
        for served in asyncio.as_completed([guest, *flood[:2]]):
            await front.release(await served)

    with_front(check, max_waiting=3)


def test_answers_count_for_those_that_had_to_wait() -> None:
    async def check(front: Front) -> None:
        first = await front.ask()
        long = front.ask("long")
        await turns()
        await front.release(first, Truth(completion_tokens=10**6))  # it did not wait: nobody's loss
        held = await long
        others = [front.ask(tenant) for tenant in ("long", "short", "short")]
        await turns()
        await front.release(held, Truth(completion_tokens=10_000))
        await turns()
        order: list[Waiter] = []
        while len(order) < len(others):
            served = next(each for each in others if each.done() and each not in order)
            order.append(served)
            await front.release(await served)
            await turns()
        assert order == [others[1], others[2], others[0]]

    with_front(check)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_no_replica_gets_too_much_and_nothing_is_left(seed: int) -> None:
    dice = random.Random(seed)

    async def one(front: Front) -> None:
        try:
            async with asyncio.timeout(dice.choice([0.001, 0.02, 5])):
                claim = Claim(
                    dice.choice("abc"), dice.choice(list(Urgency)), time.monotonic() + dice.choice([0.005, 5])
                )
                decision = await front.service.route(request(PROMPT), NOBODY, claim)
        except (Saturated, TimeoutError):
            return
        assert all(live.in_flight <= 1 for live in front.service.router.fleet)
        try:
            async with asyncio.timeout(dice.choice([0.0005, 1])):
                await asyncio.sleep(dice.random() / 100)
                front.service.started(decision.lease)
        except TimeoutError:
            pass
        finally:
            await front.release(decision, dice.choice([None, Truth(completion_tokens=dice.randrange(100))]))

    async def check(front: Front) -> None:
        front.service.router.put(replica("b"))
        async with asyncio.TaskGroup() as group:
            for _ in range(300):
                group.create_task(one(front))
                if dice.random() < 0.2:
                    await asyncio.sleep(dice.random() / 100)
        assert {"served", "cancelled", "expired"} <= set(front.outcomes())

    with_front(check, max_waiting=30)
