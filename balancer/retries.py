"""Whether a request that has failed is tried at another replica.

Knows settings, failures and moved time (seconds, any monotonic clock). Never knows replicas, and never sends anything. A
request of whose answer the client has had a byte is never tried again.
"""

from collections import Counter
from enum import StrEnum
from typing import Final

import msgspec

from balancer.core import Failure, Fault
from balancer.errors import ConfigError
from balancer.window import Window


class RetrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a request is tried again; never once the client has had a byte."""

    attempts: int = 3
    """Replicas tried for one request, the first one included."""
    faults: tuple[Fault, ...] = (Fault.CONNECT, Fault.RESET, Fault.ABORT, Fault.HUNG)
    statuses: tuple[int, ...] = (502, 503, 504)
    """Answers of a replica that are failed attempts; each other answer is the client's, good or bad."""
    budget_ratio: float = 0.2
    """Retries for each request of the last ``budget_seconds``, for failures after which the replica may still be at work."""
    budget_minimum: int = 10
    """Retries that are always allowed within ``budget_seconds``, however few requests there were."""
    budget_seconds: float = 10.0


class Verdict(StrEnum):
    """Why a request is tried again, or is not."""

    RETRY = "retry"
    FINAL = "final"  # a failure of this kind is never tried again
    ATTEMPTS = "attempts"  # it has been tried often enough
    NOBODY = "nobody"  # there is no other replica
    BUDGET = "budget"  # too many are tried again
    DEADLINE = "deadline"  # its time is over


_WORK_IS_GONE: Final = {Fault.CONNECT, Fault.RESET, Fault.ABORT}
"""Failures that leave nothing running at the replica: trying again gives the fleet no more work than it had."""


class Retries:
    """Judges failures, and keeps the budget. Changes with every call; times never go back.

    What the budget is for: a fleet that answers 503 or nothing because it has too much to do must not get three times as much.
    """

    def __init__(self, settings: RetrySettings) -> None:
        self._settings = settings
        self._requests = Window(settings.budget_seconds)
        self._spent = Window(settings.budget_seconds)
        self.counts: Counter[tuple[Fault, Verdict]] = Counter()

    def requested(self, now: float) -> None:
        """A request has come; attempts do not count."""
        self._requests.add(now)

    def is_failure(self, status: int) -> bool:
        """Whether an answer with this status is a failed attempt, as long as another replica may be tried."""
        return status in self._settings.statuses

    def judge(self, failure: Failure, attempts: int, now: float, deadline: float, *, has_other: bool = True) -> Verdict:
        """What to do after ``attempts`` attempts, the failed one included; ``RETRY`` is taken from the budget.

        ``has_other`` says whether there is a replica that has not been tried.
        """
        verdict = self._judge(failure, attempts, now, deadline, has_other=has_other)
        if failure.fault is not Fault.HUNG or verdict is Verdict.RETRY:  # else it has not failed yet: it waits on
            self.counts[failure.fault, verdict] += 1
        return verdict

    def _judge(self, failure: Failure, attempts: int, now: float, deadline: float, *, has_other: bool) -> Verdict:
        settings, fault = self._settings, failure.fault
        if fault is Fault.STATUS:
            may_retry = failure.status in settings.statuses
        else:
            may_retry = fault in settings.faults and fault.is_before_answer
        if not may_retry:
            return Verdict.FINAL
        if attempts >= settings.attempts:
            return Verdict.ATTEMPTS
        if now >= deadline:
            return Verdict.DEADLINE
        if not has_other:
            return Verdict.NOBODY
        if fault in _WORK_IS_GONE:
            return Verdict.RETRY
        allowed = settings.budget_minimum + settings.budget_ratio * self._requests.total(now)
        if self._spent.total(now) + 1 > allowed:
            return Verdict.BUDGET
        self._spent.add(now)
        return Verdict.RETRY


def check(settings: RetrySettings) -> None:
    """Raise ``ConfigError`` unless these settings can be used."""
    if settings.attempts < 1:
        raise ConfigError(
            f"retries.attempts: {settings.attempts} cannot be used; give 1 for none but the first, or more"
        )
    for fault in settings.faults:
        if fault is Fault.STATUS or not fault.is_before_answer:
            remedy = "; answers are named by retries.statuses" if fault is Fault.STATUS else ""
            raise ConfigError(
                f"retries.faults: '{fault}' is never tried again{remedy}; give some of connect, reset, abort, no_answer, hung"
            )
    for status in settings.statuses:
        if status != 429 and not 500 <= status <= 599:
            raise ConfigError(f"retries.statuses: {status} is the client's own fault; give 429 or some of 500 to 599")
    for name, value in (("budget_ratio", settings.budget_ratio), ("budget_minimum", settings.budget_minimum)):
        if not 0 <= value < float("inf"):
            raise ConfigError(f"retries.{name}: {value} cannot be used; give 0 or more")
