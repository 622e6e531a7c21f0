"""``policies/power_of_two.py``: two different ones are drawn, and the one with fewer requests wins."""

from collections import Counter
from itertools import combinations

import pytest

from balancer.policies.power_of_two import PowerOfTwo
from tests.support.routing import candidate

LAST = 1 - 2**-53


def test_the_less_busy_of_the_two_wins_and_never_the_busiest_of_all() -> None:
    candidates = [candidate("a", flight=9), candidate("b", flight=1), candidate("c", flight=5, cached=99)]
    chosen = Counter(PowerOfTwo().choose(candidates, draw / 600).replica for draw in range(600))
    # Of the three pairs, two have b, and one is a with c.
    assert chosen == {"b": 400, "c": 200}


@pytest.mark.parametrize("count", [2, 3, 8, 33])
def test_each_pair_has_the_same_chance_and_nobody_is_drawn_twice(count: int) -> None:
    pairs = count * (count - 1)
    for one, two in combinations(range(count), 2):
        # Whoever is not of the pair is busier: so the pair is drawn where one of it wins against the other.
        candidates = [candidate(str(at), flight={one: 0, two: 1}.get(at, 2)) for at in range(count)]
        draws = [(draw + 0.5) / pairs for draw in range(pairs)]
        chosen = Counter(str(PowerOfTwo().choose(candidates, draw).replica) for draw in draws)
        assert chosen[str(one)] == 2 * (count - 1), "in every pair that it is in, in either order"
        assert chosen[str(two)] == 2 * (count - 2), "in every pair that it is in, but the one with the better one"
        if count > 8:
            break


def test_the_first_one_drawn_wins_between_equals() -> None:
    equal = [candidate(name, flight=3) for name in "abc"]
    assert [PowerOfTwo().choose(equal, draw / 6).replica for draw in range(6)] == list("aabbcc")


def test_requests_count_by_share() -> None:
    pair = [candidate("a", flight=3), candidate("b", flight=1, share=0.25)]
    assert {PowerOfTwo().choose(pair, draw).replica for draw in (0.0, LAST)} == {"a"}


@pytest.mark.parametrize("count", range(1, 70))
def test_the_last_draw_is_one_of_them(count: int) -> None:
    candidates = [candidate(str(at)) for at in range(count)]
    assert PowerOfTwo().choose(candidates, LAST) is candidates[-1]
    assert PowerOfTwo().choose(candidates, 0.0) is candidates[0]
