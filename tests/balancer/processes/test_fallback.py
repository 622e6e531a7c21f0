"""``balancer/processes/fallback.py``: everybody chooses alike, and nobody moves who need not."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from balancer.processes.fallback import SPARE, choose, ranked
from indexer.index import ReplicaId

REPLICAS = [ReplicaId(f"10.0.0.{at}:8000") for at in range(8)]
keys = st.integers(1, 2**64 - 1)
some = st.lists(st.sampled_from(REPLICAS), min_size=1, unique=True)


def idle(replicas: list[ReplicaId]) -> dict[ReplicaId, int]:
    return dict.fromkeys(replicas, 0)


@given(keys, some, st.randoms())
def test_a_prompt_goes_to_the_same_replica_whoever_asks(key: int, replicas: list[ReplicaId], dice: object) -> None:
    mixed = list(replicas)
    dice.shuffle(mixed)  # type: ignore[attr-defined]
    assert choose(key, idle(replicas)) == choose(key, idle(mixed)) == ranked(key, mixed)[0]


@given(keys, st.lists(st.sampled_from(REPLICAS), min_size=2, unique=True), st.data())
def test_a_replica_that_leaves_moves_its_own_share_alone(
    key: int, replicas: list[ReplicaId], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(replicas))
    before, after = choose(key, idle(replicas)), choose(key, idle([each for each in replicas if each != gone]))
    assert before in {after, gone}


def test_the_shares_are_alike() -> None:
    dice = Random(1)
    counts = Counter(choose(dice.getrandbits(64), idle(REPLICAS)) for _ in range(8_000))
    assert all(800 < counts[replica] < 1_200 for replica in REPLICAS)


def test_what_everybody_sends_does_not_go_to_one_alone() -> None:
    load = idle(REPLICAS)
    for _ in range(800):
        load[choose(12345678901234567, load)] += 1
    assert max(load.values()) <= 2 * 100 + SPARE + 1
    home = ranked(12345678901234567, REPLICAS)[0]
    assert load[home] == max(load.values())


@given(keys, st.dictionaries(st.sampled_from(REPLICAS), st.integers(0, 1_000), min_size=1))
def test_somebody_is_always_chosen(key: int, load: dict[ReplicaId, int]) -> None:
    assert choose(key, load) in load
