"""``balancer/leaning.py``: equals are told apart alike by everyone, evenly, and with little change when one comes or goes."""

from array import array
from collections import Counter

import pytest

from balancer.leaning import BEGINNING, beginning_of, lean

REPLICAS = [f"10.0.0.{at}:8000" for at in range(1, 6)]
BEGINNINGS = [beginning_of([at] * BEGINNING, None) for at in range(500)]


def home(beginning: int, replicas: list[str]) -> str:
    return max(replicas, key=lambda each: lean(beginning, each))


def test_prompts_that_begin_alike_lean_alike() -> None:
    first = beginning_of(list(range(BEGINNING)), None)
    assert first == beginning_of(array("I", range(BEGINNING + 100)), None) != 0
    assert first != beginning_of(list(range(1, BEGINNING + 1)), None)
    assert first != beginning_of(list(range(BEGINNING)), "salt"), "which is another prefix"


def test_it_is_the_same_in_every_process() -> None:
    assert beginning_of(list(range(BEGINNING)), "salt") == 11212347284526744094
    assert lean(1, "10.0.0.1:8000") == 12170976059260301343


@pytest.mark.parametrize("tokens", [[], [1] * (BEGINNING - 1), [2**64] * BEGINNING, [-1] * BEGINNING])
def test_what_is_short_or_nonsense_leans_nowhere(tokens: list[int]) -> None:
    assert beginning_of(tokens, None) == 0


def test_prompts_are_spread_evenly() -> None:
    counts = Counter(home(each, REPLICAS) for each in BEGINNINGS)
    assert all(70 <= counts[replica] <= 130 for replica in REPLICAS), counts


def test_one_that_goes_moves_its_own_prompts_only() -> None:
    rest = REPLICAS[1:]
    assert all(home(each, rest) == home(each, REPLICAS) for each in BEGINNINGS if home(each, REPLICAS) != REPLICAS[0])
