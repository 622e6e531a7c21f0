"""``policies/longest_prefix.py``: the one that holds most, whatever it has to do."""

from balancer.policies.longest_prefix import LongestPrefix
from tests.support.routing import candidate


def test_one_token_more_is_worth_any_queue() -> None:
    busy = candidate("a", cached=66, queued=10**6, flight=99, wait=100.0)
    assert LongestPrefix().choose([candidate("b", cached=65), busy], 0.0) is busy


def test_of_equals_the_fewest_in_flight_by_share_then_chance() -> None:
    equal = [candidate("a", cached=8, flight=2), candidate("b", cached=8, flight=1, share=0.25)]
    assert {LongestPrefix().choose(equal, draw).replica for draw in (0.0, 0.99)} == {"a"}
    same = [candidate(name, flight=1) for name in "ab"]
    assert [LongestPrefix().choose(same, draw).replica for draw in (0.0, 0.99)] == ["a", "b"]


def test_what_is_only_expected_counts_for_nothing_unless_asked_for() -> None:
    assert not LongestPrefix().counts_expected
