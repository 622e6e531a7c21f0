"""``balancer/continuing.py``: the turns of a conversation are known by where the last one ended."""

from balancer.continuing import FAR, Ends
from indexer.index import ReplicaId
from tests.support.routing import GivenKeys

A, B = ReplicaId("a"), ReplicaId("b")


def chain(*keys: int) -> GivenKeys:
    return GivenKeys(*keys)


def ends(*prompts: GivenKeys, at_most: int = 100) -> Ends:
    made = Ends(at_most)
    for each in prompts:
        made.sent(each, len(each), A)
    return made


def test_a_prompt_goes_on_where_a_shorter_one_ended() -> None:
    known = ends(chain(1, 2))
    assert known.found(chain(1, 2, 3), 3, 2) == [2]
    assert known.found(chain(1, 2, 3, 4), 4, 3) == [2], "behind the answer"


def test_a_beginning_that_is_shared_is_no_conversation() -> None:
    assert ends(chain(1, 2, 30)).found(chain(1, 2, 40), 3, 2) == []


def test_the_same_prompt_once_more_goes_on_with_nothing() -> None:
    assert ends(chain(1, 2, 3)).found(chain(1, 2, 3), 3, 3) == []


def test_what_is_not_cached_any_more_keeps_nobody() -> None:
    known = ends(chain(1, 2, 3))
    assert known.found(chain(1, 2, 3, 4), 4, 2) == []
    assert known.found(chain(1, 2, 3, 4), 4, 0) == []


def test_a_second_one_that_goes_on_there_is_another_conversation() -> None:
    """So a prompt that many have in common, and that somebody has sent alone, keeps one of them."""
    known = ends(chain(1, 2))
    known.passed(known.found(chain(1, 2, 3), 3, 2))
    assert known.found(chain(1, 2, 4), 3, 2) == []


def test_nobody_looks_further_back_than_an_answer_is_long() -> None:
    known = ends(chain(1))
    long = chain(*range(1, FAR + 3))
    assert known.found(long, len(long), FAR) == [1]
    assert known.found(long, len(long), FAR + 1) == []


def test_short_prompts_and_unknown_ones_end_nowhere() -> None:
    known = ends(chain())
    known.sent(chain(1), 2, A)  # has fewer keys than blocks: they cannot be hashed
    assert len(known) == 0


def test_the_oldest_are_forgotten_and_those_of_a_replica_that_is_gone() -> None:
    known = ends(chain(1), chain(2), chain(3), at_most=2)
    known.sent(chain(4), 1, B)
    assert len(known) == 2
    known.forget(A)
    assert known.found(chain(4, 5), 2, 1) == [4]
    assert len(known) == 1
