"""``balancer/fleet.py``: loads are the sums over open leases, and nothing but a lease changes them."""

import pytest

from balancer.fleet import Fleet, LiveReplica, Status
from indexer.index import ReplicaId
from tests.support.routing import replica

A = ReplicaId("a")


def fleet(*names: str) -> Fleet:
    made = Fleet()
    for name in names:
        made.put(replica(name))
    return made


def live(of: Fleet, name: str = "a") -> LiveReplica:
    found = of.get(ReplicaId(name))
    assert found is not None
    return found


def load(of: LiveReplica) -> tuple[int, int]:
    return of.in_flight, of.queued_tokens


def test_a_lease_counts_from_acquire_to_release() -> None:
    owner = fleet("a")
    first, second = owner.acquire(live(owner), 100, 100, 0.0), owner.acquire(live(owner), 30, 30, 0.0)
    assert load(live(owner)) == (2, 130)
    assert owner.open_leases == 2
    owner.release(first, 0.0)
    assert load(live(owner)) == (1, 30)
    owner.release(second, 0.0)
    assert load(live(owner)) == (0, 0)
    assert owner.open_leases == 0


def test_tokens_leave_the_queue_at_the_first_output_and_only_once() -> None:
    owner = fleet("a")
    lease = owner.acquire(live(owner), 100, 100, 0.0)
    owner.started(lease, 0.0)
    owner.started(lease, 0.0)
    assert load(live(owner)) == (1, 0)
    owner.release(lease, 0.0)
    assert load(live(owner)) == (0, 0)


def test_a_lease_cannot_be_released_twice() -> None:
    owner = fleet("a")
    lease = owner.acquire(live(owner), 100, 100, 0.0)
    owner.release(lease, 0.0)
    with pytest.raises(KeyError):
        owner.release(lease, 0.0)
    assert load(live(owner)) == (0, 0)


def test_an_output_that_comes_after_the_end_changes_nothing() -> None:
    owner = fleet("a")
    lease = owner.acquire(live(owner), 100, 100, 0.0)
    owner.release(lease, 0.0)
    owner.started(lease, 0.0)
    assert load(live(owner)) == (0, 0)


def test_health_and_news_never_touch_the_load() -> None:
    owner = fleet("a")
    owner.acquire(live(owner), 100, 100, 0.0)
    owner.set_status(A, Status.LOST)
    owner.set_status(A, Status.READY)
    owner.put(replica("a", max_model_len=77))
    assert load(live(owner)) == (1, 100)
    assert live(owner).replica.max_model_len == 77


def test_new_facts_do_not_bring_a_lost_replica_back() -> None:
    owner = fleet("a")
    owner.set_status(A, Status.LOST)
    owner.put(replica("a"))
    assert live(owner).status is Status.LOST


@pytest.mark.parametrize(("status", "is_available"), [("ready", True), ("lost", False)])
def test_only_a_ready_replica_takes_new_requests(status: str, is_available: bool) -> None:
    owner = fleet("a")
    owner.set_status(A, Status(status))
    assert live(owner).is_available() is is_available
    assert [each.replica.id for each in owner.serving("m")] == ["a"]


def test_leases_of_a_removed_replica_can_still_be_released() -> None:
    owner = fleet("a")
    lease = owner.acquire(live(owner), 100, 100, 0.0)
    owner.remove(A)
    owner.put(replica("a"))
    owner.release(lease, 0.0)
    assert load(live(owner)) == (0, 0), "the newcomer owes nothing of its namesake's work"


def test_a_status_of_nobody_is_ignored() -> None:
    owner = fleet("a")
    owner.set_status(ReplicaId("stranger"), Status.LOST)
    assert len(owner) == 1


def test_models_are_those_of_any_replica() -> None:
    owner = fleet("a")
    owner.put(replica("b", models=("z", "m")))
    assert owner.models() == ["m", "z"]
    assert [each.replica.id for each in owner.serving("z")] == ["b"]


def test_ranks_lie_behind_one_endpoint_in_whatever_state() -> None:
    owner = fleet("a", "b")
    owner.put(replica("a#1", endpoint=live(owner).replica.endpoint))
    owner.set_status(A, Status.LOST)
    assert [each.replica.id for each in owner.behind("http://a:8000")] == ["a", "a#1"]
    assert owner.behind("http://c:8000") == []


def test_later_leases_have_higher_numbers() -> None:
    owner = fleet("a", "b")
    first = owner.acquire(live(owner), 1, 1, 0.0)
    assert (live(owner).last_lease, live(owner, "b").last_lease) == (first, 0)
    assert owner.acquire(live(owner, "b"), 1, 1, 0.0) > first


def test_it_says_how_many_are_in_which_status() -> None:
    owner = fleet("a", "b")
    owner.set_status(A, Status.LOST)
    assert repr(owner) == "<Fleet 1 ready, 1 lost, 0 leases>"
