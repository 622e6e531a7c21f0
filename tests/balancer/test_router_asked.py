"""``balancer/router.py``: what a policy is told of the load, the request and the fleet, and what of it is no lie."""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from balancer.core import NOTHING_ASKED, Asked, Candidate, Decision, Outcome, RouteRequest
from balancer.explain import explain
from balancer.fleet import IDLE_BEFORE, MEMORY_SECONDS
from balancer.policies.base import Policy, make
from balancer.router import Router
from hashing.chain import Chain
from indexer.events import BlockStored
from indexer.index import ReplicaId
from indexer.stream import Apply
from indexer.wire import Batch
from tests.support.routing import RECIPE, replica, request, stored

A, B = ReplicaId("a"), ReplicaId("b")
PROMPT = list(range(100, 141))  # 41 tokens: ten full blocks and one token

KNOWN = 1 - math.exp(-IDLE_BEFORE / MEMORY_SECONDS)
"""How much of the minute is known in the first moment."""


class Told(msgspec.Struct):
    """Chooses the first, and keeps what it was asked."""

    reads_prompt: bool = False
    counts_expected: bool = True
    asked: list[Asked] = []

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        self.asked.append(asked)
        return candidates[0]


def router(policy: Policy, *names: str) -> Router:
    made = Router(policy, "told")
    for name in names or ("a", "b"):
        made.put(replica(name, num_gpu_blocks=100))
    return made


def hold(owner: Router, name: ReplicaId, event: BlockStored) -> None:
    owner.caches.observe(name, [Apply([Batch(0.0, [event])])])


def route(owner: Router, wanted: RouteRequest, now: float = 0.0) -> Decision:
    return owner.route(wanted, now, 0.0)


def test_the_load_of_each_is_told() -> None:
    owner = router(Told())
    first, second = route(owner, request(PROMPT)), route(owner, request([7] * 81))
    owner.started(first.lease, 0.001)
    one, two = route(owner, request([8] * 9), 0.002).candidates
    assert (one.replica, one.waiting, one.in_flight) == (A, 1, 2)
    assert one.active_tokens == 41 + 81
    assert one.wait == pytest.approx(0.001 + 81 / one.speed - 0.002)
    assert one.room_tokens == two.room_tokens == 100 * 4
    assert (two.waiting, two.active_tokens, two.wait) == (0, 0, 0.0)
    assert second.replica.id == A


def test_a_cache_of_unknown_size_has_no_room_that_anybody_knows() -> None:
    owner = Router(Told(), "told")
    owner.put(replica("a"))
    owner.put(replica("b", recipe=None, num_gpu_blocks=100))
    assert [each.room_tokens for each in route(owner, request(PROMPT)).candidates] == [0, 0]


def test_where_a_conversation_was_sent_last_is_told() -> None:
    owner = router(make("session_sticky"))
    for session in (1, 2, 3, 0):
        first = route(owner, request(PROMPT, session=session))
        again = route(owner, request([5] * 9, session=session))
        there = [each.replica for each in again.candidates if each.has_session]
        assert there == ([first.replica.id] if session else [])
        assert not session or again.replica.id == first.replica.id


def test_a_conversation_of_a_replica_that_is_gone_begins_anew() -> None:
    owner = router(make("session_sticky"))
    gone = route(owner, request(PROMPT, session=5)).replica
    owner.remove(gone.id)
    owner.put(gone)
    assert not any(each.has_session for each in route(owner, request(PROMPT, session=5)).candidates)


def test_considering_sends_nothing() -> None:
    owner = router(make("session_sticky"))
    owner.consider(request(PROMPT, session=5), 0.0, 0.0)
    assert not any(each.has_session for each in route(owner, request(PROMPT, session=5)).candidates)
    assert owner.fleet.utilisation(next(iter(owner.fleet)), 0.0) == pytest.approx(41 / 10_000 / 60 / 2 / KNOWN)


def test_the_prompt_is_told_to_those_who_read_it_in_the_keys_of_one_replica() -> None:
    policy = Told(reads_prompt=True, asked=[])
    owner = router(policy)
    route(owner, request(PROMPT, session=3))
    (asked,) = policy.asked
    keys = Chain(RECIPE, PROMPT).keys(10)
    assert (asked.session, asked.block_size) == (3, 4)
    assert asked.beginning(8) == keys[1]
    assert asked.beginning(10_000) == keys[9]


def test_the_prompt_is_not_told_to_others() -> None:
    policy = Told(asked=[])
    route(router(policy), request(PROMPT, session=3))
    assert policy.asked == [Asked(3)]


def test_tokens_that_nobody_knows_have_no_keys() -> None:
    policy = Told(reads_prompt=True, asked=[])
    owner = router(policy)
    route(owner, request(size_hint=100, session=3))
    route(owner, RouteRequest("m", prompt_lengths=(9,)))
    assert [each.chain for each in policy.asked] == [None, None]


def test_how_busy_the_fleet_is_is_told() -> None:
    for reads_prompt in (False, True):
        policy = Told(reads_prompt=reads_prompt, asked=[])
        owner = router(policy)
        live = owner.fleet.get(A)
        assert live is not None
        live.fix_speed(1.0)
        for wanted in (request(PROMPT), request(PROMPT), request(size_hint=5)):
            route(owner, wanted)
        assert [each.utilisation for each in policy.asked] == pytest.approx([0, 41 / 120 / KNOWN, 42 / 120 / KNOWN])


def test_what_is_expected_counts_only_for_those_who_count_it() -> None:
    for counts in (True, False):
        owner = router(Told(counts_expected=counts))
        route(owner, request(PROMPT))
        again = route(owner, request(PROMPT))
        assert again.candidates[0].cached_tokens == (40 if counts else 0)


def test_what_events_have_told_counts_for_everybody() -> None:
    owner = router(Told(counts_expected=False))
    hold(owner, A, stored(PROMPT))
    assert route(owner, request(PROMPT)).candidates[0].cached_tokens == 40


def test_what_is_queued_is_what_the_engine_will_compute_whatever_the_policy_looks_at() -> None:
    owner = router(Told(counts_expected=False))
    route(owner, request(PROMPT))
    again = route(owner, request(PROMPT))
    assert again.cached_tokens == 40, "the engine will hold them by then"
    live = owner.fleet.get(A)
    assert live is not None
    assert live.queued_tokens == 41 + 1


def talk(owner: Router, *lengths: int, session: int = 0, first: int = 0) -> list[ReplicaId]:
    """The turns of one conversation, each after the other has ended; where they were sent."""
    chosen = []
    for tokens in lengths:
        decision = route(owner, request([1000 + first + at for at in range(tokens)], session=session))
        hold(owner, decision.replica.id, stored([1000 + first + at for at in range(tokens)]))
        owner.started(decision.lease, 0.0)
        owner.release(decision.lease, Outcome.OK, 0.0)
        chosen.append(decision.replica.id)
    return chosen


@pytest.mark.parametrize("session", [0, 5])
def test_a_conversation_stays_where_it_is_although_another_replica_has_long_had_nothing(session: int) -> None:
    owner = router(make("predicted_ttft"))
    assert len(set(talk(owner, *range(40, 440, 8), session=session))) == 1


def test_who_begins_anew_behind_the_same_beginning_tries_who_has_long_had_nothing() -> None:
    owner = router(make("predicted_ttft"))
    (home,) = set(talk(owner, *range(40, 240, 8)))
    other = request([*range(1000, 1040), *range(9000, 9050)])
    assert route(owner, other).replica.id != home


def test_one_client_alone_uses_all_replicas() -> None:
    owner = router(make("predicted_ttft"))
    homes = [set(talk(owner, 40, 60, 80, first=1000 * each)) for each in range(100)]
    assert all(len(home) == 1 for home in homes)
    counts = Counter(next(iter(home)) for home in homes)
    assert min(counts[A], counts[B]) > 30


def test_of_one_that_was_found_slow_less_is_told_that_it_was_passed_over() -> None:
    owner = router(Told())
    slow = owner.fleet.get(B)
    assert slow is not None
    slow.prefill.patience = 2
    assert [route(owner, request(PROMPT)).candidates[1].skipped for _ in range(5)] == [0, 0, 1, 1, 2]


def test_an_explanation_weighs_as_the_choice_did() -> None:
    """A price that depends on how busy the fleet was is that of the moment."""
    owner = router(make("predicted_ttft", {"max_price": 10.0}))
    hold(owner, A, stored(PROMPT))
    for name in "ab":
        live = owner.fleet.get(ReplicaId(name))
        assert live is not None
        live.fix_speed(10.0)
        lease = owner.fleet.acquire(live, 900, 900, 0.0)
        owner.fleet.started(lease, 0.0)
    live = owner.fleet.get(A)
    assert live is not None
    owner.fleet.acquire(live, 100, 100, 0.0)  # ten seconds to wait, against 4.1 to compute
    decision = route(owner, request(PROMPT))
    assert decision.replica.id == A, "with a price of ten"
    told = explain(decision, owner.policy, request_id="", time=0.0, path="/", model="m", views=owner.caches.views(0.0))
    assert told.why == "it has the lowest cost, 21.5 s; next is b with 41 s", "its wait, its price, another in flight"
