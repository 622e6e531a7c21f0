"""``policies/cache_aware.py``: what must be computed before the first token decides; ties are shared."""

from collections import Counter

import pytest

from balancer.policies.cache_aware import CacheAware
from tests.support.routing import candidate


def test_the_holder_wins_when_all_are_idle() -> None:
    assert CacheAware().choose([candidate("a"), candidate("b", cached=64)], 0.0).replica == "b"


def test_the_holder_loses_when_waiting_costs_more_than_computing() -> None:
    holder = candidate("a", prompt=1000, cached=900, queued=2000, flight=1)
    assert CacheAware().choose([holder, candidate("b", prompt=1000)], 0.0).replica == "b"


def test_one_warm_replica_does_not_get_everything() -> None:
    # 48 tokens saved are worth less than four running requests of 16 each.
    holder = candidate("a", cached=48, flight=4)
    assert CacheAware().choose([holder, candidate("b")], 0.0).replica == "b"


def test_queued_tokens_weigh_more_than_the_number_of_requests() -> None:
    long, short = candidate("a", queued=200_000, flight=2), candidate("b", queued=600, flight=6)
    assert CacheAware().choose([long, short], 0.0).replica == "b"


@pytest.mark.parametrize("weights", [{"queue_weight": 0.0}, {"request_weight": 0.0}])
def test_a_weight_of_zero_ignores_what_it_weighs(weights: dict[str, float]) -> None:
    busy = candidate("a", cached=1, **{"queued": 9000} if "queue_weight" in weights else {"flight": 9000})
    assert CacheAware(**weights).choose([busy, candidate("b")], 0.0).replica == "a"


def test_ties_are_shared_evenly() -> None:
    tied = [candidate(name) for name in "abcd"]
    chosen = Counter(CacheAware().choose(tied, draw / 100).replica for draw in range(100))
    assert chosen == dict.fromkeys("abcd", 25)
