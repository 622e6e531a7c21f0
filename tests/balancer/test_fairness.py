"""``balancer/fairness.py``: what is given follows the weights, and no waiting one is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.fairness import Shares

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 5.0}
LARGEST = 100


def shares(**weights: float) -> Shares[str]:
    return Shares(lambda name: weights.get(name, 1.0))


def serve(among: Shares[str], amount: float) -> str:
    name = next(iter(among))
    among.turn(name)
    among.charge(name, amount)
    return name


def test_turns_go_round_among_equals() -> None:
    among = shares()
    for name in "abc":
        among.join(name)
    assert sorted(serve(among, 10) for _ in range(3)) == ["a", "b", "c"]
    assert sorted(serve(among, 10) for _ in range(3)) == ["a", "b", "c"]


def test_a_large_request_costs_its_tenant_many_turns() -> None:
    among = shares()
    among.join("a")
    among.join("b")
    assert [serve(among, 100 if name == "a" else 10) for name in "abbbb"] == list("abbbb")


def test_among_equals_the_heaviest_is_first() -> None:
    among = shares(**WEIGHTS)
    for name in WEIGHTS:
        among.join(name)
    assert list(among) == ["c", "b", "a"]


def test_a_pause_earns_nothing() -> None:
    among = shares()
    among.join("a")
    for _ in range(50):
        serve(among, 10)
    among.join("b")
    assert [serve(among, 10) for _ in range(4)].count("b") == 2


def test_leaving_and_coming_back_at_once_does_not_pay() -> None:
    among = shares()
    among.join("a")
    among.join("b")
    given = {"a": 0, "b": 0}
    for _ in range(20):
        name = serve(among, 10)
        given[name] += 10
        if name == "a":
            among.leave("a")
            among.join("a")
    assert given["a"] <= given["b"] + 10


def test_what_one_could_not_use_is_not_held_against_the_others() -> None:
    among = shares()
    for name in "ab":
        among.join(name)
    for _ in range(100):  # nothing of a's can be served meanwhile
        among.turn("b")
        among.charge("b", 10)
    assert [serve(among, 10) for _ in range(6)].count("a") <= 4


def test_a_price_that_becomes_known_late_is_paid_late() -> None:
    among = shares()
    for name in "ab":
        among.join(name)
    first = serve(among, 1)
    among.charge(first, 40)
    other = "b" if first == "a" else "a"
    assert [serve(among, 10) for _ in range(4)] == [other] * 4


def test_what_was_not_given_after_all_is_given_back_but_for_turns_that_have_passed() -> None:
    among = shares(**WEIGHTS)
    for name in ("a", "b"):
        among.join(name)
    assert [serve(among, 100) for _ in range(2)] == ["b", "a"]
    among.give_back("a", 80)
    assert list(among) == ["a", "b"]
    assert serve(among, 90) == "a"
    assert serve(among, 100) == "b"
    among.give_back("a", 110)
    among.charge("a", 60)
    assert list(among) == ["b", "a"], "it is where the last turn was, and no earlier"
    among.leave("a")
    among.give_back("a", 1000)
    among.give_back("nobody", 1000)
    among.join("a")
    assert serve(among, 45) == "a"
    assert list(among) == ["a", "b"]


def test_names_that_went_away_are_forgotten() -> None:
    among = shares()
    for at in range(10_000):
        among.join(f"t{at}")
        serve(among, 1)
        among.leave(f"t{at}")
    assert len(among._given) < 1_000


@given(st.lists(st.tuples(st.integers(1, LARGEST), st.integers(0, 3)), min_size=1, max_size=200))
def test_those_that_wait_are_given_what_their_weights_say(turns: list[tuple[int, int]]) -> None:
    among = shares(**WEIGHTS)
    for name in WEIGHTS:
        among.join(name)
    given = dict.fromkeys(WEIGHTS, 0.0)
    for amount, visitor in turns:
        name = serve(among, amount)
        given[name] += amount
        if visitor == 0:  # others come and go meanwhile
            among.join("visitor")
            among.leave("visitor")
    for one, first in WEIGHTS.items():
        for other, second in WEIGHTS.items():
            gap = given[one] / first - given[other] / second
            assert gap <= LARGEST / first + LARGEST / second + 1e-6


@pytest.mark.parametrize("name", ["a", "nobody"])
def test_what_is_given_without_waiting_does_not_stand_in_the_order(name: str) -> None:
    among = shares()
    among.charge(name, 10)
    assert list(among) == []
