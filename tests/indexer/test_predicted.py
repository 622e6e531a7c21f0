"""Blocks expected of a replica: from the decision until its events speak, and not a moment longer."""

from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from indexer.predicted import PredictedBlocks

A, B = 1, 2


def test_a_prompt_is_expected_where_it_was_sent() -> None:
    predicted = PredictedBlocks()
    predicted.expect(1, A, [10, 11])
    predicted.expect(2, B, [10])
    assert predicted.holders == {10: A | B, 11: A}
    assert len(predicted) == 2


def test_what_two_leases_expect_stays_until_both_are_gone() -> None:
    predicted = PredictedBlocks()
    predicted.expect(1, A, [10, 11])
    predicted.expect(2, A, [10])
    predicted.expect(3, A, [10])
    predicted.drop(1)
    assert predicted.holders == {10: A}
    predicted.drop(2)
    assert predicted.holders == {10: A}
    predicted.drop(3)
    assert predicted.holders == {}


def test_events_end_an_expectation_for_every_lease_of_that_replica_alone() -> None:
    predicted = PredictedBlocks()
    predicted.expect(1, A, [10, 11])
    predicted.expect(2, A, [10])
    predicted.expect(3, B, [10])
    predicted.confirm(A, [10, 99])
    assert predicted.holders == {10: B, 11: A}
    predicted.drop(1)
    predicted.drop(2)
    assert predicted.holders == {10: B}


def test_what_never_came_is_forgotten_with_its_lease() -> None:
    predicted = PredictedBlocks()
    predicted.expect(1, A, [10])
    predicted.drop(1)
    predicted.drop(1)
    assert (predicted.holders, len(predicted)) == ({}, 0)


def test_a_restart_ends_every_expectation_of_that_replica() -> None:
    predicted = PredictedBlocks()
    predicted.expect(1, A, [10, 11])
    predicted.expect(2, A, [10])
    predicted.expect(3, B, [10])
    predicted.forget(A)
    assert predicted.holders == {10: B}
    predicted.drop(1)
    assert predicted.holders == {10: B}


def test_a_lease_that_expects_anew_replaces_what_it_expected() -> None:
    predicted = PredictedBlocks()
    predicted.expect(1, A, [10])
    predicted.expect(1, B, [11])
    assert predicted.holders == {11: B}
    predicted.expect(1, B, [])
    assert predicted.holders == {}


def test_a_list_that_grows_later_changes_nothing() -> None:
    """``hashing.chain.Chain.keys`` gives its own list, which grows with later calls."""
    predicted = PredictedBlocks()
    keys = [10]
    predicted.expect(1, A, keys)
    predicted.expect(2, A, [11])
    keys.append(11)
    predicted.drop(1)
    assert predicted.holders == {11: A}


def test_a_prompt_without_full_blocks_leaves_nothing() -> None:
    predicted = PredictedBlocks()
    predicted.expect(1, A, [])
    assert repr(predicted) == "<PredictedBlocks 0 leases, 0 keys>"


LEASE, BIT = st.integers(0, 4), st.sampled_from([1, 2, 4, 1 << 70])
KEYS = st.lists(st.integers(0, 6), unique=True, max_size=5)


class PredictedMachine(RuleBasedStateMachine):
    """For each lease, the keys it still waits for. A key that was confirmed is waited for by nobody any more.

    Only one thing is looser than the model: a lease that waited for a block before it was confirmed may, when it ends, take
    along the expectation of a later lease. ``loose`` has the (bit, key) pairs for which that can be.
    """

    @initialize()
    def start(self) -> None:
        self.predicted = PredictedBlocks()
        self.waiting: dict[int, tuple[int, set[int], set[int]]] = {}  # lease -> bit, keys waited for, keys confirmed
        self.loose: set[tuple[int, int]] = set()

    @rule(lease=LEASE, bit=BIT, keys=KEYS)
    def expect(self, lease: int, bit: int, keys: list[int]) -> None:
        self.predicted.expect(lease, bit, keys)
        self.waiting[lease] = (bit, set(keys), set())

    @rule(bit=BIT, keys=KEYS)
    def confirm(self, bit: int, keys: list[int]) -> None:
        self.predicted.confirm(bit, keys)
        for of, waited, confirmed in self.waiting.values():
            if of == bit:
                confirmed.update(waited & set(keys))
                waited.difference_update(keys)
                self.loose |= {(bit, key) for key in confirmed}

    @rule(lease=LEASE)
    def drop(self, lease: int) -> None:
        self.predicted.drop(lease)
        self.waiting.pop(lease, None)

    @rule(bit=BIT)
    def forget(self, bit: int) -> None:
        self.predicted.forget(bit)
        self.waiting = {lease: of for lease, of in self.waiting.items() if of[0] != bit}

    def pairs(self, holders: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        return {(bit, key) for key, held in holders for bit in (1, 2, 4, 1 << 70) if held & bit}

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "predicted"):
            return
        holders = self.predicted.holders
        got = self.pairs(holders.items())
        model = {(bit, key) for bit, waited, _ in self.waiting.values() for key in waited}
        self.loose &= {(bit, key) for bit, waited, confirmed in self.waiting.values() for key in waited | confirmed}
        assert got <= model, "expected by nobody"
        assert model - got <= self.loose, "forgotten too early"
        assert all(holders.values())

    def teardown(self) -> None:
        if hasattr(self, "predicted"):
            for lease in list(self.waiting):
                self.drop(lease)
            assert not self.predicted.holders
            assert not self.predicted._counts
            assert not self.predicted._leases


def test_expectations_agree_with_the_model_through_everything() -> None:
    run_state_machine_as_test(
        PredictedMachine, settings=settings(max_examples=200, stateful_step_count=30, deadline=None)
    )
