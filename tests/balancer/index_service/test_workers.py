"""``balancer/index_service/workers.py``: each publisher's steps reach its own replicas, whatever comes and goes."""

from typing import Any

import msgspec
import pytest

from balancer.caches import Caches
from balancer.core import PrefixHashes, Replica
from balancer.errors import Conflict, UnknownInstance, UnknownModel
from balancer.index_service import answers
from balancer.index_service import workers as workers_module
from balancer.index_service.bodies import Query, Registration, Scope, Unregistration
from balancer.index_service.workers import Status, Subscription, Workers
from balancer.prefixes import GivenKeys
from hashing.recipes import Recipe
from indexer.events import AllBlocksCleared, KVEvent
from indexer.stream import Apply, Forget, Lost, Standing
from indexer.wire import Batch
from tests.support.routing import RANDOM, request, told

PROMPT = list(range(41))
SCOPE = Scope("m")
COMPLETE = Standing(is_connected=True, is_complete=True)


def registration(instance: int | str = 1, rank: int = 0, scope: Scope = SCOPE, **changes: object) -> Registration:
    fields = {"endpoint": "tcp://h:1", "replay": "tcp://h:2", "block_size": 4, **changes}
    return Registration(scope, instance, rank, **fields)  # type: ignore[arg-type]


def crew() -> Workers:
    return Workers(Caches())


def joined(workers: Workers, *args: object, **changes: object) -> Subscription:
    subscription = workers.register(registration(*args, **changes))  # type: ignore[arg-type]
    assert subscription is not None
    return subscription


def batches(*events: KVEvent, rank: int | None = None) -> Apply:
    return Apply([Batch(0.0, list(events), rank)])


def scores(workers: Workers, scope: Scope = SCOPE) -> dict[str, dict[str, int]]:
    return answers.scores(workers, Query(scope, b"[]"), request(PROMPT).hashes, 0.0).scores


def own(subscription: Subscription) -> Replica:
    return subscription.replicas[subscription.registration.rank]


def test_a_scope_answers_for_its_own_instances_alone() -> None:
    workers = crew()
    for instance, scope in ((1, SCOPE), (1, Scope("n")), (1, Scope("m", "t")), (2, Scope("m", "t"))):
        workers.observe(joined(workers, instance, 0, scope).id, batches(told(PROMPT, RANDOM)))
    assert scores(workers) == scores(workers, Scope("n")) == {"1": {"0": 40}}
    assert scores(workers, Scope("m", "t")) == {"1": {"0": 40}, "2": {"0": 40}}
    with pytest.raises(UnknownModel, match="no instance of model 'x' is registered for tenant 'default'"):
        scores(workers, Scope("x"))


def test_the_same_registration_twice_is_one_and_another_in_its_place_is_refused() -> None:
    workers = crew()
    joined(workers)
    assert workers.register(registration()) is None
    for changes, told_as in (
        ({"endpoint": "tcp://h:9"}, "with endpoint tcp://h:1"),
        ({"replay": None, "block_size": 16}, "with replay_endpoint tcp://h:2 and with block_size 4"),
        ({"topic": "kv"}, "without topic"),
        ({"recipe": Recipe.for_version("0.32.0", block_size=4)}, "without vllm_version"),
    ):
        with pytest.raises(
            Conflict, match=f"instance 1 dp_rank 0 is already registered {told_as}; unregister it first"
        ):
            workers.register(registration(**changes))
    with pytest.raises(Conflict, match="with instance_id 1; "):
        workers.register(registration("1"))
    joined(workers, 1, 1)
    assert len(workers) == 2


def test_publishers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(workers: Workers, remedy: str) -> None:
        joined(workers, 1)
        joined(workers, 2)
        with pytest.raises(Conflict, match=f"2 publishers are registered, which is the most; {remedy}"):
            joined(workers, 3)

    is_full(Workers(Caches(), 2), "unregister some first, or let kvlb open more files")
    monkeypatch.setattr(workers_module, "MAX_SUBSCRIPTIONS", 2)
    is_full(Workers(Caches(), 3), "unregister some first$")


def test_what_is_still_queued_for_one_registration_never_reaches_the_next() -> None:
    workers = crew()
    old = joined(workers)
    assert [each.id for each in workers.unregister(Unregistration(SCOPE, 1, None))] == [old.id]
    new = joined(workers)
    workers.observe(old.id, batches(told(PROMPT, RANDOM)))
    workers.observe(old.id, COMPLETE)
    assert scores(workers) == {}
    assert workers.status(new, own(new), 0.0)[0] is Status.PENDING
    workers.caches.index.check()


def test_one_rank_or_all_can_be_unregistered() -> None:
    workers = crew()
    for rank in (0, 1, 2):
        workers.observe(joined(workers, 1, rank).id, batches(told(PROMPT, RANDOM)))
    workers.unregister(Unregistration(SCOPE, "1", 1))
    assert scores(workers) == {"1": {"0": 40, "2": 40}}
    with pytest.raises(UnknownInstance, match="instance 1 dp_rank 1 of m is not registered"):
        workers.unregister(Unregistration(SCOPE, 1, 1))
    workers.unregister(Unregistration(SCOPE, 1, None))
    assert (len(workers), len(workers.replicas())) == (0, 0)
    with pytest.raises(UnknownModel):
        scores(workers)


def test_batches_of_several_ranks_are_sorted_in_their_order() -> None:
    workers = crew()
    subscription = joined(workers, 1, 1)
    other = list(range(100, 117))
    workers.observe(
        subscription.id,
        Apply(
            [
                Batch(0.0, [told(PROMPT, RANDOM)], 1),
                Batch(0.1, [told(other, RANDOM)], 3),
                Batch(0.2, [told(PROMPT, RANDOM)], 3),
                Batch(0.3, [told(other, RANDOM)], None),
            ]
        ),
    )
    assert scores(workers) == {"1": {"1": 40, "3": 40}}
    blocks = {rank: workers.caches.index.gpu.blocks(each.id) for rank, each in subscription.replicas.items()}
    assert blocks == {1: 14, 3: 14}


def test_a_rank_that_cannot_be_one_is_filed_under_the_registered_one_and_told() -> None:
    workers = crew()
    subscription = joined(workers)
    workers.observe(subscription.id, batches(told(PROMPT, RANDOM), rank=5_000))
    assert scores(workers) == {"1": {"0": 40}}
    (worker,) = answers.listing(workers, 0.0)
    assert worker["listeners"]["0"]["warnings"] == ["1 batch with a rank that cannot be one; filed under 0"]


def test_a_rank_that_appears_later_stands_as_its_publisher_does() -> None:
    workers = crew()
    subscription = joined(workers)
    for step in (Lost(0, 4), COMPLETE, batches(told(PROMPT, RANDOM), rank=3)):
        workers.observe(subscription.id, step)
    assert [status for status, _ in workers.statuses(0.0)] == [Status.SUSPECT] * 2
    workers.observe(subscription.id, Forget("another life"))
    assert scores(workers) == {}
    assert [status for status, _ in workers.statuses(0.0)] == [Status.ACTIVE] * 2


def test_a_listener_stands_as_far_as_it_can_be_believed() -> None:
    workers = crew()
    subscription = joined(workers)

    def status() -> Status:
        return workers.status(subscription, own(subscription), 0.0)[0]

    assert status() is Status.PENDING
    workers.observe(subscription.id, Standing(is_connected=True))
    assert status() is Status.PENDING, "its past is still being asked for"
    workers.observe(subscription.id, COMPLETE)
    assert status() is Status.ACTIVE, "an engine that has told nothing holds nothing"
    workers.observe(subscription.id, batches(told(PROMPT, RANDOM)))
    assert status() is Status.ACTIVE
    workers.observe(subscription.id, Standing(is_connected=True, problem="publishes under another topic"))
    assert status() is Status.SUSPECT
    workers.observe(subscription.id, COMPLETE)
    workers.observe(subscription.id, Lost(1, 1))
    assert status() is Status.SUSPECT
    workers.observe(subscription.id, batches(AllBlocksCleared()))
    assert status() is Status.ACTIVE, "whatever was lost, its cache began empty again"
    workers.observe(subscription.id, Standing())
    assert status() is Status.DISCONNECTED


def test_a_rank_that_is_named_after_losses_may_miss_any_of_them() -> None:
    workers = crew()
    subscription = joined(workers)
    for step in (COMPLETE, Lost(1, 2), Lost(5, 7), batches(AllBlocksCleared()), batches(told(PROMPT, RANDOM), rank=3)):
        workers.observe(subscription.id, step)
    lost = {rank: workers.caches.losses[replica.id].batches for rank, replica in subscription.replicas.items()}
    assert lost == {0: 0, 3: 5}


def test_an_answer_says_what_may_be_wrong_with_it() -> None:
    workers = crew()
    subscription = joined(workers)
    for step in (COMPLETE, batches(told(PROMPT, RANDOM))):
        workers.observe(subscription.id, step)
    query = Query(SCOPE, b"[]")

    def asked(hashes: PrefixHashes) -> Any:
        return msgspec.to_builtins(answers.scores(workers, query, hashes, 0.0))

    whole = asked(request(PROMPT).hashes)
    assert whole == {
        "scores": {"1": {"0": 40}},
        "frequencies": (),
        "instances": {"1": {"longest_matched": 40, "gpu": 40, "dp": {"0": 40}, "cpu": 40, "disk": 40}},
    }
    assert asked(GivenKeys([1, 2, 3])) == {"scores": {}, "frequencies": (), "instances": {}}
    workers.observe(subscription.id, Standing())
    doubtful = asked(request(PROMPT).hashes)
    status = {"0": "disconnected: its event publisher cannot be reached"}
    assert (doubtful["scores"], doubtful["instances"]) == ({}, {"1": {**whole["instances"]["1"], "status": status}})
    nothing = asked(GivenKeys([1, 2, 3]))["instances"]["1"]
    assert (nothing["longest_matched"], nothing["status"]) == (0, status), (
        "who cannot be asked is told, whatever it holds"
    )


def test_the_listing_has_the_block_size_that_is_in_use() -> None:
    workers = crew()
    subscription = joined(workers, block_size=None)
    assert answers.listing(workers, 0.0)[0]["block_size"] == 0
    workers.observe(subscription.id, batches(told(PROMPT, RANDOM)))
    assert answers.listing(workers, 0.0)[0]["block_size"] == 4


def test_the_listing_shows_the_worst_of_an_instance() -> None:
    workers = crew()
    for rank, step in ((0, COMPLETE), (1, Standing())):
        workers.observe(joined(workers, "pod", rank, replay=None).id, step)
    (worker,) = answers.listing(workers, 0.0)
    assert (worker["instance_id"], worker["status"], worker["block_size"]) == ("pod", "pending", 4)
    assert worker["endpoints"] == {"0": "tcp://h:1", "1": "tcp://h:1"}
    assert [each["status"] for each in worker["listeners"].values()] == ["active", "pending"]
    assert worker["listeners"]["0"]["warnings"] == [
        "no replay_endpoint: what was cached before the registration is unknown, and lost events stay lost"
    ]
