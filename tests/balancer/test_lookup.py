"""``balancer/lookup.py``: each tier goes on where those before it end, and only what the replica itself holds counts."""

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from balancer.core import Replica
from balancer.lookup import match, reach, tiers_in_order
from balancer.prefixes import GivenKeys
from indexer.events import EMPTY, BlockStored
from indexer.hybrid import GroupSpec, hit_rule
from indexer.index import CacheIndex, ReplicaId, Tier
from indexer.recognition import Recognition
from tests.support.routing import RECIPE, replica, request, stored

A, B, C = (ReplicaId(name) for name in "abc")
MEDIA = ("GPU", "CPU", "DISK")


def index_of(*replicas: ReplicaId) -> CacheIndex:
    index = CacheIndex()
    for each in replicas:
        index.add(each)
    return index


def hold(index: CacheIndex, replica: ReplicaId, keys: Sequence[int], medium: str = "GPU") -> None:
    index.apply(replica, [BlockStored(list(keys), None, EMPTY, 4, medium=medium)])


def test_a_tier_goes_on_where_those_before_it_end() -> None:
    index = index_of(A, B, C)
    hold(index, A, [1, 2])
    hold(index, A, [3, 4], "CPU")
    hold(index, A, [5], "DISK")
    hold(index, B, [2, 3])  # its GPU begins too late
    hold(index, B, [1, 2], "CPU")
    hold(index, C, [9])
    assert reach(index, GivenKeys([1, 2, 3, 4, 5, 6]), [A, B, C]) == {A: (2, 4, 5), B: (0, 2, 2)}


def test_tiers_come_in_the_order_of_an_engine() -> None:
    index = index_of(A)
    for medium in ("STORAGE", "CPU", "DISK"):
        hold(index, A, [1], medium)
    index.apply(A, [BlockStored([1], None, EMPTY, 4, medium="CPU", locality="REMOTE")])
    assert [tier.label for tier in tiers_in_order(index)] == ["GPU", "CPU", "CPU/REMOTE", "DISK", "STORAGE"]
    assert tiers_in_order(CacheIndex()) == [Tier()]


@given(
    chain=st.lists(st.integers(1, 9), min_size=1, max_size=9, unique=True),
    held=st.fixed_dictionaries({(name, medium): st.sets(st.integers(1, 9)) for name in (A, B) for medium in MEDIA}),
)
def test_reach_is_what_a_plain_walk_finds(chain: list[int], held: dict[tuple[ReplicaId, str], set[int]]) -> None:
    index = index_of(A, B)
    for medium in MEDIA:
        hold(index, C, [1], medium)  # is in no index
        for name in (A, B):
            hold(index, name, sorted(held[name, medium]), medium)
    labels = [tier.label for tier in tiers_in_order(index)]
    expected = {}
    for name in (A, B):
        depth, depths = 0, []
        for label in labels:
            while depth < len(chain) and chain[depth] in held[name, label]:
                depth += 1
            depths.append(depth)
        if depth:
            expected[name] = tuple(depths)
    assert reach(index, GivenKeys(chain), [A, B]) == expected


def test_replicas_that_hash_otherwise_are_matched_by_their_own_recipe() -> None:
    small, large = replica("a"), replica("b", recipe=msgspec.structs.replace(RECIPE, block_size=8))
    unknown = replica("c", recipe=None)
    index = index_of(A, B, C)
    prompt = list(range(17))
    index.apply(A, [stored(prompt)])
    assert large.recipe is not None
    index.apply(B, [stored(prompt, recipe=large.recipe)])
    found = match(
        index, recognitions(small, large, unknown), [small, large, unknown], request(prompt).hashes, _no_adapter
    )
    assert {name: (each.block_size, each.tokens) for name, each in found.items()} == {A: (4, (16,)), B: (8, (16,))}


def test_of_several_cache_groups_full_attention_counts_in_its_own_blocks() -> None:
    specs = (GroupSpec(0, "sliding_window", 4, 9), GroupSpec(1, "full_attention", 8))
    one = replica("a")
    known = recognitions(one)
    known[A].rule = hit_rule(specs, 4)
    index = index_of(A)
    keys = stored(list(range(33))).block_hashes  # of 4 tokens each
    index.apply(A, [BlockStored(keys[1:6:2], None, EMPTY, 8, medium="GPU", group_idx=1)])
    index.apply(A, [BlockStored(keys[5:6], None, EMPTY, 4, medium="GPU", group_idx=0)])
    found = match(index, known, [one], request(list(range(33))).hashes, _no_adapter)
    assert (found[A].block_size, found[A].tokens) == (8, (24,))


def test_what_nobody_holds_is_left_out() -> None:
    one = replica("a")
    index = index_of(A)
    assert match(index, recognitions(one), [one], request(list(range(9))).hashes, _no_adapter) == {}


def recognitions(*replicas: Replica) -> dict[ReplicaId, Recognition]:
    return {each.id: Recognition(each.recipe) for each in replicas}


def _no_adapter(_: Replica) -> None:
    return None
