"""``balancer/renewals.py``: each renewal makes the next one wait longer, and an hour of peace ends that."""

from balancer.renewals import FIRST_PAUSE, LONGEST_PAUSE, Renewals
from indexer.index import ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")


def times(made: Renewals, seconds: float, begin: float = 0.0) -> list[float]:
    return [at for at in range(int(begin), int(begin + seconds)) if made.is_due(A, float(at))]


def test_the_first_is_at_once_and_the_others_ever_later() -> None:
    assert times(Renewals(), 200) == [0, 10, 30, 70, 150]


def test_they_never_stop_and_never_wait_longer_than_an_hour() -> None:
    made = Renewals()
    found = times(made, 24 * 3600)
    assert found[-1] - found[-2] == LONGEST_PAUSE


def test_an_hour_of_peace_ends_the_waiting() -> None:
    made = Renewals()
    times(made, 200)
    assert made.is_due(A, 10_000.0)
    assert made.is_due(A, 10_000.0 + FIRST_PAUSE)


def test_each_replica_waits_for_itself_and_a_new_one_not_at_all() -> None:
    made = Renewals()
    assert made.is_due(A, 0.0)
    assert made.is_due(B, 1.0)
    assert not made.is_due(A, 1.0)
    made.forget(A)
    assert made.is_due(A, 1.0)
