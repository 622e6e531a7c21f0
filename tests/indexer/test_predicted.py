"""Blocks expected of a replica: from the decision until its events speak, and not a moment longer."""

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


def test_a_lease_whose_blocks_came_takes_no_later_leases_expectation_along() -> None:
    """A block that came, was evicted, and is computed again for another request."""
    predicted = PredictedBlocks()
    predicted.expect(1, A, [10])
    predicted.confirm(A, [10])
    predicted.expect(2, A, [10])
    predicted.drop(1)
    assert predicted.holders == {10: A}
    predicted.drop(2)
    assert predicted.holders == {}


def test_what_events_removed_is_neither_expected_nor_remembered() -> None:
    predicted = PredictedBlocks()
    predicted.expect(1, A, [10, 11])
    predicted.remember(A, [10, 12], at_most=9)
    predicted.remember(B, [12], at_most=9)
    predicted.deny(A, [10, 12, 99])
    assert predicted.holders == {11: A, 12: B}


def test_what_is_remembered_outlives_leases_until_an_event_or_a_restart() -> None:
    predicted = PredictedBlocks()
    predicted.expect(1, A, [10, 11])
    predicted.remember(A, [10, 11, 12, 13], at_most=9)
    predicted.drop(1)
    assert predicted.holders == dict.fromkeys([10, 11, 12, 13], A)
    predicted.confirm(A, [11])
    assert predicted.holders == dict.fromkeys([10, 12, 13], A)
    predicted.forget(A)
    assert predicted.holders == {}


def test_the_least_recently_remembered_go_first_unless_they_are_expected() -> None:
    predicted = PredictedBlocks()
    predicted.expect(1, A, [11])
    predicted.remember(A, [10, 11, 12], at_most=4)
    predicted.remember(B, [10], at_most=4)
    predicted.remember(A, [10, 13, 14], at_most=4)
    assert predicted.holders == {10: A | B, 11: A, 12: A, 13: A, 14: A}
    predicted.drop(1)
    assert predicted.holders == {10: A | B, 12: A, 13: A, 14: A}


def test_remembering_is_bounded_for_each_replica() -> None:
    predicted = PredictedBlocks()
    for at in range(0, 10_000, 7):
        predicted.remember(A, range(at, at + 7), at_most=500)
        assert len(predicted) <= 500
        assert at + 6 in predicted.holders
    assert len(predicted) > 460, "a sixteenth goes at once, no more"
    predicted.remember(A, range(1_000), at_most=0)
    assert not predicted._of


LEASE, BIT = st.integers(0, 4), st.sampled_from([1, 2, 4, 1 << 70])
KEYS = st.lists(st.integers(0, 6), unique=True, max_size=5)
AT_MOST = 4


class PredictedMachine(RuleBasedStateMachine):
    """For each lease, the keys it still waits for; for each replica, the keys remembered, the latest last."""

    @initialize()
    def start(self) -> None:
        self.predicted = PredictedBlocks()
        self.waiting: dict[int, tuple[int, set[int]]] = {}
        self.remembered: dict[int, list[int]] = {}

    @rule(lease=LEASE, bit=BIT, keys=KEYS)
    def expect(self, lease: int, bit: int, keys: list[int]) -> None:
        self.predicted.expect(lease, bit, keys)
        self.waiting[lease] = (bit, set(keys))

    @rule(bit=BIT, keys=KEYS)
    def remember(self, bit: int, keys: list[int]) -> None:
        self.predicted.remember(bit, keys, AT_MOST)
        known = [key for key in self.remembered.get(bit, []) if key not in keys]
        self.remembered[bit] = (known + keys)[-AT_MOST:]

    @rule(bit=BIT, keys=KEYS, is_removal=st.booleans())
    def event(self, bit: int, keys: list[int], is_removal: bool) -> None:
        (self.predicted.deny if is_removal else self.predicted.confirm)(bit, keys)
        for of, waited in self.waiting.values():
            if of == bit:
                waited.difference_update(keys)
        self.remembered[bit] = [key for key in self.remembered.get(bit, []) if key not in keys]

    @rule(lease=LEASE)
    def drop(self, lease: int) -> None:
        self.predicted.drop(lease)
        self.waiting.pop(lease, None)

    @rule(bit=BIT)
    def forget(self, bit: int) -> None:
        self.predicted.forget(bit)
        self.waiting = {lease: of for lease, of in self.waiting.items() if of[0] != bit}
        self.remembered.pop(bit, None)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "predicted"):
            return
        model = {(bit, key) for bit, waited in self.waiting.values() for key in waited}
        model |= {(bit, key) for bit, keys in self.remembered.items() for key in keys}
        holders = self.predicted.holders
        assert {(bit, key) for key, held in holders.items() for bit in (1, 2, 4, 1 << 70) if held & bit} == model
        assert all(holders.values())

    def teardown(self) -> None:
        if hasattr(self, "predicted"):
            for lease in list(self.waiting):
                self.drop(lease)
            for bit in list(self.remembered):
                self.event(bit, list(range(7)), is_removal=True)
            assert not self.predicted.holders
            assert not self.predicted._leases
            assert not self.predicted._of


def test_expectations_agree_with_the_model_through_everything() -> None:
    run_state_machine_as_test(PredictedMachine, settings=settings(max_examples=200, stateful_step_count=30))
