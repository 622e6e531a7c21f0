"""``policies/like_dynamo.py``: prefill work by its weight, and all active tokens."""

import pytest

from balancer.policies.like_dynamo import LikeDynamo
from tests.support.routing import candidate

HOLDER = candidate("a", prompt=1000, cached=800, queued=100, active_tokens=900)
FREE = candidate("b", prompt=1000)


def test_the_cost_is_the_weighed_prefill_and_all_active_tokens() -> None:
    assert LikeDynamo().costs([HOLDER, FREE]) == [100 + 200 + 900 + 1000, 1000 + 1000]
    assert LikeDynamo(overlap_weight=4).costs([HOLDER, FREE]) == [4 * 300 + 1900, 4 * 1000 + 1000]


@pytest.mark.parametrize(("weight", "chosen"), [(0.0, "b"), (1.0, "b"), (4.0, "a")])
def test_the_weight_is_for_the_cache(weight: float, chosen: str) -> None:
    assert LikeDynamo(overlap_weight=weight).choose([HOLDER, FREE], 0.0).replica == chosen


def test_expected_blocks_do_not_count() -> None:
    assert not LikeDynamo().counts_expected
