"""``policies/session_sticky.py``: a conversation stays where it began; a new one goes where it waits least."""

from balancer.policies.session_sticky import SessionSticky
from tests.support.routing import candidate


def test_a_conversation_stays_whatever_that_costs() -> None:
    before = candidate("b", has_session=True, wait=100.0, flight=50)
    assert SessionSticky().choose([candidate("a", cached=100), before, candidate("c")], 0.0) is before


def test_the_first_request_goes_where_the_wait_is_shortest() -> None:
    candidates = [candidate("a", wait=2.0, cached=90), candidate("b", wait=1.0, flight=9), candidate("c", wait=3.0)]
    assert SessionSticky().choose(candidates, 0.0).replica == "b"


def test_the_wait_counts_by_share() -> None:
    starting = candidate("b", wait=1.0, share=0.25)
    assert SessionSticky().choose([candidate("a", wait=2.0), starting], 0.0).replica == "a"


def test_of_equal_waits_the_fewest_in_flight_are_chosen() -> None:
    candidates = [candidate("a", flight=2), candidate("b", flight=1), candidate("c", flight=1)]
    assert [SessionSticky().choose(candidates, draw).replica for draw in (0.0, 0.99)] == ["b", "c"]
