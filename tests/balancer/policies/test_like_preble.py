"""``policies/like_preble.py``: more than half of the prompt is worth the holder's wait; less is not."""

from balancer.policies.like_preble import LikePreble
from tests.support.routing import candidate

FREE = candidate("b", prompt=1000, speed=100.0)


def test_more_than_half_is_worth_any_wait() -> None:
    holder = candidate("a", prompt=1000, cached=501, wait=100.0, speed=100.0)
    assert LikePreble().choose([holder, FREE], 0.0) is holder


def test_half_is_not_more_than_half() -> None:
    holder = candidate("a", prompt=1000, cached=500, wait=100.0, speed=100.0)
    assert LikePreble().choose([holder, FREE], 0.0) is FREE
    assert LikePreble(share=0.4).choose([holder, FREE], 0.0) is holder


def test_below_that_the_wait_plus_the_prefill_decides() -> None:
    holder = candidate("a", prompt=1000, cached=400, wait=3.9, speed=100.0)
    assert LikePreble().choose([holder, FREE], 0.0) is holder
    later = candidate("a", prompt=1000, cached=400, wait=4.1, speed=100.0)
    assert LikePreble().choose([later, FREE], 0.0) is FREE


def test_of_several_that_hold_most_the_shortest_wait_wins() -> None:
    candidates = [
        candidate("a", cached=60, wait=2.0),
        candidate("b", cached=60, wait=1.0, flight=9),
        candidate("c", cached=59),
    ]
    assert LikePreble().choose(candidates, 0.0).replica == "b"


def test_expected_blocks_do_not_count() -> None:
    assert not LikePreble().counts_expected
