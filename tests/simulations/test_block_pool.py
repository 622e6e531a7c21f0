from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from simulations.block_pool import BlockPool


def filled(*keys: int) -> BlockPool:
    """A pool without a free block to spare, whose blocks 1, 2, ... hold ``keys`` and are free, the first to go first."""
    pool = BlockPool(len(keys) + 1)
    blocks, _ = pool.allocate(len(keys))
    pool.cache(blocks, keys)
    pool.free(blocks)
    return pool


def test_the_null_block_is_never_given() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == ([1, 2, 3], [])
    with pytest.raises(ValueError, match="1 blocks were asked for, 0 are free"):
        pool.allocate(1)


def test_a_pool_needs_a_block_besides_the_null_block() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1)


def test_freed_blocks_stay_cached_until_they_are_given_away() -> None:
    pool = filled(10, 20)
    assert pool.find([10, 20]) == [1, 2]
    assert pool.allocate(1) == ([1], [10])
    assert pool.find([10, 20]) == []
    assert pool.cached() == Counter({20: 1})


def test_blocks_without_a_key_are_given_away_first_in_the_order_freed() -> None:
    pool = BlockPool(6)
    blocks, _ = pool.allocate(5)
    pool.cache(blocks[:2], [10, 20])
    pool.free([4, 2, 5, 1, 3])
    assert pool.free_queue() == [4, 5, 3, 2, 1]


def test_a_hit_takes_a_block_out_of_the_queue_and_freeing_puts_it_at_the_back() -> None:
    pool = filled(10, 20, 30)
    pool.reference([1])
    assert pool.free_queue() == [2, 3]
    pool.free([1])
    assert pool.free_queue() == [2, 3, 1]


def test_a_block_that_another_request_uses_stays_out_of_the_queue() -> None:
    pool = filled(10)
    pool.reference([1])
    pool.reference([1])
    pool.free([1])
    assert pool.num_free == 0
    pool.free([1])
    assert pool.num_free == 1


def test_hits_on_free_blocks_are_what_an_admission_has_to_pay_for() -> None:
    pool = filled(10, 20, 30)
    pool.reference([2])
    assert pool.count_free([1, 2, 3]) == 2


def test_of_copies_the_oldest_is_hit_and_each_is_evicted_by_itself() -> None:
    pool = filled(10, 10, 10)
    assert pool.cached() == Counter({10: 3})
    assert pool.find([10]) == [1]
    assert pool.allocate(1) == ([1], [10])
    assert pool.find([10]) == [2]
    assert pool.allocate(1) == ([2], [10])
    assert pool.cached() == Counter({10: 1})
    assert pool.allocate(1) == ([3], [10])
    assert pool.cached() == Counter()


def test_a_search_ends_at_the_first_missing_key() -> None:
    assert filled(10, 30).find([10, 20, 30]) == [1]


def test_reset_is_refused_while_a_block_is_used() -> None:
    pool = filled(10, 20)
    pool.reference([2])
    assert not pool.reset()
    assert pool.cached() == Counter({10: 1, 20: 1})


def test_reset_forgets_the_keys_and_keeps_the_order() -> None:
    pool = filled(10, 20)
    pool.reference([1])
    pool.free([1])
    assert pool.reset()
    assert pool.cached() == Counter()
    assert pool.allocate(2) == ([2, 1], [])


def test_usage_counts_blocks_in_use_not_cached_ones() -> None:
    pool = filled(10, 20, 30, 40)
    assert pool.usage == 0.0
    pool.reference([1])
    assert pool.usage == 0.25


def test_check_finds_a_block_freed_twice() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    pool.free([1])
    pool.free([1])
    with pytest.raises(AssertionError, match="block 1 was freed more often than used"):
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """Any use of a pool, next to the plainest bookkeeping of what each block should hold."""

    CAPACITY = 6

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.CAPACITY + 1)
        self.used: Counter[int] = Counter()
        self.keys: dict[int, int] = {}

    @rule(count=st.integers(0, CAPACITY))
    def allocate(self, count: int) -> None:
        if count > self.pool.num_free:
            with pytest.raises(ValueError, match="are free"):
                self.pool.allocate(count)
            return
        blocks, evicted = self.pool.allocate(count)
        assert evicted == [self.keys.pop(block) for block in blocks if block in self.keys]
        assert not set(blocks) & set(self.used)
        self.used.update(blocks)

    @precondition(lambda self: bool(set(self.used) - set(self.keys)))
    @rule(data=st.data(), key=st.integers(0, 3))
    def cache(self, data: st.DataObject, key: int) -> None:
        block = data.draw(st.sampled_from(sorted(set(self.used) - set(self.keys))))
        self.pool.cache([block], [key])
        self.keys[block] = key

    @rule(keys=st.lists(st.integers(0, 3), max_size=3, unique=True))
    def hit(self, keys: list[int]) -> None:
        blocks = self.pool.find(keys)
        assert [self.keys[block] for block in blocks] == keys[: len(blocks)]
        assert len(blocks) == len(keys) or keys[len(blocks)] not in self.keys.values()
        self.pool.reference(blocks)
        self.used.update(blocks)

    @precondition(lambda self: bool(self.used))
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.used)), unique=True))
        self.pool.free(blocks)
        self.used -= Counter(blocks)

    @rule()
    def reset(self) -> None:
        if self.pool.reset():
            self.keys.clear()
            assert not self.used
        else:
            assert self.used

    @invariant()
    def holds(self) -> None:
        self.pool.check()
        assert self.pool.num_free == self.CAPACITY - len(self.used)
        assert self.pool.cached() == Counter(self.keys.values())


TestPoolMachine = PoolMachine.TestCase
