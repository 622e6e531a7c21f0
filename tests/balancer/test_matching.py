"""``balancer/matching.py`` for replicas with several cache groups: what is promised is what all groups allow.

Full attention and a window of two blocks; what else the router does is tested with one cache of full attention.
"""

from collections.abc import Sequence

import msgspec
import pytest

from balancer.core import Outcome, Truth
from balancer.healing import SETTLE_SECONDS
from balancer.knowledge import Knowledge
from balancer.policies.cache_aware import CacheAware
from balancer.router import Router
from hashing.recipes import Recipe
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored
from indexer.hits import placed
from indexer.index import ReplicaId
from tests.support.routing import MODEL, RECIPE, replica, request, told

A, B = ReplicaId("a"), ReplicaId("b")
PROMPT = list(range(100, 141))  # 41 tokens: ten full blocks and one token
OTHER_TAIL = PROMPT[:30] + [1] * 11
WINDOW = 9  # two blocks of four tokens
ENDS = [8, 9]


def hybrid(tokens: Sequence[int] = PROMPT, kept: Sequence[int] = ENDS, recipe: Recipe = RECIPE) -> list[BlockStored]:
    """What a replica tells that has computed all of the prompt, and keeps these blocks in its window."""
    every = msgspec.structs.replace(told(tokens, recipe), group_idx=0, kv_cache_spec_kind="full_attention")
    window = msgspec.structs.replace(
        every,
        block_hashes=[every.block_hashes[at] for at in kept],
        extra_keys=msgspec.Raw(msgspec.msgpack.encode([None for _ in kept])),
        group_idx=1,
        kv_cache_spec_kind="sliding_window",
        kv_cache_spec_sliding_window=WINDOW,
    )
    return [every, window]


def removed(event: BlockStored, *at: int) -> BlockRemoved:
    return BlockRemoved([event.block_hashes[each] for each in at], "GPU", event.group_idx)


def router(**changes: object) -> Router:
    made = Router(CacheAware(), "cache_aware")
    for name in ("a", "b"):
        made.put(replica(name, **changes))
    return made


def cached(owner: Router, tokens: Sequence[int] = PROMPT) -> dict[str, int]:
    """What each replica would be expected to have of a prompt."""
    return {each.replica: each.cached_tokens for each in owner.consider(request(tokens), 0.0, 0.0).candidates}


def settle(owner: Router, tokens: Sequence[int], figure: int) -> None:
    """One request from its decision to the judgement of what the engine said of it."""
    decision = owner.route(request(tokens), 0.0, 0.0)
    owner.release(decision.lease, Outcome.OK, 0.0, Truth(len(tokens), figure))
    owner.tick(2 * SETTLE_SECONDS)


def test_a_window_bounds_what_full_attention_promises() -> None:
    owner = router()
    owner.caches.apply(A, hybrid())
    owner.caches.apply(B, hybrid(kept=[2, 3]))
    assert cached(owner) == {"a": 40, "b": 16}
    assert cached(owner, OTHER_TAIL) == {"a": 0, "b": 16}
    assert cached(owner, PROMPT[:40]) == {"a": 0, "b": 16}
    assert owner.caches.view(A, 0.0).state is Knowledge.EXACT


def test_blocks_of_the_window_count_only_where_a_hit_needs_them() -> None:
    owner = router()
    every, window = hybrid(kept=[3, 4, 8, 9])
    owner.caches.apply(A, [every, window])
    owner.caches.apply(A, [removed(window, 0)])
    assert cached(owner)["a"] == 40
    owner.caches.apply(A, [removed(window, 3)])
    assert cached(owner)["a"] == 0
    owner.caches.apply(A, [hybrid(kept=[3])[1]])
    assert cached(owner)["a"] == 20
    owner.caches.apply(A, [removed(every, 0)])
    assert cached(owner)["a"] == 0


def test_one_fleet_may_have_both_kinds_of_models_caches() -> None:
    owner = router()
    owner.caches.apply(A, hybrid(kept=[]))
    owner.caches.apply(B, [told(PROMPT[:20])])
    assert cached(owner) == {"a": 0, "b": 20}


def test_a_repeat_hits_before_any_event_has_come() -> None:
    """The first request is expected to leave in each group what a repeat of it needs, and no more."""
    owner = router()
    owner.caches.apply(A, hybrid([7] * 9, kept=[0, 1]))
    owner.caches.apply(B, hybrid([7] * 9, kept=[0, 1]))
    first = owner.route(request(PROMPT), 0.0, 0.0).replica.id
    assert cached(owner)[first] == 40
    assert cached(owner, OTHER_TAIL)[first] == 0
    assert owner.consider(request(PROMPT), 0.0, 0.0).held_tokens == 0


def test_events_end_what_is_expected_in_their_group_alone() -> None:
    owner = router()
    owner.caches.apply(A, hybrid([7] * 9, kept=[0, 1]))
    owner.caches.apply(B, hybrid([7] * 9, kept=[0, 1]))
    first = owner.route(request(PROMPT), 0.0, 0.0).replica.id
    every, window = hybrid()
    owner.caches.apply(first, [every])
    assert set(owner.caches.predicted.holders) == set(placed(1, window.block_hashes))
    owner.caches.apply(first, [window])
    assert not owner.caches.predicted
    assert cached(owner)[first] == 40


def test_a_clear_ends_expectations_in_every_group() -> None:
    owner = router()
    owner.caches.apply(A, hybrid([7] * 9, kept=[0, 1]))
    owner.caches.apply(B, hybrid([7] * 9, kept=[0, 1]))
    first = owner.route(request(PROMPT), 0.0, 0.0).replica.id
    owner.caches.apply(first, [AllBlocksCleared()])
    assert not owner.caches.predicted
    owner.caches.apply(first, hybrid())
    assert cached(owner)[first] == 40


def test_a_group_that_appears_later_changes_the_rule_at_once() -> None:
    owner = router()
    every, window = hybrid()
    owner.caches.apply(A, [every])
    assert (cached(owner)["a"], owner.caches.view(A, 0.0).state) == (40, Knowledge.EXACT)
    owner.caches.apply(A, [msgspec.structs.replace(window, group_idx=2)])
    assert owner.caches.view(A, 0.0).state is Knowledge.PARTIAL
    assert "group 1 tells nothing" in owner.caches.view(A, 0.0).reason
    owner.caches.apply(A, [removed(msgspec.structs.replace(window, group_idx=2), 0), window])
    assert cached(owner)["a"] == 0


def test_a_kind_that_is_not_known_is_left_out_and_said() -> None:
    owner = router()
    every, window = hybrid()
    owner.caches.apply(A, [every, msgspec.structs.replace(window, kv_cache_spec_kind="rings")])
    assert cached(owner)["a"] == 40
    assert owner.caches.view(A, 0.0).state is Knowledge.PARTIAL
    assert "'rings'" in owner.caches.view(A, 0.0).reason


def test_learned_keys_follow_the_same_rule() -> None:
    foreign = msgspec.structs.replace(RECIPE, root=b"r" * 32)
    owner = router()
    owner.caches.apply(A, hybrid(recipe=foreign))
    assert owner.caches.view(A, 0.0).state is Knowledge.LEARNED
    assert cached(owner)["a"] == 40
    assert cached(owner, OTHER_TAIL)["a"] == 0
    owner.caches.apply(A, [removed(hybrid(recipe=foreign)[1], 0)])
    assert cached(owner)["a"] == 0


def test_a_draft_model_beside_several_groups_is_no_promise() -> None:
    owner = router(has_eagle=True)
    owner.caches.apply(A, hybrid(kept=[7, 8, 9]))
    assert cached(owner)["a"] == 36
    assert owner.caches.view(A, 0.0).state is Knowledge.PARTIAL


# Healing


def test_a_window_block_that_was_evicted_meanwhile_explains_a_miss() -> None:
    owner = router()
    every, window = hybrid()
    owner.caches.apply(A, [every, window])
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    owner.caches.apply(A, [removed(window, 1)])
    owner.release(decision.lease, Outcome.OK, 0.0, Truth(len(PROMPT), 0))
    owner.tick(2 * SETTLE_SECONDS)
    assert owner.caches.view(A, 0.0).state is Knowledge.EXACT


def test_a_miss_that_nothing_explains_drops_the_chain_in_every_group() -> None:
    owner = router()
    owner.caches.apply(A, hybrid(kept=range(10)))
    for _ in range(2):
        settle(owner, PROMPT, 20)
    assert cached(owner)["a"] == 20
    assert owner.caches.index.gpu.held(A, 0).total() == owner.caches.index.gpu.held(A, 1).total() == 5
    assert owner.caches.orders


def test_a_hit_that_nothing_explains_implies_blocks_in_every_group() -> None:
    owner = router()
    owner.caches.apply(A, hybrid([7] * 9, kept=[0, 1]))
    owner.remove(B)
    settle(owner, PROMPT, 24)
    assert cached(owner)["a"] == 24
    assert cached(owner, OTHER_TAIL)["a"] == 24


@pytest.mark.parametrize("blocks", [12, 30])
def test_more_blocks_than_the_engine_has_are_noticed(blocks: int) -> None:
    owner = router(num_gpu_blocks=blocks)
    owner.caches.apply(A, hybrid())
    owner.tick(0.0)
    assert owner.caches.losses[A].overfull == (12 if blocks == 12 else 0)


def test_the_end_of_a_prompt_inside_a_block_is_no_block_of_its_own() -> None:
    """One physical block may have two keys there: their number says nothing."""
    owner = router(num_gpu_blocks=12, models=(MODEL,))
    every, window = hybrid()
    longer = msgspec.structs.replace(every, block_size=8, block_hashes=every.block_hashes[1::2])
    owner.caches.apply(A, [longer, msgspec.structs.replace(window, kv_cache_spec_kind="mamba", block_size=4)])
    owner.caches.apply(A, [told(PROMPT), told(PROMPT)])
    owner.tick(0.0)
    assert not owner.caches.losses[A].overfull
