"""``balancer/router.py``: who is new, ill, busy or on its way out gets what it can bear; a request finds whoever is left."""

import math

import pytest

from balancer.core import Decision, Failure, Fault, Outcome
from balancer.ejection import EjectionSettings
from balancer.errors import Contended, NoReplica
from balancer.fleet import Drain, Status
from balancer.policies.cache_aware import CacheAware
from balancer.policies.least_load import LeastLoad
from balancer.policies.predicted_ttft import PredictedTtft
from balancer.policies.round_robin import RoundRobin
from balancer.router import MAX_REST, Router
from balancer.slow_start import SlowStartSettings
from indexer.index import ReplicaId
from tests.support.routing import candidate, replica, request

A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")
PROMPT = list(range(41))
BROKEN = Failure(Fault.RESET)


def router(*names: str, seconds: float = 0.0, **ejection: float) -> Router:
    made = Router(
        CacheAware(),
        "cache_aware",
        ejection=EjectionSettings(**{"consecutive_failures": 2, "pause_seconds": 10.0, **ejection}),  # type: ignore[arg-type]
        slow_start=SlowStartSettings(seconds=seconds),
    )
    for name in names:
        made.put(replica(name))
    return made


def ask(owner: Router, now: float = 0.0, excluded: frozenset[ReplicaId] = frozenset()) -> Decision:
    return owner.route(request(PROMPT, excluded=excluded), now, 0.0)


def fail(owner: Router, replica: ReplicaId, now: float = 0.0, failure: Failure = BROKEN) -> None:
    others = frozenset(live.replica.id for live in owner.fleet) - {replica}
    owner.release(ask(owner, now, others).lease, Outcome.ERROR, now, failure=failure)


def offered(owner: Router, now: float = 0.0) -> set[str]:
    return {each.replica for each in owner.consider(request(PROMPT), now, 0.0).candidates}


def status(owner: Router, name: ReplicaId = A) -> Status:
    live = owner.fleet.get(name)
    assert live is not None
    return owner.status(live)


# Ejection


def test_a_replica_that_fails_is_left_out_until_one_request_has_shown_that_it_is_well() -> None:
    owner = router("a", "b", "c")
    fail(owner, A)
    assert offered(owner) == {A, B, C}
    fail(owner, A)
    assert offered(owner) == {B, C}
    assert status(owner) is Status.EJECTED
    assert offered(owner, 10.0) == {A, B, C}
    trial = ask(owner, 10.0, frozenset({B, C}))
    assert offered(owner, 10.0) == {B, C}
    owner.started(trial.lease, 10.0)
    assert offered(owner, 10.0) == {A, B, C}
    assert status(owner) is Status.READY
    owner.release(trial.lease, Outcome.OK, 11.0)


def test_cancelled_requests_and_clients_errors_say_nothing() -> None:
    owner = router("a", "b")
    for _ in range(9):
        decision = ask(owner, excluded=frozenset({B}))
        owner.release(decision.lease, Outcome.CANCELLED, 0.0)
        decision = ask(owner, excluded=frozenset({B}))
        owner.release(decision.lease, Outcome.ERROR, 0.0)
    assert offered(owner) == {A, B}


def test_a_request_goes_to_an_ejected_replica_rather_than_nowhere() -> None:
    owner = router("a", "b")
    fail(owner, A)
    fail(owner, A)
    assert offered(owner) == {B}
    assert ask(owner, excluded=frozenset({B})).replica.id == A
    owner.set_status(B, Status.LOST)
    assert ask(owner).replica.id == A
    owner.set_status(A, Status.LOST)
    with pytest.raises(NoReplica):
        ask(owner)


def test_what_was_there_before_is_not_held_against_a_newcomer_of_the_same_name() -> None:
    owner = router("a", "b")
    old = [ask(owner, excluded=frozenset({B})) for _ in range(5)]
    owner.remove(A)
    owner.put(replica("a"))
    owner.release(ask(owner, excluded=frozenset({B})).lease, Outcome.CANCELLED, 0.0)
    for decision in old:
        owner.release(decision.lease, Outcome.ERROR, 0.0, failure=BROKEN)
    assert offered(owner) == {A, B}


# Rest


def test_a_replica_that_asks_for_a_rest_gets_it() -> None:
    owner = router("a", "b")
    fail(owner, A, failure=Failure(Fault.STATUS, 503, retry_after=7.0))
    assert offered(owner, 6.9) == {B}
    assert offered(owner, 7.0) == {A, B}


def test_where_all_rest_the_client_is_told_how_long() -> None:
    owner = router("a", "b")
    fail(owner, A, failure=Failure(Fault.STATUS, 503, retry_after=7.0))
    fail(owner, B, failure=Failure(Fault.STATUS, 503, retry_after=3.2))
    with pytest.raises(Contended) as told:
        ask(owner, 1.0)
    assert (told.value.status, told.value.retry_after) == (429, math.ceil(2.2))
    assert ask(owner, 3.3).replica.id == B


def test_nobody_rests_for_ever() -> None:
    owner = router("a")
    fail(owner, A, failure=Failure(Fault.STATUS, 503, retry_after=1e9))
    assert offered(owner, MAX_REST) == {A}


# Draining


def test_nobody_who_is_held_for_it_is_sent_while_a_replica_rests() -> None:
    owner = Router(PredictedTtft(small_tokens=0, feed_tokens=0), "predicted_ttft")
    owner.put(replica("a"))
    live = owner.fleet.get(A)
    assert live is not None
    live.fix_speed(10.0)
    first, second = ask(owner), ask(owner)
    owner.release(first.lease, Outcome.ERROR, 1.0, failure=Failure(Fault.STATUS, 503, retry_after=7.0))
    assert (owner.dispatch(7.9), owner.stranded(7.9)) == ([], [second.lease])
    assert (owner.stranded(8.1), owner.dispatch(8.1)) == ([], [second.lease])


@pytest.mark.parametrize("why", Drain)
def test_a_replica_that_drains_gets_nothing_new_and_ends_what_it_has(why: Drain) -> None:
    owner = router("a", "b")
    running = ask(owner, excluded=frozenset({B}))
    owner.fleet.drain(A, why)
    assert (offered(owner), status(owner)) == ({B}, Status.DRAINING)
    assert owner.fleet.departed() == []
    owner.release(running.lease, Outcome.OK, 1.0)
    assert owner.fleet.departed() == ([A] if why is Drain.LEAVING else [])


def test_a_drained_replica_is_never_a_last_resort() -> None:
    owner = router("a")
    owner.fleet.drain(A, Drain.ASKED)
    with pytest.raises(NoReplica):
        ask(owner)
    owner.set_status(A, Status.LOST)
    owner.set_status(A, Status.READY)
    owner.put(replica("a"))
    assert status(owner) is Status.DRAINING, "an operator's word outlives a restart"
    owner.fleet.drain(A, None)
    assert ask(owner).replica.id == A


# Slow start


def shares(owner: Router, now: float) -> dict[str, float]:
    return {each.replica: each.share for each in owner.consider(request(PROMPT), now, 0.0).candidates}


def test_who_is_new_and_who_is_back_begins_with_little() -> None:
    owner = router("a", "b", seconds=10.0)
    owner.tick(0.0)
    assert shares(owner, 0.0) == {"a": 1.0, "b": 1.0}
    owner.put(replica("c"))
    owner.tick(100.0)
    assert shares(owner, 105.0) == {"a": 1.0, "b": 1.0, "c": 0.5}
    owner.set_status(B, Status.LOST)
    owner.tick(200.0)
    owner.set_status(B, Status.READY)
    owner.tick(300.0)
    assert shares(owner, 302.0) == {"a": 1.0, "b": 0.2, "c": 1.0}


def test_an_ejected_replica_that_is_back_begins_with_little_too() -> None:
    owner = router("a", "b", seconds=10.0)
    owner.tick(0.0)
    fail(owner, A, 100.0)
    fail(owner, A, 100.0)
    owner.tick(100.0)
    owner.release(ask(owner, 200.0, frozenset({B})).lease, Outcome.OK, 200.0)
    owner.tick(200.0)
    assert shares(owner, 205.0) == {"a": 0.5, "b": 1.0}


def test_work_weighs_more_where_the_share_is_small() -> None:
    small = candidate("a", flight=1, queued=1, share=0.1)
    old = candidate("b", flight=4, queued=4)
    assert LeastLoad().choose([small, old], 0.0).replica == "b"
    assert CacheAware().choose([small, old], 0.0).replica == "b"
    assert CacheAware().choose([candidate("a", share=0.1), old], 0.0).replica == "a", "it gets something"


def test_in_turn_but_not_in_every_turn() -> None:
    small, old = candidate("a", share=0.25), candidate("b")
    chosen = [RoundRobin().choose([small, old], draw / 100).replica for draw in range(100)]
    assert chosen.count(A) == 25
