"""``simulations/rivals.py``: fields of a fleet that say the same in other words."""

import pytest

from balancer.errors import ConfigError
from simulations.rivals import SAME, below, refuse_rivals, rivals, subject


def test_each_is_its_own_rival_and_that_of_who_says_the_same() -> None:
    assert rivals("replicas") == {"replicas"}
    assert rivals("cache") == rivals("blocks") == {"cache", "blocks"}
    assert rivals("latency") == {"latency", "decode_ms", "prefill_tps"}
    assert rivals("prefill_tps") == {"latency", "prefill_tps"}


def test_what_two_say_is_known_whoever_comes_first() -> None:
    for one, other, about in SAME:
        assert subject(one, other) == subject(other, one) == about
    assert subject("prefill_tps", "decode_ms") is None


def test_a_layer_hides_what_it_says_beneath_it_in_whatever_words() -> None:
    assert below({"rate": 2, "blocks": 3, "replicas": 4}, ["load", "replicas"]) == {"blocks": 3}


@pytest.mark.parametrize("pair", SAME, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_one_layer_says_it_once(pair: tuple[str, str, str]) -> None:
    one, other, about = pair
    with pytest.raises(ConfigError, match=rf"^fleet\.{one}: give either {one} or {other}, not both; both say {about}$"):
        refuse_rivals({one: 1, other: 2})
    refuse_rivals({one: 1, "replicas": 2})
