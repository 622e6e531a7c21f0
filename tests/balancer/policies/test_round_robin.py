"""``policies/round_robin.py``: everyone in turn, newcomers and absentees included."""

from balancer.core import Outcome
from balancer.fleet import Status
from balancer.policies.round_robin import RoundRobin
from balancer.router import Router
from indexer.index import ReplicaId
from tests.support.routing import replica, request


def chosen(router: Router, count: int) -> str:
    names = ""
    for _ in range(count):
        decision = router.route(request([1] * 9), 0.0, 0.5)
        router.release(decision.lease, Outcome.OK, 0.0)
        names += decision.replica.id
    return names


def fleet(names: str) -> Router:
    router = Router(RoundRobin(), "round_robin")
    for name in names:
        router.put(replica(name))
    return router


def test_everyone_has_a_turn_before_anyone_has_two() -> None:
    assert chosen(fleet("abc"), 7) == "abcabca"


def test_who_was_away_and_who_is_new_come_next() -> None:
    router = fleet("abc")
    assert chosen(router, 2) == "ab"
    router.set_status(ReplicaId("c"), Status.LOST)
    assert chosen(router, 2) == "ab"
    router.set_status(ReplicaId("c"), Status.READY)
    router.put(replica("d"))
    assert chosen(router, 5) == "cdabc"
