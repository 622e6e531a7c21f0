"""``policies/like_llm_d.py``: three scores between 0 and 1, weighed 2 : 1 : 1."""

import pytest

from balancer.core import Candidate
from balancer.policies.like_llm_d import LikeLlmD
from tests.support.routing import candidate


def score(*candidates: Candidate, prefix: float = 2, queue: float = 1, usage: float = 1) -> list[float]:
    return [-cost for cost in LikeLlmD(prefix, queue, usage).costs(candidates)]


def test_the_weights_are_two_to_one_to_one() -> None:
    assert LikeLlmD() == LikeLlmD(prefix=2, queue=1, usage=1)


def test_each_score_is_weighed() -> None:
    one = candidate("a", cached=50, waiting=1, active_tokens=300, room_tokens=1000)
    two = candidate("b", cached=0, waiting=3, active_tokens=0, room_tokens=1000)
    three = candidate("c", cached=100, waiting=5, active_tokens=1000, room_tokens=1000)
    assert score(one, two, three) == pytest.approx([2 * 0.5 + 1 + 0.7, 0.5 + 1, 2 + 0 + 0])
    assert score(one, two, three, prefix=1, queue=0, usage=0) == pytest.approx([0.5, 0, 1])
    assert score(one, two, three, prefix=0, queue=4, usage=0) == pytest.approx([4, 2, 0])
    assert score(one, two, three, prefix=0, queue=0, usage=3) == pytest.approx([2.1, 3, 0])


def test_the_highest_sum_wins() -> None:
    holder, free = candidate("a", cached=60, waiting=2), candidate("b", waiting=1)
    assert LikeLlmD().choose([holder, free], 0.0) is holder
    assert LikeLlmD(queue=2).choose([holder, free], 0.0) is free


def test_equal_queues_all_have_the_full_score() -> None:
    assert score(candidate("a", waiting=4), candidate("b", waiting=4), prefix=0, usage=0) == [1, 1]


def test_a_cache_of_unknown_or_exceeded_size_has_no_odd_score() -> None:
    unknown, over = candidate("a", active_tokens=500), candidate("b", active_tokens=500, room_tokens=100)
    assert score(unknown, over, prefix=0, queue=0) == [1, 0]


def test_a_request_of_no_known_length_holds_nothing() -> None:
    assert score(candidate("a", prompt=0), queue=0, usage=0) == [0]


def test_expected_blocks_do_not_count() -> None:
    assert not LikeLlmD().counts_expected
