"""``policies/consistent_hash.py``: what begins alike stays together, and moves no more than it must."""

import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.core import Asked, Candidate
from balancer.policies.consistent_hash import ConsistentHash
from tests.support.routing import GivenKeys, candidate

REPLICAS = [candidate(f"10.0.0.{at}:8000") for at in range(1, 9)]
BY_SESSION = ConsistentHash(by="session")


def asked(*keys: int, size: int = 512, session: int = 0) -> Asked:
    return Asked(session, GivenKeys(*keys), size)


def test_a_conversation_has_one_place_whatever_is_cached_there_or_waits() -> None:
    home = BY_SESSION.choose(REPLICAS, 0.0, Asked(7))
    others = [candidate(each.replica, cached=99) for each in REPLICAS if each is not home]
    busy = candidate(home.replica, queued=9999, flight=99)
    shuffled = [*others, busy]
    Random(1).shuffle(shuffled)
    assert BY_SESSION.choose(shuffled, 0.9, Asked(7)) is busy


@pytest.mark.parametrize("replicas", [3, 8, 16])
def test_conversations_with_numbers_in_a_row_are_spread_evenly(replicas: int) -> None:
    fleet = [candidate(f"10.0.0.{at}:8000") for at in range(replicas)]
    counts = Counter(BY_SESSION.choose(fleet, 0.0, Asked(session)).replica for session in range(1, 4001))
    mean = 4000 / replicas
    assert all(0.85 * mean < counts[each.replica] < 1.15 * mean for each in fleet), counts


@given(st.integers(1, 2**64 - 1), st.integers(0, 7))
def test_one_that_goes_moves_only_its_own(session: int, gone: int) -> None:
    home = BY_SESSION.choose(REPLICAS, 0.0, Asked(session))
    rest = [each for at, each in enumerate(REPLICAS) if at != gone]
    moved = BY_SESSION.choose(rest, 0.0, Asked(session))
    assert moved is home or home is REPLICAS[gone]


def test_those_of_one_that_goes_are_spread_over_the_rest() -> None:
    rest = REPLICAS[1:]
    homeless = [
        session for session in range(1, 20_001) if BY_SESSION.choose(REPLICAS, 0.0, Asked(session)) is REPLICAS[0]
    ]
    counts = Counter(BY_SESSION.choose(rest, 0.0, Asked(session)).replica for session in homeless)
    mean = len(homeless) / len(rest)
    assert all(0.75 * mean < counts[each.replica] < 1.25 * mean for each in rest), counts


def test_prompts_that_begin_alike_go_together() -> None:
    policy = ConsistentHash(prefix_tokens=1024)
    same = {policy.choose(REPLICAS, 0.0, asked(5, 6, end, end + 1)).replica for end in range(100)}
    assert len(same) == 1
    different = {policy.choose(REPLICAS, 0.0, asked(5, second, 7)).replica for second in range(100)}
    assert len(different) == len(REPLICAS), "the second block is within the first 1,024 tokens"


def test_a_beginning_is_one_block_at_least_and_all_of_a_short_prompt() -> None:
    def name(prefix_tokens: int, *keys: int) -> int:
        return asked(*keys).beginning(prefix_tokens)

    assert name(1, 5, 6) == name(1023, 5, 6) == 5
    assert name(1024, 5, 6, 7) == 6
    assert name(4096, 5, 6) == 6
    assert name(1024) == 0
    assert Asked().beginning(1024) == 0


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        (ConsistentHash(), Asked(7)),
        (ConsistentHash(), asked(session=7)),
        (BY_SESSION, asked(5, 6)),
    ],
)
def test_of_what_nothing_is_known_the_fewest_in_flight_decide(policy: ConsistentHash, what: Asked) -> None:
    candidates = [candidate("a", flight=2), candidate("b", flight=1, share=0.25), candidate("c", flight=3)]
    assert policy.choose(candidates, 0.0, what).replica == "a"


FLIGHTS = st.lists(st.integers(0, 12), min_size=1, max_size=8)


@given(flights=FLIGHTS, factor=st.floats(1, 3), session=st.integers(1, 1000))
def test_with_a_load_factor_nobody_gets_more_than_that_many_times_the_mean(
    flights: list[int], factor: float, session: int
) -> None:
    candidates = [candidate(f"r{at}", flight=flight) for at, flight in enumerate(flights)]
    chosen = ConsistentHash(by="session", load_factor=factor).choose(candidates, 0.0, Asked(session))
    assert chosen.in_flight + 1 <= math.ceil(factor * (sum(flights) + 1) / len(flights))


def test_with_a_load_factor_the_next_best_is_taken_and_the_best_again_when_it_can() -> None:
    bounded = ConsistentHash(by="session", load_factor=1.25)

    def ranked(session: int) -> list[Candidate]:
        order, left = [], list(REPLICAS)
        while left:
            order.append(BY_SESSION.choose(left, 0.0, Asked(session)))
            left.remove(order[-1])
        return order

    for session in range(1, 50):
        best, second, *_ = ranked(session)
        loaded = [candidate(each.replica, flight=8 if each is best else 4) for each in REPLICAS]
        assert bounded.choose(loaded, 0.0, Asked(session)).replica == second.replica
        assert BY_SESSION.choose(loaded, 0.0, Asked(session)).replica == best.replica, "without one, load is nothing"
        even = [candidate(each.replica, flight=4) for each in REPLICAS]
        assert bounded.choose(even, 0.0, Asked(session)).replica == best.replica


def test_the_bound_of_one_that_starts_slowly_is_its_share() -> None:
    bounded = ConsistentHash(by="session", load_factor=1.0)
    for session in range(1, 50):
        home = BY_SESSION.choose(REPLICAS, 0.0, Asked(session))
        starting = [candidate(each.replica, flight=1, share=0.25 if each is home else 1.0) for each in REPLICAS]
        assert bounded.choose(starting, 0.0, Asked(session)).replica != home.replica


def test_the_prompt_is_asked_for() -> None:
    assert ConsistentHash.reads_prompt
