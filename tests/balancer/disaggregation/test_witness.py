"""``balancer/disaggregation/witness.py`` and ``proof.py``: a connector that does not work is noticed, no other."""

import pytest

from balancer.core import Replica
from balancer.disaggregation.counts import Miss
from balancer.disaggregation.proof import Proof, prove
from balancer.disaggregation.witness import ENOUGH, SETTLE_SECONDS, Doubt, Witness
from hashing.recipes import Recipe
from indexer.index import ReplicaId

D = ReplicaId("d:1")
LATER = SETTLE_SECONDS + 1


def handed(witness: Witness, count: int, now: float, tokens: int = 100) -> None:
    for _ in range(count):
        witness.handed(D, tokens, now)


def test_an_engine_that_fetches_nothing_is_doubted_once_for_each_so_many_requests() -> None:
    witness = Witness()
    assert witness.told(D, 7_000, 0.0) is None, "what it has fetched before is nobody's business"
    handed(witness, ENOUGH, 1.0)
    assert witness.told(D, 7_000, 2.0) is None, "it may not have counted them yet"
    assert witness.told(D, 7_100, 1.0 + LATER) == Doubt(ENOUGH, 100 * ENOUGH, 100)
    assert witness.told(D, 7_100, 2.0 + LATER) is None
    handed(witness, ENOUGH, 20.0)
    assert witness.told(D, 7_100, 20.0 + LATER) == Doubt(ENOUGH, 100 * ENOUGH, 0)
    account = witness.accounts[D]
    assert (account.expected, account.fetched) == (200 * ENOUGH, 100)


def test_an_engine_that_fetches_is_not_doubted_when_it_is_started_again_either() -> None:
    witness = Witness()
    witness.told(D, 10_000, 0.0)
    handed(witness, ENOUGH, 1.0)
    assert witness.told(D, 50 * ENOUGH, 1.0 + LATER) is None, "half of it, by an engine that begins at 0"
    assert witness.accounts[D].fetched == 50 * ENOUGH
    witness.forget(D)
    assert not witness.accounts


def test_what_was_fetched_for_requests_that_are_judged_later_counts_for_them() -> None:
    witness = Witness()
    witness.told(D, 0.0, 0.0)
    handed(witness, ENOUGH, 1.0)
    handed(witness, ENOUGH, 5.0)
    figure = 2 * 100 * ENOUGH
    assert witness.told(D, figure, 1.0 + LATER) is None
    assert witness.told(D, figure, 5.0 + LATER) is None
    handed(witness, ENOUGH, 30.0)
    assert witness.told(D, figure, 30.0 + LATER) == Doubt(ENOUGH, 100 * ENOUGH, 0), "and for no others"


def test_what_came_before_the_engine_was_first_asked_does_not_count() -> None:
    witness = Witness()
    handed(witness, 5 * ENOUGH, 0.0)
    witness.told(D, 0.0, 1.0)
    assert witness.told(D, 0.0, LATER) is None
    assert witness.accounts[D].expected == 0


P16 = Replica(ReplicaId("p:1"), "http://p:1", models=("m",), recipe=Recipe(block_size=16))
D16 = Replica(D, "http://d:1", models=("m", "another"), recipe=Recipe(block_size=16))


@pytest.mark.parametrize(
    ("held", "cached", "expected"),
    [
        (0, 99, Proof(100, 99, None)),
        (0, 96, Proof(100, 96, None)),
        (0, 84, Proof(100, 84, None)),  # what is fetched ends with a block, and the last one may be computed anew
        (0, 80, Proof(100, 80, Miss.PART)),
        (0, 0, Proof(100, 0, Miss.WHOLE)),
        (48, 48, Proof(52, 0, Miss.WHOLE)),
        (48, 96, Proof(52, 48, None)),
        (48, 32, Proof(52, 0, Miss.WHOLE)),
        (0, 1_000, Proof(100, 100, None)),
    ],
)
def test_what_was_to_be_fetched_is_held_against_what_was_there(held: int, cached: int, expected: Proof) -> None:
    assert prove(P16, D16, 100, held, cached, 100) == expected


@pytest.mark.parametrize(
    ("tokens", "cached", "miss"),
    [
        (255, 192, None),  # three chunks of 64, and nobody has the rest
        (255, 128, Miss.PART),
        (256, 255, None),
        (63, 0, None),
        (65, 0, Miss.WHOLE),
    ],
)
def test_nobody_misses_what_fills_no_chunk_of_the_store(tokens: int, cached: int, miss: Miss | None) -> None:
    assert prove(P16, D16, tokens, 0, cached, tokens, 64).miss is miss


def test_a_miss_has_its_likely_cause() -> None:
    d32 = Replica(D, "http://d:1", models=("m",), recipe=Recipe(block_size=32))
    other = Replica(D, "http://d:1", models=("x",), recipe=Recipe(block_size=16))
    assert prove(P16, d32, 100, 0, 0, 100).miss is Miss.BLOCK_SIZE
    assert prove(P16, other, 100, 0, 0, 100).miss is Miss.MODEL
    assert prove(P16, D16, 100, 0, 0, 90).miss is Miss.PREFILL
    assert prove(P16, D16, 100, 0, 0, None).miss is Miss.WHOLE
    unknown = Replica(D, "http://d:1", models=("m",))
    assert prove(unknown, unknown, 100, 0, 99, 100).miss is None
