"""``policies/like_lmetric.py``: new prefill tokens times batch size."""

from balancer.policies.like_lmetric import LikeLmetric
from tests.support.routing import candidate


def test_the_cost_is_the_product() -> None:
    candidates = [candidate("a", cached=40, queued=140, flight=2), candidate("b"), candidate("c", cached=99, flight=49)]
    assert LikeLmetric().costs(candidates) == [200 * 3, 100 * 1, 1 * 50]
    assert LikeLmetric().choose(candidates, 0.0).replica == "c"


def test_who_has_nothing_to_compute_is_chosen_however_many_run_there() -> None:
    candidates = [candidate("a", cached=100, flight=500), candidate("b", cached=99)]
    assert LikeLmetric().choose(candidates, 0.0).replica == "a"


def test_expected_blocks_do_not_count() -> None:
    assert not LikeLmetric().counts_expected
