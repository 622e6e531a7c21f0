"""``indexer/hits.py``: what a prompt finds in the tables of replicas with several cache groups."""

from collections.abc import Collection, Sequence

from hypothesis import given
from hypothesis import strategies as st

from indexer.hits import matches, placed, unnamed
from indexer.hybrid import MAMBA, Found, GroupSpec, hit_rule
from indexer.index import ReplicaId, TierIndex
from indexer.predicted import PredictedBlocks

A, B, C = (ReplicaId(name) for name in "abc")
FULL, WINDOW = GroupSpec(0, "full_attention", 16), GroupSpec(1, "sliding_window", 16, 33)


class Numbers:
    """A chain whose keys are 1, 2, 3 ...; remembers how many were asked for."""

    def __init__(self) -> None:
        self.hashed = 0

    def keys(self, count: int) -> Sequence[int]:
        self.hashed = max(self.hashed, count)
        return range(1, self.hashed + 1)


def tier(**held: Sequence[Collection[int]]) -> TierIndex:
    """Replica -> for each group the keys that it holds."""
    made = TierIndex()
    for name, groups in held.items():
        for group, keys in enumerate(groups):
            made.store(ReplicaId(name), group, keys)
    return made


def tokens(index: TierIndex, replica: ReplicaId, found: list[tuple[int, int]]) -> int:
    return dict(found).get(index.bit(replica), 0)


def test_each_replica_gets_its_own_hit() -> None:
    index = tier(a=[range(1, 9), [7, 8]], b=[range(1, 9), [3, 4]], c=[range(1, 9), []])
    bits = [index.bit(replica) for replica in (A, B, C)]
    found = matches(hit_rule((FULL, WINDOW), 16), index, Numbers(), 200, bits)
    assert [tokens(index, replica, found) for replica in (A, B, C)] == [128, 64, 0]
    assert len(found) == 2


def test_replicas_that_were_not_asked_for_are_not_told() -> None:
    index = tier(a=[range(1, 9), [7, 8]], b=[range(1, 9), [3, 4]])
    found = matches(hit_rule((FULL, WINDOW), 16), index, Numbers(), 200, [index.bit(B)])
    assert found == [(index.bit(B), 64)]


def test_a_prompt_is_hashed_no_further_than_somebody_holds_it() -> None:
    index = tier(a=[range(1, 4), range(1, 4)])
    chain = Numbers()
    matches(hit_rule((FULL, WINDOW), 16), index, chain, 16_000, [index.bit(A)])
    assert chain.hashed <= 64
    nobody = Numbers()
    assert matches(hit_rule((FULL, WINDOW), 16), TierIndex(), nobody, 16_000, [index.bit(A)]) == []
    assert nobody.hashed == 1


def test_a_window_without_full_attention_is_found_wherever_it_lies() -> None:
    index = tier(a=[[500, 501]])
    rule = hit_rule((GroupSpec(0, "sliding_window", 16, 33),), 16)
    assert matches(rule, index, Numbers(), 16_000, [index.bit(A)]) == [(index.bit(A), 501 * 16)]


def test_groups_of_full_attention_with_other_block_sizes_bound_each_other() -> None:
    index = tier(a=[range(1, 9), [2, 4, 6]])
    rule = hit_rule((FULL, GroupSpec(1, "mla_attention", 32)), 16)
    assert matches(rule, index, Numbers(), 200, [index.bit(A)]) == [(index.bit(A), 96)]


def test_the_end_of_a_prompt_inside_a_block_is_found() -> None:
    index = tier(a=[[4, 6], [4, 6]])
    rule = hit_rule((GroupSpec(0, "full_attention", 64), GroupSpec(1, MAMBA, 64)), 16)
    assert matches(rule, index, Numbers(), 100, [index.bit(A)]) == [(index.bit(A), 96)]


def test_expected_blocks_count_in_their_own_group() -> None:
    index, predicted = TierIndex(), PredictedBlocks()
    bit, rule = index.bit(A), hit_rule((FULL, WINDOW), 16)
    predicted.expect(1, bit, list(placed(0, range(1, 9))))
    assert matches(rule, index, Numbers(), 200, [bit], predicted.holders) == []
    predicted.expect(2, bit, list(placed(1, (7, 8))))
    assert matches(rule, index, Numbers(), 200, [bit], predicted.holders) == [(bit, 128)]


def test_full_attention_in_another_group_expects_its_own_blocks() -> None:
    index, predicted = TierIndex(), PredictedBlocks()
    bit = index.bit(A)
    rule = hit_rule((GroupSpec(0, "sliding_window", 16, 33), GroupSpec(1, "full_attention", 16)), 16)
    predicted.expect(1, bit, [*placed(0, range(1, 9)), *placed(1, range(1, 5))])
    assert matches(rule, index, Numbers(), 200, [bit], predicted.holders) == [(bit, 64)]


def test_a_repeat_hits_what_was_expected_of_the_first() -> None:
    index, predicted = tier(a=[range(1, 5)]), PredictedBlocks()
    bit, rule = index.bit(A), hit_rule((FULL, WINDOW), 16)
    missing = unnamed(rule, index, bit, range(1, 13), 200)
    assert missing == [*range(5, 13), *placed(1, (11, 12))]
    predicted.expect(1, bit, missing)
    assert matches(rule, index, Numbers(), 200, [bit], predicted.holders) == [(bit, 192)]


_HELD = st.sets(st.integers(1, 14))


@given(_HELD, _HELD, _HELD, st.integers(0, 240))
def test_the_tables_give_what_the_rule_says_of_each_replica_alone(
    one: set[int], other: set[int], window: set[int], length: int
) -> None:
    index = tier(a=[one, window], b=[other, one])
    rule = hit_rule((FULL, WINDOW), 16)
    bits = [index.bit(replica) for replica in (A, B)]
    found = matches(rule, index, Numbers(), length, bits)
    for replica, groups in ((A, (one, window)), (B, (other, one))):
        lists = [[int(key in held) for key in range(1, length // 16 + 1)] for held in groups]
        assert tokens(index, replica, found) == rule.usable_tokens(length, [Found(each) for each in lists], 1)
