"""``balancer/sessions.py``: the last replica of each conversation, and no more conversations than it may keep."""

from hypothesis import given
from hypothesis import strategies as st

from balancer.sessions import Sessions
from indexer.index import ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")


def test_the_last_one_counts() -> None:
    sessions = Sessions()
    assert sessions.at(7) is None
    sessions.sent(7, A)
    sessions.sent(7, B)
    assert sessions.at(7) == B
    assert len(sessions) == 1


def test_no_conversation_is_remembered_as_none() -> None:
    sessions = Sessions()
    sessions.sent(0, A)
    assert sessions.at(0) is None
    assert len(sessions) == 0


def test_those_of_one_that_is_gone_are_forgotten_and_no_others() -> None:
    sessions = Sessions()
    for session, replica in ((1, A), (2, B), (3, A)):
        sessions.sent(session, replica)
    sessions.forget(A)
    assert [sessions.at(session) for session in (1, 2, 3)] == [None, B, None]


@given(st.lists(st.integers(1, 9), max_size=60), st.integers(1, 5))
def test_of_too_many_those_go_that_have_been_quiet_for_longest(sent: list[int], at_most: int) -> None:
    sessions = Sessions(at_most)
    for session in sent:
        sessions.sent(session, A)
        assert len(sessions) <= at_most
    recent = list(dict.fromkeys(reversed(sent)))[:at_most]
    assert [session for session in range(1, 10) if sessions.at(session)] == sorted(recent)


def test_it_says_how_many_there_are() -> None:
    assert repr(Sessions(5)) == "<Sessions 0 of at most 5>"
