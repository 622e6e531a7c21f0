"""``balancer/decisions.py``: what was decided can be told afterwards, within a bound, and without what was asked."""

import msgspec

from balancer.core import Decision, Knowledge, Outcome, Truth
from balancer.decisions import MAX_ID, NOBODY, DecisionLog, Origin, Salts
from balancer.knowledge import View
from balancer.policies.base import make
from balancer.speeds import PREFILL_SPEED
from indexer.index import ReplicaId
from tests.support.routing import candidate, replica

A, B = ReplicaId("a"), ReplicaId("b")
POLICY = make("cache_aware")


def decision(lease: int) -> Decision:
    return Decision(
        lease=lease,
        replica=replica("a"),
        prompt_tokens=100,
        cached_tokens=64,
        is_predicted=True,
        knows_tokens=True,
        policy="cache_aware",
        candidates=(
            msgspec.structs.replace(candidate("b"), knowledge=Knowledge.BLIND),
            candidate("a", cached=64, flight=1),
        ),
    )


def filled(count: int, at_most: int = 10) -> DecisionLog:
    log = DecisionLog(at_most)
    for lease in range(1, count + 1):
        log.opened(decision(lease), "m", Origin(f"r{lease}", "/v1/completions"), 1000.0 + lease)
    return log


def ids(log: DecisionLog, limit: int = 100, request_id: str | None = None) -> list[str]:
    return [entry.request_id for entry in log.last(limit, request_id)]


def test_the_newest_come_first_and_the_oldest_go() -> None:
    log = filled(12)
    assert ids(log) == [f"r{at}" for at in range(12, 2, -1)]
    assert ids(log, 2) == ["r12", "r11"]
    assert len(log) == 10


def test_a_request_is_found_with_all_its_attempts() -> None:
    log = filled(3)
    log.opened(decision(9), "m", Origin("r2", "/v1/completions"), 2000.0)
    assert [entry.decision.lease for entry in log.last(100, "r2")] == [9, 2]
    assert log.last(100, "r7") == []


def test_an_endless_id_is_remembered_in_part_and_found_by_the_whole() -> None:
    log = DecisionLog(2)
    log.opened(decision(1), "m", Origin("x" * 10_000), 0.0)
    assert ids(log, request_id="x" * 10_000) == ["x" * MAX_ID]


def test_what_came_of_it_is_told_once_it_has_ended() -> None:
    log = filled(1)
    assert log.last(1)[0].explained(POLICY).outcome is None
    ended = log.closed(1, Outcome.OK, Truth(prompt_tokens=100, cached_tokens=48))
    assert ended is log.last(1)[0]
    told = ended.explained(POLICY)
    assert (told.outcome, told.truth) == (Outcome.OK, Truth(prompt_tokens=100, cached_tokens=48))
    assert log.closed(1, Outcome.OK, None) is None, "it has ended before"


def test_a_decision_that_is_no_longer_kept_still_ends() -> None:
    log = filled(3, at_most=1)
    ended = log.closed(1, Outcome.CANCELLED, None)
    assert ended is not None
    assert (ended.request_id, ended.outcome) == ("r1", Outcome.CANCELLED)


def test_what_is_told_has_every_figure_the_policy_saw() -> None:
    log = DecisionLog(5)
    views = {A: View(Knowledge.EXACT, "proven"), B: View(Knowledge.BLIND, "no source")}
    log.know(views)
    log.opened(decision(1), "m", Origin("r1", "/v1/completions"), 1000.0)
    log.know({A: View(Knowledge.PARTIAL, "lost")})
    told = msgspec.to_builtins(log.last(1)[0].explained(POLICY))
    waits = {"wait_seconds": 0.0, "tokens_per_second": PREFILL_SPEED, "skipped": 0}
    assert told == {
        "request_id": "r1",
        "time": 1000.0,
        "path": "/v1/completions",
        "model": "m",
        "prompt_tokens": 100,
        "knows_tokens": True,
        "is_predicted": True,
        "policy": "cache_aware",
        "replica": "a",
        "cached_tokens": 64,
        "why": "it has the lowest cost, 52; next is b with 100",
        "candidates": [
            {"replica": "a", "cached_tokens": 64, "queued_tokens": 0, "in_flight": 1, "cost": 52.0}
            | {"knowledge": "exact", "reason": "proven", **waits},
            {"replica": "b", "cached_tokens": 0, "queued_tokens": 0, "in_flight": 0, "cost": 100.0}
            | {"knowledge": "blind", "reason": "no source", **waits},
        ],
        "not_asked": [],
        "utilisation": 0.0,
        "reuse": 0.0,
        "goes_on": False,
        "outcome": None,
        "truth": None,
    }


def test_a_reason_is_told_only_of_the_state_that_the_policy_saw() -> None:
    log = DecisionLog(5)
    log.know({A: View(Knowledge.PARTIAL, "lost some"), B: View(Knowledge.BLIND, "no source")})
    log.opened(decision(1), "m", NOBODY, 0.0)
    assert [(each.knowledge, each.reason) for each in log.last(1)[0].explained(POLICY).candidates] == [
        (Knowledge.EXACT, None),
        (Knowledge.BLIND, "no source"),
    ]


def test_salts_are_counted_and_never_kept() -> None:
    log = DecisionLog(10)
    for lease, salt in enumerate(["secret-one", "secret-one", "secret-two", None]):
        log.opened(decision(lease), "m", Origin("r", "", salt), 0.0)
    log.opened(decision(9), "m", NOBODY, 0.0)
    assert log.salts() == Salts(requests=5, salted=3, distinct=2)
    assert "secret" not in repr(log.last(10))
    assert b"secret" not in msgspec.json.encode([entry.explained(POLICY) for entry in log.last(10)])
