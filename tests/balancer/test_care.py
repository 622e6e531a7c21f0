"""``balancer/care.py``: an engine that stands still is left out while it does, and told as what it is."""

from balancer.care import Care
from balancer.core import Outcome
from balancer.fleet import Status
from balancer.policies.cache_aware import CacheAware
from balancer.router import Router
from balancer.settings import Settings
from balancer.signals import Sign, Signal
from indexer.index import ReplicaId
from tests.support.routing import replica, request

A, B = ReplicaId("a"), ReplicaId("b")
PROMPT = list(range(41))


class Stream:
    def __init__(self, arrived: int = 1) -> None:
        self.arrived = arrived

    def leave(self) -> None: ...


def offered(router: Router, now: float) -> set[str]:
    return {each.replica for each in router.consider(request(PROMPT), now, 0.0).candidates}


def test_a_stalled_engine_gets_nothing_until_it_moves() -> None:
    router = Router(CacheAware(), "cache_aware")
    for name in "ab":
        router.put(replica(name))
    care, stream = Care(router, Settings()), Stream()
    lease = router.route(request(PROMPT, excluded=frozenset({B})), 0.0, 0.0).lease
    care.stalls.sent(lease, A, stream)
    for now in range(30):
        assert care.tick(now) == []
    assert (offered(router, 29.0), care.ejected()) == ({A, B}, {})
    assert care.tick(30.0) == [stream], "it is to leave, if it can"
    assert offered(router, 30.0) == {B}
    assert care.ejected() == {A: "nothing has come from it for 30 s, though it has work"}
    live = router.fleet.get(A)
    assert live is not None
    assert care.signs(live, None, 0) == [Sign(Signal.STALL, care.ejected()[A])]
    stream.arrived = 2
    assert care.tick(31.0) == []
    assert (offered(router, 31.0), care.ejected(), care.signs(live, None, 0)) == ({A, B}, {}, [])
    router.release(lease, Outcome.OK, 32.0)


def test_what_waits_at_a_lost_replica_is_to_leave_unless_something_comes() -> None:
    router = Router(CacheAware(), "cache_aware")
    for name in "ab":
        router.put(replica(name))
    care, waiting, elsewhere = Care(router, Settings()), Stream(0), Stream(0)
    care.stalls.sent(1, A, waiting)
    care.stalls.sent(2, B, elsewhere)
    assert [care.tick(now) for now in (0.0, 1.0, 100.0)] == [[], [], []], "a prefill may be long"
    router.set_status(A, Status.LOST)
    assert care.tick(101.0) == [waiting]
    assert care.tick(102.0) == [waiting], "as long as it waits there"
    waiting.arrived = 1
    assert [care.tick(now) for now in (103.0, 104.0)] == [[], []]
    assert care.tick(105.0) == [waiting], "nothing has come for as long as a probe may take"
    router.set_status(A, Status.READY)
    assert care.tick(106.0) == []
