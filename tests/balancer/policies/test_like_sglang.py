"""``policies/like_sglang.py``: the longest match, unless it is short or the fleet is out of balance."""

import pytest

from balancer.policies.like_sglang import LikeSglang
from tests.support.routing import candidate


def test_a_match_of_more_than_the_threshold_decides() -> None:
    holder, free = candidate("a", cached=31, flight=60), candidate("b", cached=30)
    assert LikeSglang().choose([holder, free], 0.0) is holder


def test_a_match_of_no_more_than_the_threshold_does_not() -> None:
    holder, free = candidate("a", cached=30, flight=1), candidate("b")
    assert LikeSglang().choose([holder, free], 0.0) is free
    assert LikeSglang(cache_threshold=0.2).choose([holder, free], 0.0) is holder


@pytest.mark.parametrize(
    ("most", "fewest", "is_even"),
    [(64, 0, True), (65, 0, False), (300, 220, True), (300, 190, False), (150, 100, True)],
)
def test_out_of_balance_is_more_than_both_thresholds_allow(most: int, fewest: int, is_even: bool) -> None:
    holder, free = candidate("a", cached=90, flight=most), candidate("b", flight=fewest)
    assert LikeSglang().choose([holder, free], 0.0) is (holder if is_even else free)


def test_both_thresholds_can_be_set() -> None:
    holder, free = candidate("a", cached=90, flight=12), candidate("b", flight=6)
    assert LikeSglang(balance_abs_threshold=5).choose([holder, free], 0.0) is free
    assert LikeSglang(balance_abs_threshold=5, balance_rel_threshold=2.0).choose([holder, free], 0.0) is holder


def test_of_equal_matches_the_first_by_name_wins_however_busy() -> None:
    candidates = [candidate("c"), candidate("b", cached=50, flight=1), candidate("a", cached=50, flight=2)]
    assert {LikeSglang().choose(candidates, draw).replica for draw in (0.0, 0.99)} == {"a"}


def test_what_was_sent_somewhere_counts_as_held_there() -> None:
    assert LikeSglang().counts_expected
