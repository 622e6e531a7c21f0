"""``balancer/leaning.py``: equals are told apart alike by everyone, evenly, and with little change when one comes or goes."""

from collections import Counter
from random import Random

from balancer.leaning import lean, mixed

REPLICAS = [f"10.0.0.{at}:8000" for at in range(1, 6)]
BEGINNINGS = [Random(at).getrandbits(64) for at in range(500)]


def home(beginning: int, replicas: list[str]) -> str:
    return max(replicas, key=lambda each: lean(beginning, each))


def test_it_is_the_same_in_every_process() -> None:
    assert lean(1, "10.0.0.1:8000") == 12170976059260301343


def test_prompts_are_spread_evenly() -> None:
    counts = Counter(home(each, REPLICAS) for each in BEGINNINGS)
    assert all(70 <= counts[replica] <= 130 for replica in REPLICAS), counts


def test_one_that_goes_moves_its_own_prompts_only() -> None:
    rest = REPLICAS[1:]
    assert all(home(each, rest) == home(each, REPLICAS) for each in BEGINNINGS if home(each, REPLICAS) != REPLICAS[0])


def test_counts_are_spread_once_they_are_mixed() -> None:
    for begin in (0, 10**6):
        counts = Counter(home(mixed(each), REPLICAS) for each in range(begin, begin + 2000))
        assert all(340 <= counts[replica] <= 460 for replica in REPLICAS), counts
    assert len({mixed(each) for each in range(10_000)}) == 10_000
    assert all(0 <= mixed(each) < 2**64 for each in (0, 1, 2**64 - 1))
