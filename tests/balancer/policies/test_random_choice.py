"""``policies/random_choice.py``: everyone with the same chance, whatever they hold or do; newcomers with less."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.policies.random_choice import RandomChoice
from tests.support.routing import candidate

LAST = 1 - 2**-53
"""The highest draw there is."""


def test_draws_are_shared_evenly_whatever_is_cached_or_under_way() -> None:
    all_of_them = [candidate("a", cached=99), candidate("b", flight=9, queued=900), candidate("c"), candidate("d")]
    chosen = Counter(RandomChoice().choose(all_of_them, draw / 100).replica for draw in range(100))
    assert chosen == dict.fromkeys("abcd", 25)


def test_one_that_starts_slowly_is_drawn_by_its_share() -> None:
    both = [candidate("a"), candidate("b", share=0.25)]
    chosen = Counter(RandomChoice().choose(both, draw / 100).replica for draw in range(100))
    assert chosen == {"a": 80, "b": 20}


@pytest.mark.parametrize("draw", [0.0, LAST])
@given(shares=st.lists(st.floats(0.01, 1), min_size=1, max_size=40))
def test_the_first_and_the_last_draw_choose_the_ends(draw: float, shares: list[float]) -> None:
    candidates = [candidate(str(at), share=share) for at, share in enumerate(shares)]
    chosen = RandomChoice().choose(candidates, draw)
    assert chosen is candidates[0 if draw == 0 else -1]
