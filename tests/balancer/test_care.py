"""``balancer/care.py``: an engine that stands still is left out while it does, and told as what it is."""

from balancer.care import Care
from balancer.core import Outcome
from balancer.policies.cache_aware import CacheAware
from balancer.router import Router
from balancer.settings import Settings
from balancer.signals import Sign, Signal
from indexer.index import ReplicaId
from tests.support.routing import replica, request

A, B = ReplicaId("a"), ReplicaId("b")
PROMPT = list(range(41))


class Stream:
    arrived = 1


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
        care.tick(now)
    assert (offered(router, 29.0), care.ejected()) == ({A, B}, {})
    care.tick(30.0)
    assert offered(router, 30.0) == {B}
    assert care.ejected() == {A: "nothing has come from it for 30 s, though it has work"}
    live = router.fleet.get(A)
    assert live is not None
    assert care.signs(live, None, 0) == [Sign(Signal.STALL, care.ejected()[A])]
    stream.arrived = 2
    care.tick(31.0)
    assert (offered(router, 31.0), care.ejected(), care.signs(live, None, 0)) == ({A, B}, {}, [])
    router.release(lease, Outcome.OK, 32.0)
