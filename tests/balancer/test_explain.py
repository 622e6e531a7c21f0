"""``balancer/explain.py``: the reason that is given is the reason there was."""

import msgspec
import pytest

from balancer.admission import AdmissionSettings
from balancer.core import Candidate, Decision, Failure, Fault, Outcome, RouteRequest
from balancer.explain import NO_SIGNAL, NotAsked, not_asked, seen, tiers, why
from balancer.fleet import Status
from balancer.policies.base import costs_of, make, unit_of
from balancer.router import Router
from indexer.events import BlockStored
from indexer.index import ReplicaId
from indexer.stream import Apply
from indexer.wire import Batch
from tests.support.routing import candidate, replica, request, stored

A, B = ReplicaId("a"), ReplicaId("b")
PROMPT = list(range(41))  # ten blocks of 4, and one token that is always computed


def told(policy: str, chosen: str, *candidates: Candidate) -> str:
    decision = Decision(
        lease=1,
        replica=replica(chosen),
        prompt_tokens=100,
        cached_tokens=0,
        is_predicted=False,
        knows_tokens=True,
        policy=policy,
        candidates=candidates,
    )
    return why(decision, costs_of(make(policy), candidates), unit_of(make(policy)))


@pytest.mark.parametrize(
    ("policy", "candidates", "expected"),
    [
        ("cache_aware", [candidate("a", cached=7)], "it is the only candidate"),
        ("cache_aware", [candidate("a"), candidate("b")], NO_SIGNAL),
        ("round_robin", [candidate("a"), candidate("b")], NO_SIGNAL),
        ("cache_aware", [candidate("b"), candidate("a", cached=64)], "it has the lowest cost, 36; next is b with 100"),
        (
            "cache_aware",
            [candidate("a", cached=50), candidate("b", queued=50, cached=100), candidate("c")],
            "it has the lowest cost, 50, as b; chance chose among them",
        ),
        (
            "cache_aware",
            [*(candidate(name, cached=50) for name in "abcdef"), candidate("z")],
            "it has the lowest cost, 50, as b, c, d and 2 more; chance chose among them",
        ),
        ("least_load", [candidate("a"), candidate("b", flight=2)], "it has the lowest cost, 0; next is b with 2"),
        (
            "least_load",
            [candidate("a", flight=2, queued=10), candidate("b", flight=2, queued=5000)],
            "it has the lowest cost, 2.00000001; next is b with 2.000005",
        ),
        ("round_robin", [candidate("a"), candidate("b", flight=2)], "round_robin weighs no costs; it has a rule of its own"),
        ("predicted_ttft", [candidate("a"), candidate("b")], NO_SIGNAL),
        (
            "predicted_ttft",
            [candidate("a", prompt=200, speed=100.0), candidate("b", prompt=200, speed=50.0)],
            "it has the lowest cost, 2 s; next is b with 4 s",
        ),
        (
            "predicted_ttft",
            [candidate("a", wait=1.0, speed=100.0), candidate("b", wait=2.0, speed=100.0)],
            "it has the lowest cost, 2 s; next is b with 3 s",
        ),
        (
            "predicted_ttft",
            [candidate("a", speed=100.0), candidate("b", flight=1, speed=100.0)],
            "it has the lowest cost, 1 s, as b, and the fewest requests in flight of these",
        ),
        (
            "predicted_ttft",
            [candidate("a", speed=100.0), candidate("b", flight=1, speed=100.0), candidate("c", speed=100.0)],
            "it has the lowest cost, 1 s, as c; chance chose among them",
        ),
        (
            "predicted_ttft",
            [candidate("a", speed=100.0, lean=3), candidate("b", speed=100.0, lean=1), candidate("c", speed=1.0)],
            "it has the lowest cost, 1 s, as b; the prompt leans to it",
        ),
    ],
)  # fmt: skip
def test_the_reason_is_one_sentence(policy: str, candidates: list[Candidate], expected: str) -> None:
    assert told(policy, "a", *candidates) == expected


def test_a_choice_against_the_costs_is_not_passed_off_as_the_cheapest() -> None:
    assert told("cache_aware", "a", candidate("a"), candidate("b", cached=64)) == (
        "cache_aware chose it at a cost of 100, though b costs 36"
    )


@pytest.mark.parametrize("name", ["cache_aware", "least_load"])
def test_the_lowest_cost_is_what_the_policy_chooses(name: str) -> None:
    policy = make(name)
    busy = [
        candidate(str(at), cached=cached, queued=queued, flight=flight)
        for at, (cached, queued, flight) in enumerate([(0, 0, 9), (90, 700, 1), (40, 0, 1), (96, 31, 4), (8, 70, 0)])
    ]
    costs = costs_of(policy, busy)
    assert costs is not None
    assert costs.count(min(costs)) == 1
    assert policy.choose(busy, 0.5) is busy[costs.index(min(costs))]


def test_the_cheapest_is_shown_first() -> None:
    shown = seen([candidate("b"), candidate("c", cached=7), candidate("a")], [3.0, 1.0, 3.0])
    assert [(each.replica, each.cost) for each in shown] == [("c", 1.0), ("a", 3.0), ("b", 3.0)]


def router(*events: tuple[ReplicaId, BlockStored]) -> Router:
    made = Router(make("cache_aware"), "cache_aware")
    for name in "ab":
        made.put(replica(name))
    for name, event in events:
        made.caches.observe(name, [Apply([Batch(0.0, [event])])])
    return made


def test_each_tier_tells_what_it_holds() -> None:
    whole, half = stored(PROMPT), stored(PROMPT[:20])
    over = router((A, half), (A, msgspec.structs.replace(whole, medium="CPU")), (B, stored([9] * 41)))
    wanted = request(PROMPT)
    decision = over.consider(wanted, 0.0, 0.5)
    assert tiers(over, wanted, decision.candidates) == {"a": {"GPU": 20, "CPU": 40}, "b": {}}


def test_who_is_no_candidate_is_told_with_why_and_with_what_it_holds() -> None:
    over = Router(make("cache_aware"), "cache_aware", admission=AdmissionSettings(max_in_flight=1))
    for name in "abcd":
        over.put(replica(name))
    over.caches.observe(A, [Apply([Batch(0.0, [stored(PROMPT)])])])
    wanted = request(PROMPT)
    assert not not_asked(over, wanted, over.consider(wanted, 0.0, 0.5).candidates)
    failed = over.route(request(PROMPT, excluded=frozenset(map(ReplicaId, "acd"))), 0.0, 0.5)
    over.release(failed.lease, Outcome.ERROR, 0.0, failure=Failure(Fault.STATUS, 503, retry_after=5))
    over.route(request(PROMPT, excluded=frozenset(map(ReplicaId, "abd"))), 0.0, 0.5)
    over.set_status(A, Status.LOST)
    told = not_asked(over, wanted, over.consider(wanted, 0.0, 0.5).candidates)
    assert told == [
        NotAsked(A, "lost", {"GPU": 40}),
        NotAsked(B, "resting", {}),
        NotAsked(ReplicaId("c"), "saturated", {}),
    ]


def test_what_is_only_expected_is_in_no_tier() -> None:
    over = router()
    lease = over.route(request(PROMPT), 0.0, 0.0)
    wanted = request(PROMPT)
    decision = over.consider(wanted, 0.0, 0.0)
    assert [each.cached_tokens for each in decision.candidates if each.replica == lease.replica.id] == [40]
    assert tiers(over, wanted, decision.candidates) == {"a": {}, "b": {}}


@pytest.mark.parametrize("wanted", [request(PROMPT, reads_cache=False), request(PROMPT, prompt_lengths=())])
def test_what_reads_no_cache_finds_nothing(wanted: RouteRequest) -> None:
    over = router((A, stored(PROMPT)))
    assert tiers(over, wanted, over.consider(wanted, 0.0, 0.5).candidates) == {"a": {}, "b": {}}


def test_considering_changes_nothing() -> None:
    over = router((A, stored(PROMPT)))
    for _ in range(3):
        decision = over.consider(request(PROMPT), 0.0, 0.5)
        assert (decision.lease, decision.replica.id, decision.cached_tokens) == (0, A, 40)
    assert over.fleet.open_leases == 0
    assert not over.caches.predicted
    assert {(live.in_flight, live.queued_tokens, live.last_lease) for live in over.fleet} == {(0, 0, 0)}


def test_what_a_candidate_was_thought_to_be_like_is_told() -> None:
    (shown,) = seen(
        [candidate("a", wait=1.5, speed=9_000.0, passed=3, turnover=60.0, usage=0.7, skipped=8, has_session=True)], None
    )
    told = (shown.wait_seconds, shown.tokens_per_second, shown.passed, shown.turnover_seconds, shown.usage)
    assert told == (1.5, 9_000.0, 3, 60.0, 0.7)
    assert (shown.skipped, shown.has_session) == (8, True)
    (plain,) = seen([candidate("a")], None)
    assert b"Infinity" not in msgspec.json.encode(plain)
    assert plain.turnover_seconds is msgspec.UNSET
