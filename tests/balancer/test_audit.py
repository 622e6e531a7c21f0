"""``balancer/audit.py``: predictions are held against the engine's figure, and each difference has a cause."""

import msgspec

from balancer.audit import ERROR_BOUNDS, KEPT, RECENT, Audit, Cause
from balancer.core import Decision
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
    model="m",
    is_comparable=True,
)
A = ReplicaId("a")
KEY = (A, "m")


def test_each_comparison_is_exact_over_or_under() -> None:
    audit = Audit()
    assert [audit.compare(DECISION, actual) for actual in (64, 64, 48, 80, 64)] == [True, True, False, False, True]
    tally = audit.tallies[KEY]
    assert (tally.exact, tally.over, tally.under, tally.compared) == (3, 1, 1, 5)
    assert (tally.predicted_tokens, tally.actual_tokens, tally.prompt_tokens) == (320, 320, 500)
    assert tally.exact_share == tally.recent_exact_share == 0.6
    assert audit.counts(A) == {"exact": 3, "over": 1, "under": 1, "other_tokens": 0}


def test_nothing_cached_and_nothing_predicted_is_exact() -> None:
    audit = Audit()
    audit.compare(msgspec.structs.replace(DECISION, cached_tokens=0), 0)
    assert audit.tallies[KEY].exact_share == 1.0


def test_an_estimate_is_no_promise_that_could_be_broken() -> None:
    audit = Audit()
    estimate = msgspec.structs.replace(DECISION, is_predicted=False)
    assert [audit.compare(estimate, actual) for actual in (64, 0)] == [True, False]
    tally = audit.tallies[KEY]
    assert (tally.compared, tally.estimates, tally.estimates_exact, tally.predicted_tokens) == (0, 2, 1, 0)
    assert tally.exact_share is tally.recent_exact_share is None


def test_errors_are_sorted_by_size_whichever_way_they_went() -> None:
    audit = Audit()
    far = msgspec.structs.replace(DECISION, cached_tokens=100_000)
    for decision, actual in ((DECISION, 64), (DECISION, 48), (DECISION, 80), (DECISION, 47), (far, 0)):
        audit.compare(decision, actual)
    tally = audit.tallies[KEY]
    found = dict(zip([*ERROR_BOUNDS, "more"], tally.errors, strict=True))
    assert {bound: count for bound, count in found.items() if count} == {0: 1, 16: 2, 64: 1, "more": 1}
    assert tally.error_tokens == 16 + 16 + 17 + 100_000


def test_the_running_share_forgets_what_is_long_past() -> None:
    audit = Audit()
    for actual in [0] * 10 + [64] * RECENT:
        audit.compare(DECISION, actual)
    assert audit.tallies[KEY].recent_exact_share == 1.0
    assert audit.tallies[KEY].exact_share == RECENT / (RECENT + 10)


def test_models_are_told_apart() -> None:
    audit = Audit()
    audit.compare(DECISION, 64)
    audit.compare(msgspec.structs.replace(DECISION, model="other"), 0)
    assert [(model, tally.exact, tally.over) for (_, model), tally in audit.tallies.items()] == [
        ("m", 1, 0),
        ("other", 0, 1),
    ]
    audit.remove(ReplicaId("b"))
    assert len(audit.tallies) == 2
    audit.remove(A)
    assert not audit.tallies


def test_a_difference_has_its_cause_and_its_reason() -> None:
    audit = Audit()
    audit.explain(DECISION, 48, Cause.INDEX, "why", 7.0)
    audit.explain(msgspec.structs.replace(DECISION, is_predicted=False), 48, Cause.ROUTING, "an estimate", 8.0)
    assert audit.tallies[KEY].causes == {Cause.INDEX: 1, Cause.ROUTING: 0, Cause.WORKLOAD: 0}
    first, second = audit.differences
    assert (first.replica, first.model, first.predicted, first.actual, first.cause, first.reason, first.time) == (
        A, "m", 64, 48, Cause.INDEX, "why", 7.0,
    )  # fmt: skip
    assert (first.was_promised, second.was_promised) == (True, False)


def test_another_prompt_is_counted_as_the_workloads() -> None:
    audit = Audit()
    audit.explain(DECISION, 64, Cause.WORKLOAD, "other tokens", 0.0)
    tally = audit.tallies[KEY]
    assert (tally.compared, tally.other_tokens, tally.causes[Cause.WORKLOAD]) == (0, 1, 1)


def test_only_the_last_differences_are_kept() -> None:
    audit = Audit()
    for actual in range(KEPT + 5):
        audit.explain(DECISION, actual, Cause.INDEX, "", 0.0)
    assert [each.actual for each in audit.differences] == list(range(5, KEPT + 5))
