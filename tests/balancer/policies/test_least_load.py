"""``policies/least_load.py``: the fewest requests, then the fewest tokens, whatever is cached."""

from balancer.policies.least_load import LeastLoad
from tests.support.routing import candidate


def test_the_fewest_requests_win() -> None:
    busy = candidate("a", cached=99, flight=3)
    assert LeastLoad().choose([busy, candidate("b", flight=2, queued=5000)], 0.0).replica == "b"


def test_among_equally_busy_ones_the_shortest_queue_wins() -> None:
    assert LeastLoad().choose([candidate("a", flight=1, queued=10), candidate("b", flight=1)], 0.0).replica == "b"


def test_the_cache_does_not_matter() -> None:
    tied = [candidate("a", cached=99), candidate("b")]
    assert [LeastLoad().choose(tied, draw).replica for draw in (0.0, 0.49, 0.5, 0.99)] == ["a", "a", "b", "b"]
