"""``balancer/audit.py``: predictions are held against the engine's figure, and only those that can be."""

import msgspec

from balancer.audit import KEPT, Audit, Difference
from balancer.core import Decision, Truth
from indexer.index import ReplicaId
from tests.support.routing import replica

DECISION = Decision(
    lease=1,
    replica=replica("a"),
    prompt_tokens=100,
    cached_tokens=64,
    is_predicted=True,
    knows_tokens=True,
    policy="p",
    candidates=(),
)
A = ReplicaId("a")


def test_each_comparison_is_exact_over_or_under() -> None:
    audit = Audit()
    for actual in (64, 64, 48, 80, 64):
        audit.record(DECISION, Truth(cached_tokens=actual))
    tally = audit.tallies[A]
    assert (tally.exact, tally.over, tally.under, tally.compared) == (3, 1, 1, 5)
    assert (tally.predicted_tokens, tally.actual_tokens, tally.prompt_tokens) == (320, 320, 500)
    assert tally.exact_share == 0.6
    assert list(audit.differences) == [Difference(A, 100, 64, 48), Difference(A, 100, 64, 80)]


def test_an_engine_that_says_nothing_is_not_compared() -> None:
    audit = Audit()
    audit.record(DECISION, Truth(prompt_tokens=100))
    assert not audit.tallies


def test_a_decision_without_a_prediction_is_not_compared() -> None:
    audit = Audit()
    audit.record(msgspec.structs.replace(DECISION, is_predicted=False), Truth(cached_tokens=0))
    assert not audit.tallies


def test_nothing_cached_and_nothing_predicted_is_exact() -> None:
    audit = Audit()
    audit.record(msgspec.structs.replace(DECISION, cached_tokens=0), Truth(cached_tokens=0))
    assert audit.tallies[A].exact_share == 1.0


def test_only_the_last_differences_are_kept() -> None:
    audit = Audit()
    for actual in range(100, 100 + KEPT + 5):
        audit.record(DECISION, Truth(cached_tokens=actual))
    assert [each.actual for each in audit.differences] == list(range(105, 105 + KEPT))
    assert audit.tallies[A].under == KEPT + 5


def test_another_prompt_length_is_no_prediction_at_all() -> None:
    """The engine rendered another prompt than we did: cached tokens of two different prompts say nothing of each other."""
    audit = Audit()
    audit.record(DECISION, Truth(prompt_tokens=DECISION.prompt_tokens + 1, cached_tokens=DECISION.cached_tokens))
    tally = audit.tallies[DECISION.replica.id]
    assert (tally.compared, tally.other_tokens) == (0, 1)
