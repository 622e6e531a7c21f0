"""``balancer/turns.py``: who is held goes when its replica has less to do, or elsewhere, and leaves nothing behind."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from balancer.admission import AdmissionSettings, Claim, Urgency
from balancer.core import Decision, Failure, Fault, Outcome, RouteRequest, Truth
from balancer.decisions import NOBODY
from balancer.errors import NoReplica
from balancer.fleet import Drain, Status
from balancer.router import NO_ADMISSION
from balancer.service import RouterService
from balancer.settings import PolicySettings, Settings
from indexer.index import ReplicaId
from tests.support.routing import replica
from tests.support.waiting import eventually, run

A, B = ReplicaId("a"), ReplicaId("b")

Waiter = asyncio.Task[Decision]


class Front:
    """A service with one replica that computes 100 tokens a second; it is fed one request at a time."""

    def __init__(self, admission: AdmissionSettings = NO_ADMISSION, **settings: Any) -> None:
        given = {"feed_tokens": 0, "feed_seconds": 0.05, "small_tokens": 0, **settings}
        self.service = RouterService(Settings(policy=PolicySettings(settings=given), admission=admission))
        self.held: list[float] = []
        self.service.turns.on_end = self.held.append
        self.put("a")

    def put(self, name: str) -> None:
        self.service.router.put(replica(name))
        live = self.service.router.fleet.get(ReplicaId(name))
        assert live is not None
        live.fix_speed(100.0)

    def ask(self, tokens: int, tenant: str = "t", urgency: Urgency = Urgency.NORMAL, **changes: Any) -> Waiter:
        request = RouteRequest("m", size_hint=tokens, **changes)
        return asyncio.create_task(self.service.route(request, NOBODY, Claim(tenant, urgency)))

    def leave(self, name: str, how: str) -> None:
        """The replica can take nothing any more."""
        if how == "lost":
            self.service._status(f"http://{name}:8000", Status.LOST)
        elif how == "drained":
            self.service.drain(name, Drain.ASKED)
        else:
            self.service._forget(ReplicaId(name))

    async def answer(self, decision: Decision) -> None:
        self.service.started(decision.lease)
        await self.service.release(decision.lease, Outcome.OK)


def with_front(check: Callable[[Front], Awaitable[None]], **settings: Any) -> None:
    async def begin() -> None:
        front = Front(**settings)
        await front.service.start()
        try:
            await check(front)
            assert not len(front.service.turns)
            assert not len(front.service.waiting.queue)
            assert front.service.router.fleet.open_leases == 0
            assert not front.service.router.fleet.has_held
        finally:
            await front.service.stop()

    run(begin())


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def test_who_was_due_and_waits_for_a_late_answer_is_not_looked_at_for_ever() -> None:
    async def check(front: Front) -> None:
        first, second = front.ask(2000), front.ask(100)
        await settle()
        assert len(front.service.turns) == 1
        router, now = front.service.router, time.monotonic()
        assert router.due(now) == pytest.approx(now + 19.95, abs=5)
        assert router.due(now + 60) is None
        await front.answer(await first)
        await front.answer(await second)

    with_front(check)


def test_an_idle_fleet_holds_nobody() -> None:
    async def check(front: Front) -> None:
        for _ in range(20):
            await front.answer(await front.ask(1_000))
        assert not front.held

    with_front(check)


def test_the_shortest_goes_first_whoever_came_first() -> None:
    async def check(front: Front) -> None:
        first = await front.ask(100_000)
        long, short, middle = front.ask(5_000), front.ask(100), front.ask(1_000)
        await settle()
        assert len(front.service.turns) == 3
        assert not any(each.done() for each in (long, short, middle))
        order = []
        await front.answer(first)
        for _ in range(3):
            await settle()
            (done,) = [each for each in (long, short, middle) if each.done() and each not in order]
            order.append(done)
            await front.answer(done.result())
        assert order == [short, middle, long]
        assert len(front.held) == 3

    with_front(check)


def test_without_an_order_nobody_is_held() -> None:
    async def check(front: Front) -> None:
        for decision in [await front.ask(5_000) for _ in range(5)]:
            await front.answer(decision)

    with_front(check, ageing="off")


def test_time_alone_lets_the_next_one_go() -> None:
    """A whole answer tells no first output; its prompt is taken for computed when it should be."""

    async def check(front: Front) -> None:
        first = await front.ask(20, tells_start=False)
        second = front.ask(10)
        await settle()
        assert not second.done()
        decision = await second
        await front.answer(decision)
        await front.service.release(first.lease, Outcome.OK)

    with_front(check)


@pytest.mark.parametrize("how", ["lost", "drained", "removed"])
def test_whose_replica_is_gone_goes_elsewhere(how: str) -> None:
    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        second = front.ask(100)
        await settle()
        front.put("b")
        if how == "lost":
            front.service.router.set_status(A, Status.LOST)
        elif how == "drained":
            front.service.drain("a", Drain.ASKED)
        else:
            front.service.router.remove(A)
        front.service.turns.look()
        decision = await second
        assert decision.replica.id == B
        await front.answer(decision)
        await front.service.release(first.lease, Outcome.UNREACHABLE)

    with_front(check)


@pytest.mark.parametrize("has_other", [False, True])
def test_nobody_is_sent_to_a_replica_that_rests(has_other: bool) -> None:
    async def check(front: Front) -> None:
        first, held = await front.ask(10_000), front.ask(200)
        await settle()
        if has_other:
            front.put("b")
        refusal = Failure(Fault.STATUS, 503, retry_after=0.3)
        asked_at = time.monotonic()
        await front.service.release(first.lease, Outcome.ERROR, failure=refusal)
        await settle()
        assert held.done() == has_other
        decision = await held
        assert decision.replica.id == (B if has_other else A)
        assert has_other or time.monotonic() >= asked_at + 0.3
        await front.answer(decision)

    with_front(check)


def test_whose_replica_is_left_out_and_the_only_one_is_sent_there() -> None:
    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        others = [front.ask(100 + at) for at in range(5)]
        await settle()
        assert front.service.router.ejections.stalled(A, "stands still", time.monotonic())
        front.service.turns.look()
        for each in (*others, front.ask(300)):
            await front.answer(await each)
        await front.service.release(first.lease, Outcome.OK)

    with_front(check)


def test_a_trial_is_not_held() -> None:
    async def check(front: Front) -> None:
        front.put("b")
        first = [await front.ask(10_000), await front.ask(10_000)]
        assert {each.replica.id for each in first} == {A, B}
        ejections = front.service.router.ejections
        assert ejections.stalled(A, "stands still", time.monotonic() - 3600)
        front.service.router.fleet.get(B).fix_speed(1.0)  # type: ignore[union-attr]
        trial = await front.ask(100)
        assert trial.replica.id == A
        await front.answer(trial)
        assert not ejections
        for each in first:
            await front.service.release(each.lease, Outcome.OK)

    with_front(check)


@pytest.mark.parametrize("how", ["lost", "drained", "removed"])
def test_where_nobody_is_left_that_is_told_when_nobody_comes_back(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("balancer.waiting.GRACE_SECONDS", 0.05)

    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        second = front.ask(100)
        await settle()
        front.leave("a", how)
        await settle()
        assert not second.done()
        with pytest.raises(NoReplica):
            await second
        await front.service.release(first.lease, Outcome.UNREACHABLE)

    with_front(check)


@pytest.mark.parametrize("how", ["lost", "drained", "removed"])
def test_who_was_held_outlasts_a_moment_without_any_replica_and_keeps_its_turn(how: str) -> None:
    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        long, short, middle = front.ask(5_000), front.ask(100), front.ask(1_000)
        await settle()
        front.leave("a", how)
        await settle()
        assert (len(front.service.turns), len(front.service.waiting.queue)) == (0, 3)
        assert front.service.router.fleet.open_leases == 1
        with pytest.raises(NoReplica):
            await front.ask(100)
        assert not any(each.done() for each in (long, short, middle))
        await front.service.release(first.lease, Outcome.UNREACHABLE)
        front.put("b")
        front.service.waiting.look()
        for each in (short, middle, long):
            decision = await each
            assert decision.replica.id == B
            await settle()
            assert sum(other.done() for other in (long, short, middle)) == [short, middle, long].index(each) + 1
            await front.answer(decision)
        assert len(front.held) == 3

    with_front(check)


def test_who_goes_away_while_nobody_is_left_leaves_nothing() -> None:
    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        waiting = [front.ask(100 + at) for at in range(3)]
        await settle()
        front.leave("a", "lost")
        waiting[0].cancel()  # before it waits
        await settle()
        assert len(front.service.waiting.queue) == 2
        waiting[1].cancel()
        await settle()
        assert len(front.service.waiting.queue) == 1
        front.put("b")
        front.service.waiting.look()
        waiting[2].cancel()  # in the moment in which its place came
        await settle()
        assert all(each.cancelled() for each in waiting)
        await front.service.release(first.lease, Outcome.UNREACHABLE)

    with_front(check)


def test_who_was_held_waits_where_the_others_have_no_place() -> None:
    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        second = front.ask(100)
        await settle()
        front.put("b")
        other = [await front.ask(100, excluded=frozenset({A})) for _ in range(2)]
        front.leave("a", "lost")
        await settle()
        assert len(front.service.waiting.queue) == 1
        await front.answer(other[0])
        decision = await second
        assert decision.replica.id == B
        for each in (decision, other[1]):
            await front.answer(each)
        await front.service.release(first.lease, Outcome.UNREACHABLE)

    with_front(check, admission=AdmissionSettings(max_in_flight=2), feed_tokens=200)


def test_who_goes_away_leaves_nothing() -> None:
    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        waiting = [front.ask(100 + at) for at in range(5)]
        await settle()
        for each in waiting[1:4]:
            each.cancel()
        await settle()
        assert len(front.service.turns) == 2
        await front.answer(first)
        for each in (waiting[0], waiting[4]):
            await front.answer(await each)

    with_front(check)


@pytest.mark.parametrize("how", ["cancelled", "cancelled while nobody is left", "refused"])
def test_a_tenant_is_charged_for_nothing_that_was_not_sent(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("balancer.waiting.GRACE_SECONDS", 0.05 if how == "refused" else 60.0)

    async def check(front: Front) -> None:
        first = await front.ask(10_000, "large")
        yielding = front.service.yielding
        yielding.charge("small", 1.0, time.monotonic())
        before = yielding.seconds("large", Urgency.NORMAL, time.monotonic())
        held = [front.ask(1000, "large") for _ in range(5)]
        await settle()
        assert len(front.service.turns) == 5
        assert yielding.seconds("large", Urgency.NORMAL, time.monotonic()) == pytest.approx(before + 50, abs=1)
        if how != "cancelled":
            front.leave("a", "lost")
            await settle()
        if how != "refused":
            for each in held:
                each.cancel()
        assert len(await asyncio.gather(*held, return_exceptions=True)) == 5
        assert yielding.seconds("large", Urgency.NORMAL, time.monotonic()) == pytest.approx(before, abs=1)
        await front.service.release(first.lease, Outcome.ERROR)

    with_front(check)


@pytest.mark.parametrize(
    ("how", "charged"), [("cancelled", [700, -700]), ("moved", [700, 40]), ("waits again", [700, -700, 700, 40])]
)
def test_who_had_to_wait_pays_once_for_what_is_sent(how: str, charged: list[int]) -> None:
    async def check(front: Front) -> None:
        told: list[float] = []
        queue = front.service.waiting.queue
        charge, give_back = queue.charge, queue.give_back

        def note(claim: Claim, tokens: float) -> None:
            told.append(tokens)
            charge(claim, tokens)

        def note_back(claim: Claim, tokens: float) -> None:
            told.append(-tokens)
            give_back(claim, tokens)

        queue.charge, queue.give_back = note, note_back  # type: ignore[method-assign]
        first, second = await front.ask(10_000), front.ask(500)
        await settle()
        third = front.ask(700, prompt_lengths=(700,))
        await settle()
        assert len(queue) == 1
        second.cancel()
        await settle()
        assert (len(queue), len(front.service.turns)) == (0, 1)
        if how == "cancelled":
            third.cancel()
            await settle()
        else:
            if how == "moved":
                front.put("b")
            front.leave("a", "lost")
            await settle()
            front.put("b")
            decision = await third
            assert decision.replica.id == B
            await front.service.release(decision.lease, Outcome.OK, Truth(completion_tokens=40))
        assert told == charged
        await front.service.release(first.lease, Outcome.ERROR)

    with_front(check, admission=AdmissionSettings(max_in_flight=2))


def test_who_goes_away_in_the_moment_of_its_turn_leaves_nothing() -> None:
    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        second = front.ask(100)
        await settle()
        await front.answer(first)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await eventually(lambda: not front.service.router.fleet.open_leases)

    with_front(check)


def test_one_tenants_flood_is_passed_by_another() -> None:
    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        flood = [front.ask(500, "large") for _ in range(10)]
        await settle()
        other = front.ask(600, "small")
        urgent = front.ask(900, "large", Urgency.HIGH)
        await settle()
        order = []
        await front.answer(first)
        for _ in range(12):
            await settle()
            (done,) = [each for each in (*flood, other, urgent) if each.done() and each not in order]
            order.append(done)
            await front.answer(done.result())
        assert order[0] is urgent
        assert order.index(other) <= 2, "one of theirs was there before anybody else asked"

    with_front(check)


@pytest.mark.parametrize("how", ["lost", "drained", "removed"])
def test_all_who_wait_for_one_that_is_gone_go_elsewhere(how: str) -> None:
    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        others = [front.ask(100 + at) for at in range(200)]
        await settle()
        assert len(front.service.turns) == 200
        front.put("b")
        front.leave("a", how)
        for each in others:
            decision = await each
            assert decision.replica.id == B
            await front.answer(decision)
        await front.service.release(first.lease, Outcome.UNREACHABLE)

    with_front(check)


def test_the_turn_of_all_who_have_just_gone_is_the_next_ones() -> None:
    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        placed = [front.service.place(RouteRequest("m", size_hint=100 + at)) for at in range(4)]
        held = [each for each in placed if isinstance(each, asyncio.Future)]
        for each in held[:3]:
            each.cancel()
        front.service.started(first.lease)  # before any of them could say so
        assert held[3].done()
        await front.service.release(first.lease, Outcome.OK)
        await front.answer(await held[3])

    with_front(check)


def test_whose_place_and_turn_come_in_one_moment_is_lost_to_nobody() -> None:
    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        second, third = front.ask(500), front.ask(400)
        await settle()
        fourth = front.ask(10)
        await settle()
        assert (len(front.service.turns), len(front.service.waiting.queue)) == (2, 1)
        # The fourth has its place now, and is the shortest of those that are held.
        await front.service.release(first.lease, Outcome.ERROR)
        for each in (fourth, third, second):
            await front.answer(await each)

    with_front(check, admission=AdmissionSettings(max_in_flight=3))


def test_a_policy_that_fails_fails_its_own_request() -> None:
    async def check(front: Front) -> None:
        first = await front.ask(10_000)
        second, third = front.ask(100), front.ask(200)
        await settle()
        decide, failures = front.service.turns._decide, [ZeroDivisionError("of the policy")]

        def decide_or_fail(request: RouteRequest) -> Decision:
            if failures:
                raise failures.pop()
            return decide(request)

        front.service.turns._decide = decide_or_fail
        front.put("b")
        front.service.drain("a", Drain.ASKED)
        with pytest.raises(ZeroDivisionError):
            await second
        await front.answer(await third)
        await front.service.release(first.lease, Outcome.OK)

    with_front(check)


def test_who_waits_for_one_that_is_late_goes_to_another_and_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("balancer.fleet.OVERDUE_SECONDS", 0.05)
    monkeypatch.setattr("balancer.turns.AGAIN", 0.02)

    async def check(front: Front) -> None:
        first = await front.ask(10)
        waiting = [front.ask(20) for _ in range(3)]
        second = await waiting[0]  # sent when the first one should have been done
        assert len(front.service.turns) == 2
        front.put("b")
        third = await asyncio.wait_for(waiting[1], 10)
        younger = front.ask(20)
        await settle()
        assert not younger.done()
        await front.answer(third)
        fourth = await asyncio.wait_for(waiting[2], 10)
        assert not younger.done(), "it came later"
        await front.answer(fourth)
        fifth = await asyncio.wait_for(younger, 10)
        assert [each.replica.id for each in (first, second, third, fourth, fifth)] == [A, A, B, B, B]
        for each in (fifth, first, second):
            await front.answer(each)

    with_front(check)
