"""``balancer/yielding.py``: who was given much lets others pass, by class first."""

import pytest

from balancer.admission import Urgency
from balancer.yielding import CLASS_SECONDS, MAX_TENANTS, MEMORY_SECONDS, Yielding

NORMAL = Urgency.NORMAL


def test_one_tenant_alone_yields_to_nobody() -> None:
    owner = Yielding({})
    owner.charge("a", 50.0, 0.0)
    assert owner.seconds("a", NORMAL, 0.0) == 0


def test_a_flood_waits_for_itself() -> None:
    owner = Yielding({})
    owner.charge("small", 0.1, 0.0)
    behind = []
    for _ in range(100):
        behind.append(owner.seconds("large", NORMAL, 0.0))
        owner.charge("large", 1.0, 0.0)
    assert behind == sorted(behind)
    assert owner.seconds("large", NORMAL, 0.0) == pytest.approx(100.0)
    assert owner.seconds("small", NORMAL, 0.0) == pytest.approx(0.1)
    assert owner.seconds("new", NORMAL, 0.0) == 0


def test_what_was_given_long_ago_does_not_count() -> None:
    owner = Yielding({})
    owner.charge("a", 100.0, 0.0)
    owner.charge("b", 1.0, 0.0)
    assert owner.seconds("a", NORMAL, MEMORY_SECONDS) == pytest.approx(36.8, abs=0.1)


def test_what_was_not_computed_is_given_back_as_much_as_is_left_of_it() -> None:
    owner = Yielding({"a": 4.0})
    owner.charge("a", 100.0, 0.0)
    owner.charge("b", 1.0, 0.0)
    owner.charge("a", 40.0, MEMORY_SECONDS)
    owner.give_back("a", 100.0, 0.0, 2 * MEMORY_SECONDS)
    assert owner.seconds("a", NORMAL, 2 * MEMORY_SECONDS) == pytest.approx(3.68, abs=0.01)
    owner.give_back("a", 1000.0, 0.0, 2 * MEMORY_SECONDS)
    owner.give_back("c", 1000.0, 0.0, 2 * MEMORY_SECONDS)
    assert [owner.seconds(name, NORMAL, 2 * MEMORY_SECONDS) for name in "ac"] == [0.0, 0.0]


def test_weights_are_shares() -> None:
    owner = Yielding({"paid": 4.0})
    owner.charge("paid", 8.0, 0.0)
    owner.charge("free", 8.0, 0.0)
    assert owner.seconds("paid", NORMAL, 0.0) == pytest.approx(2.0)
    assert owner.seconds("free", NORMAL, 0.0) == pytest.approx(8.0)


def test_classes_come_before_that() -> None:
    owner = Yielding({})
    assert [owner.seconds("a", each, 0.0) for each in Urgency] == [CLASS_SECONDS[each] for each in Urgency]
    owner.charge("a", 8.0, 0.0)
    owner.charge("b", 0.0, 0.0)
    assert owner.seconds("a", Urgency.HIGH, 0.0) == pytest.approx(CLASS_SECONDS[Urgency.HIGH] + 2.0)
    assert owner.seconds("a", Urgency.LOW, 0.0) == pytest.approx(CLASS_SECONDS[Urgency.LOW] + 32.0)
    assert CLASS_SECONDS[Urgency.HIGH] < CLASS_SECONDS[NORMAL] == 0 < CLASS_SECONDS[Urgency.LOW]


def test_names_are_clients_to_choose_and_do_not_pile_up() -> None:
    owner = Yielding({})
    owner.charge("heavy", 100.0, 0.0)
    for at in range(3 * MAX_TENANTS):
        owner.charge(f"t{at}", 0.1, 0.0)
    assert len(owner._given) <= MAX_TENANTS
    assert owner.seconds("heavy", NORMAL, 0.0) == pytest.approx(100.0), "who was given least is forgotten first"
