"""``balancer/retries.py``: a request is tried again only where that is safe, and a fleet in trouble is not given more of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.core import Failure, Fault
from balancer.errors import ConfigError
from balancer.retries import Retries, RetrySettings, Verdict, check

BUSY = Failure(Fault.STATUS, 503)


def judge(failure: Failure, *, settings: RetrySettings | None = None, attempts: int = 1, now: float = 0.0) -> Verdict:
    return Retries(settings or RetrySettings()).judge(failure, attempts, now, deadline=60.0)


@pytest.mark.parametrize("fault", [Fault.CONNECT, Fault.RESET, Fault.ABORT])
def test_what_has_computed_nothing_is_tried_again(fault: Fault) -> None:
    assert judge(Failure(fault)) is Verdict.RETRY


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500])
def test_an_answer_of_the_replica_is_the_clients(status: int) -> None:
    assert judge(Failure(Fault.STATUS, status)) is Verdict.FINAL


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_replica_that_could_not_serve_is_a_failed_attempt(status: int) -> None:
    assert judge(Failure(Fault.STATUS, status)) is Verdict.RETRY
    assert Retries(RetrySettings()).is_failure(status)


@pytest.mark.parametrize("fault", [Fault.BROKE_OFF, Fault.STALLED])
def test_nothing_is_tried_again_after_the_first_byte_whatever_the_settings(fault: Fault) -> None:
    everything = RetrySettings(faults=tuple(Fault), statuses=tuple(range(500, 600)))
    assert judge(Failure(fault), settings=everything) is Verdict.FINAL
    assert judge(Failure(fault, 503), settings=everything) is Verdict.FINAL


def test_what_took_too_long_is_only_tried_again_on_demand() -> None:
    assert judge(Failure(Fault.NO_ANSWER)) is Verdict.FINAL
    assert judge(Failure(Fault.NO_ANSWER), settings=RetrySettings(faults=(Fault.NO_ANSWER,))) is Verdict.RETRY


def test_who_waits_at_a_replica_that_stands_still_has_not_failed() -> None:
    owner, hung = Retries(RetrySettings(budget_ratio=0.0, budget_minimum=2)), Failure(Fault.HUNG)
    verdicts = [owner.judge(hung, 1, now, math.inf) for now in (0.0, 0.0, 0.0, 1.0, 30.0)]
    assert verdicts == [Verdict.RETRY, Verdict.RETRY, Verdict.BUDGET, Verdict.BUDGET, Verdict.RETRY]
    assert owner.counts == {(Fault.HUNG, Verdict.RETRY): 3}
    assert judge(hung, settings=RetrySettings(faults=(Fault.CONNECT,))) is Verdict.FINAL


def test_attempts_and_deadline_end_it() -> None:
    assert [judge(BUSY, attempts=tried) for tried in (1, 2, 3)] == [Verdict.RETRY, Verdict.RETRY, Verdict.ATTEMPTS]
    assert judge(BUSY, now=60.0) is Verdict.DEADLINE
    alone = Retries(RetrySettings()).judge(BUSY, 1, 0.0, math.inf, has_other=False)
    assert alone is Verdict.NOBODY


def test_a_fleet_that_is_busy_gets_a_few_retries_and_then_no_more() -> None:
    owner = Retries(RetrySettings(budget_ratio=0.1, budget_minimum=2))
    for _ in range(50):
        owner.requested(0.0)
    verdicts = [owner.judge(BUSY, 1, 0.0, math.inf) for _ in range(10)]
    assert verdicts == [Verdict.RETRY] * 7 + [Verdict.BUDGET] * 3
    assert owner.judge(Failure(Fault.CONNECT), 1, 0.0, math.inf) is Verdict.RETRY, "nobody was at work there"
    assert owner.judge(BUSY, 1, 30.0, math.inf) is Verdict.RETRY, "it is another window"
    assert owner.counts == {
        (Fault.STATUS, Verdict.RETRY): 8,
        (Fault.STATUS, Verdict.BUDGET): 3,
        (Fault.CONNECT, Verdict.RETRY): 1,
    }


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=150), st.floats(0, 1), st.integers(0, 5))
def test_retries_never_exceed_their_share_of_the_requests(
    steps: list[tuple[float, bool]], ratio: float, minimum: int
) -> None:
    owner = Retries(RetrySettings(budget_ratio=ratio, budget_minimum=minimum, budget_seconds=10.0))
    now, requests, retries = 0.0, [0.0], []
    for pause, is_request in steps:
        now += pause
        if is_request:
            owner.requested(now)
            requests.append(now)
        elif owner.judge(BUSY, 1, now, math.inf) is Verdict.RETRY:
            retries.append(now)
        recent = sum(at > now - 9.0 for at in retries)  # a window is exact to a tenth
        assert recent <= minimum + ratio * sum(at > now - 19.0 for at in requests)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (RetrySettings(attempts=0), "retries.attempts"),
        (RetrySettings(faults=(Fault.BROKE_OFF,)), "retries.faults: 'broke_off' is never tried again"),
        (RetrySettings(faults=(Fault.STATUS,)), "retries.faults: 'status'.*retries.statuses"),
        (RetrySettings(statuses=(404,)), "retries.statuses: 404"),
        (RetrySettings(budget_ratio=-1), "retries.budget_ratio"),
        (RetrySettings(budget_minimum=-1), "retries.budget_minimum"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings: RetrySettings, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        check(settings)
