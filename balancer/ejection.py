"""Replicas that answer badly are left out for a while, and tried again with one request.

Knows how requests ended at each replica, and moved time (seconds, any monotonic clock). Never knows models or load. Being
ejected is a record, not a sentence: ``withheld`` decides for each request anew who is left out, so that never more than a share
of those that could serve it is, and never all, however the fleet changes in between.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator
from enum import StrEnum

import msgspec

from balancer.core import Failure, Fault
from balancer.errors import ConfigError
from balancer.window import Window
from indexer.index import ReplicaId


class EjectionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a replica is left out, for how long, and how many may be."""

    consecutive_failures: int = 5
    failure_share: float = 0.5
    """Of the requests of the last ``window_seconds``, if there were ``minimum_requests``."""
    minimum_requests: int = 20
    window_seconds: float = 30.0
    statuses: tuple[int, ...] = (500, 502, 504)
    """Answers that count as failures. 503 is how vLLM says that its queue is full."""
    pause_seconds: float = 5.0
    """Until the trial; twice as long after each failed one."""
    max_pause_seconds: float = 300.0
    max_share: float = 0.5
    """Most of a model's replicas that are left out at once; the last one never is."""


class Cause(StrEnum):
    """Why a replica was ejected."""

    CONSECUTIVE = "consecutive"
    SHARE = "share"
    TRIAL = "trial"  # the trial failed
    STALLED = "stalled"


class Ejected(msgspec.Struct, frozen=True):
    """One replica that is ejected; ``until`` is when its trial may begin, ``on_trial`` whether that is under way."""

    cause: Cause
    reason: str
    until: float
    on_trial: bool


class _Record:
    """What is known of one replica. ``ejections`` counts those in a row, ``barrier`` is the last lease before the last one."""

    __slots__ = (
        "all",
        "barrier",
        "cause",
        "consecutive",
        "ejections",
        "failed",
        "last_lease",
        "reason",
        "returned",
        "trial",
        "until",
    )

    def __init__(self, window: float) -> None:
        self.all = Window(window)
        self.failed = Window(window)
        self.consecutive = 0
        self.ejections = 0
        self.until: float | None = None
        self.returned = -math.inf
        self.cause = Cause.CONSECUTIVE
        self.reason = ""
        self.trial: int | None = None
        self.last_lease = self.barrier = 0


class Ejections:
    """The record of each replica. Changes with every call but the questions; times never go back, leases grow."""

    def __init__(self, settings: EjectionSettings) -> None:
        self._settings = settings
        self._records: dict[ReplicaId, _Record] = {}
        self._ejected: dict[ReplicaId, _Record] = {}
        self.counts: Counter[tuple[ReplicaId, Cause]] = Counter()
        self.failures: Counter[tuple[ReplicaId, Fault]] = Counter()

    def __repr__(self) -> str:
        return f"<Ejections of {', '.join(sorted(self._ejected)) or 'nobody'}>"

    def __len__(self) -> int:
        return len(self._ejected)

    def __contains__(self, replica: ReplicaId) -> bool:
        return replica in self._ejected

    def __iter__(self) -> Iterator[ReplicaId]:
        return iter(self._ejected)

    def get(self, replica: ReplicaId) -> Ejected | None:
        """Why it is ejected, or None when it is not."""
        record = self._ejected.get(replica)
        if record is None or record.until is None:
            return None
        return Ejected(record.cause, record.reason, record.until, record.trial is not None)

    def withheld(self, usable: Collection[ReplicaId], now: float) -> set[ReplicaId]:
        """Those of a model's usable replicas that the next request is not to go to.

        An ejected one whose pause is over is no longer among them, until a request has been sent there: its trial.
        """
        if not self._ejected:
            return set()
        out = [replica for replica in usable if replica in self._ejected and not self._is_due(replica, now)]
        allowed = min(int(self._settings.max_share * len(usable)), len(usable) - 1)
        if len(out) > allowed:  # those with the longest pauses stay out
            out = sorted(out, key=lambda replica: (-(self._ejected[replica].until or 0.0), replica))[: max(0, allowed)]
        return set(out)

    def _is_due(self, replica: ReplicaId, now: float) -> bool:
        record = self._ejected[replica]
        return record.trial is None and record.until is not None and now >= record.until

    # News

    def sent(self, replica: ReplicaId, lease: int, now: float) -> None:
        """A request has been sent there."""
        record = self._records.get(replica)
        if record is None:
            record = self._records[replica] = _Record(self._settings.window_seconds)
        record.last_lease = lease
        if replica in self._ejected and self._is_due(replica, now):
            record.trial = lease

    def began(self, replica: ReplicaId, lease: int, now: float) -> None:
        """An answer has begun there: enough for a trial, which need not wait for its end."""
        record = self._ejected.get(replica)
        if record is not None and lease > record.barrier:  # one that was sent before the ejection says nothing of today
            self._return(replica, now)

    def succeeded(self, replica: ReplicaId, lease: int, now: float) -> None:
        """A request has been answered there."""
        self.began(replica, lease, now)
        record = self._records.get(replica)
        if record is not None:
            record.consecutive = 0
            record.all.add(now)

    def failed(self, replica: ReplicaId, lease: int, failure: Failure, now: float) -> None:
        """A request has failed there; an error that is not among ``statuses`` says nothing, as if it had been cancelled."""
        self.failures[replica, failure.fault] += 1
        if failure.fault is Fault.STATUS and failure.status not in self._settings.statuses:
            self.cancelled(replica, lease, now)
            return
        record = self._records.get(replica)
        if record is None:
            return
        record.consecutive += 1
        record.all.add(now)
        record.failed.add(now)
        told = failure.fault if failure.status is None else f"{failure.fault} {failure.status}"
        if replica in self._ejected:
            if lease == record.trial:
                self._eject(replica, record, Cause.TRIAL, f"its trial has failed: {told}", now)
            return
        settings = self._settings
        total, bad = record.all.total(now), record.failed.total(now)
        if record.consecutive >= settings.consecutive_failures:
            reason = f"{record.consecutive} requests failed in a row, the last one: {told}"
            self._eject(replica, record, Cause.CONSECUTIVE, reason, now)
        elif total >= settings.minimum_requests and bad >= settings.failure_share * total:
            reason = f"{bad} of {total} requests failed in {settings.window_seconds:g} s, the last one: {told}"
            self._eject(replica, record, Cause.SHARE, reason, now)

    def cancelled(self, replica: ReplicaId, lease: int, now: float) -> None:
        """A request has ended there that says nothing of the replica: if it was the trial, another one is due later."""
        record = self._ejected.get(replica)
        if record is not None and record.trial == lease:
            record.trial, record.until = None, now + self._settings.pause_seconds

    def stalled(self, replica: ReplicaId, reason: str, now: float) -> bool:
        """Nothing comes from it, though it has work: ejected at once. Whether that is news."""
        record = self._records.get(replica)
        if record is None or replica in self._ejected:
            return False
        self._eject(replica, record, Cause.STALLED, reason, now)
        return True

    def moved(self, replica: ReplicaId, now: float) -> None:
        """Something has come from it: enough to take one back that had only stalled."""
        record = self._ejected.get(replica)
        if record is not None and record.cause is Cause.STALLED:
            self._return(replica, now)

    def forget(self, replica: ReplicaId) -> None:
        """The replica is gone, or another engine has begun there."""
        self._records.pop(replica, None)
        self._ejected.pop(replica, None)
        for counts in (self.counts, self.failures):
            for key in [key for key in counts if key[0] == replica]:
                del counts[key]

    def _eject(self, replica: ReplicaId, record: _Record, cause: Cause, reason: str, now: float) -> None:
        is_again = replica in self._ejected or now - record.returned < self._settings.max_pause_seconds
        record.ejections = record.ejections + 1 if is_again else 1
        pause = self._settings.pause_seconds * 2.0 ** min(record.ejections - 1, 30)
        record.until = now + min(pause, self._settings.max_pause_seconds)
        record.cause, record.reason = cause, reason
        record.trial, record.barrier = None, record.last_lease
        self._ejected[replica] = record
        self.counts[replica, cause] += 1

    def _return(self, replica: ReplicaId, now: float) -> None:
        record = self._ejected.pop(replica)
        record.until, record.trial, record.consecutive, record.returned = None, None, 0, now
        record.all, record.failed = Window(self._settings.window_seconds), Window(self._settings.window_seconds)


def check(settings: EjectionSettings) -> None:
    """Raise ``ConfigError`` unless these settings can be used."""
    for name in ("failure_share", "max_share"):
        value = getattr(settings, name)
        if not 0 <= value <= 1:
            raise ConfigError(f"ejection.{name}: {value} cannot be used; give a share from 0 to 1")
    for status in settings.statuses:
        if not 500 <= status <= 599:
            raise ConfigError(f"ejection.statuses: {status} is no fault of a replica; give some of 500 to 599")
