"""``balancer/signals.py``: each way to notice that a replica is ill is told by its own name."""

from balancer.ejection import Cause, Ejected
from balancer.signals import Sign, Signal, signs
from balancer.silence import SILENT_AFTER


def test_a_replica_that_is_well_has_none() -> None:
    assert signs(None, None, SILENT_AFTER - 1) == []


def test_everything_that_is_wrong_is_told() -> None:
    lost = Sign(Signal.CONNECTION, "refused a request's connection")
    told = signs(lost, Ejected(Cause.CONSECUTIVE, "5 requests failed", 0.0, on_trial=False), SILENT_AFTER)
    assert told[:2] == [lost, Sign(Signal.ANSWERS, "5 requests failed")]
    assert (told[2].signal, told[2].reason) == (Signal.EVENTS, "has answered 50 requests and published nothing")


def test_a_stall_is_a_signal_of_its_own() -> None:
    stalled = Ejected(Cause.STALLED, "nothing for 30 s", 0.0, on_trial=False)
    assert signs(None, stalled, 0) == [Sign(Signal.STALL, "nothing for 30 s")]
