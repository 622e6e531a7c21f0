"""``discovery/steady.py``: new addresses count at once, missing ones for a while, and no address is made up."""

import math

from hypothesis import given
from hypothesis import strategies as st

from balancer.discovery.steady import SteadyAddresses

A, B, AB = frozenset("a"), frozenset("b"), frozenset("ab")


def steady() -> SteadyAddresses:
    return SteadyAddresses(leave_seconds=5, grace_seconds=60)


def test_who_comes_counts_at_once() -> None:
    each = steady()
    assert each.answered(A, 0) == A
    assert each.answered(AB, 0) == AB
    assert each.settled_at == math.inf


def test_who_is_missing_leaves_after_its_time_however_rarely_anyone_asks() -> None:
    each = steady()
    each.answered(AB, 0)
    assert each.answered(A, 100) == AB, "it was answered until now"
    assert each.settled_at == 105
    assert each.answered(A, 104.9) == AB
    assert each.answered(A, 105) == A
    assert each.settled_at == math.inf


def test_who_comes_and_goes_never_leaves() -> None:
    each = steady()
    for at in range(40):
        kept = each.answered(A if at % 2 else B, at * 4)
        assert kept == (AB if at else B)


def test_when_nobody_is_named_all_stay_for_the_grace_time() -> None:
    each = steady()
    each.answered(AB, 0)
    assert each.answered(frozenset(), 10) == AB
    assert each.answered(frozenset(), 69) == AB
    assert each.answered(frozenset(), 70) == frozenset()


def test_the_grace_time_ends_with_the_first_name() -> None:
    each = steady()
    each.answered(AB, 0)
    each.answered(frozenset(), 10)
    assert each.answered(A, 20) == AB
    assert each.answered(A, 25) == A
    assert each.answered(frozenset(), 30) == A
    assert each.answered(frozenset(), 89) == A, "a new silence has its own grace time"


@given(st.lists(st.tuples(st.frozensets(st.sampled_from("abc")), st.floats(0.1, 30)), max_size=30))
def test_what_counts_is_what_was_answered_not_too_long_ago(answers: list[tuple[frozenset[str], float]]) -> None:
    each = steady()
    now, ever = 0.0, frozenset[str]()
    last: dict[str, float] = {}
    for addresses, pause in answers:
        now += pause
        kept = each.answered(addresses, now)
        ever |= addresses
        last.update(dict.fromkeys(addresses, now))
        assert addresses <= kept <= ever
        assert each.settled_at > now
        assert all(now - last[address] <= 5 + 60 + 30 for address in kept), "nobody is a ghost"
