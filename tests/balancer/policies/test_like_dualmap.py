"""``policies/like_dualmap.py``: two places for each beginning, and the sooner of them."""

from collections import Counter
from itertools import combinations

from balancer.core import Asked
from balancer.policies.like_dualmap import LikeDualmap
from tests.support.routing import GivenKeys, candidate

NAMES = [f"10.0.0.{at}:8000" for at in range(1, 9)]


def places(*keys: int) -> list[str]:
    """The two that a prompt may go to: all others are made slow, one after the other."""
    found = []
    for name in NAMES:
        waits = [candidate(each, wait=0.0 if each == name else 1.0) for each in NAMES]
        if LikeDualmap().choose(waits, 0.0, Asked(0, GivenKeys(*keys), 2048)).replica == name:
            found.append(name)
    return found


def test_each_beginning_has_two_places_and_each_pair_some() -> None:
    pairs = Counter(tuple(places(key)) for key in range(1, 600))
    assert set(pairs) == set(combinations(NAMES, 2))
    homes = Counter(name for pair, count in pairs.items() for name in pair for _ in range(count))
    assert all(110 < homes[name] < 190 for name in NAMES), homes


def test_only_the_beginning_decides_where() -> None:
    assert len({tuple(places(5, end)) for end in range(20)}) == 1


def test_one_that_goes_changes_nothing_for_those_it_had_not() -> None:
    for key in range(1, 100):
        one, two = places(key)
        gone = next(name for name in NAMES if name not in (one, two))
        left = [candidate(each, wait=0.0 if each == one else 1.0) for each in NAMES if each != gone]
        assert LikeDualmap().choose(left, 0.0, Asked(0, GivenKeys(key), 2048)).replica == one


def test_the_one_that_answers_sooner_wins() -> None:
    one, two = places(7)
    what = Asked(0, GivenKeys(7), 2048)
    fleet = [candidate(each, wait=0.5, prompt=1000, speed=100.0) for each in NAMES if each not in (one, two)]
    holder = candidate(one, wait=0.4, prompt=1000, cached=500, speed=100.0)
    assert LikeDualmap().choose([*fleet, holder, candidate(two, prompt=1000, speed=100.0)], 0.0, what) is holder
    later = candidate(one, wait=5.1, prompt=1000, cached=500, speed=100.0)
    assert LikeDualmap().choose([*fleet, later, candidate(two, prompt=1000, speed=100.0)], 0.0, what).replica == two


def test_of_what_is_unknown_the_soonest_of_all_wins() -> None:
    fleet = [candidate(each, wait=0.0 if each == NAMES[3] else 1.0) for each in NAMES]
    assert LikeDualmap().choose(fleet, 0.0).replica == NAMES[3]


def test_one_alone_is_chosen() -> None:
    alone = candidate("a")
    assert LikeDualmap().choose([alone], 0.0, Asked(0, GivenKeys(1), 2048)) is alone


def test_the_prompt_is_asked_for_and_expected_blocks_do_not_count() -> None:
    assert LikeDualmap.reads_prompt
    assert not LikeDualmap().counts_expected
