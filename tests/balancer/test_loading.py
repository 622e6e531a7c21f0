"""``balancer/loading.py`` and ``balancer/stores.py`` through the router: what each replica could load, from where."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from balancer.connectors.base import Writer
from balancer.core import Load, Outcome, Truth
from balancer.policies.cache_aware import CacheAware
from balancer.router import Router
from balancer.store_settings import StoreSettings
from balancer.stores import Reading, Store, Traits
from hashing.chain import Chain
from hashing.own import LearnedKeys, OwnChain
from indexer.events import EMPTY, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.index import ReplicaId
from indexer.stores import Namespace
from indexer.stream import Apply, Forget, Lost, Standing
from indexer.wire import Batch
from tests.support.routing import RANDOM, RECIPE, replica, request, stored, told

A, B = ReplicaId("a"), ReplicaId("b")
PROMPT = list(range(100, 141))  # 41 tokens: ten full blocks of four, and one token
KEYS = list(Chain(RECIPE, PROMPT).keys(10))


def router(*stores: Store, **changes: object) -> Router:
    made = Router(CacheAware(), "cache_aware", stores=stores)
    for name in ("a", "b"):
        made.put(replica(name, **changes))
    return made


def store(name: str = "s", reading: Reading = Reading.REST, *, by_tokens: bool = False, **settings: object) -> Store:
    plain = {"tiers": ("STORAGE/REMOTE",), **settings}
    return Store(msgspec.convert({"name": name, **plain}, StoreSettings), Traits(reading, has_own_hashes=by_tokens))


def on(medium: str, *at: int, locality: str | None = None, ownership: str | None = None) -> list[KVEvent]:
    """One event a block, as most tiers tell."""
    return [
        BlockStored([KEYS[each]], None, EMPTY, 4, medium=medium, locality=locality, ownership=ownership) for each in at
    ]


def chunk(medium: str, last: int) -> BlockStored:
    """As vLLM names a chunk by default: its last block, without tokens."""
    return BlockStored([KEYS[last]], None, EMPTY, 0, medium=medium, group_idx=0)


def loads(owner: Router, tokens: Sequence[int] = PROMPT, **changes: Any) -> dict[str, dict[str, int]]:
    """By replica and source."""
    candidates = owner.consider(request(tokens, **changes), 0.0, 0.0).candidates
    owner.caches.index.check()
    return {each.replica: {load.source: load.tokens for load in each.loadable} for each in candidates if each.loadable}


def held(owner: Router) -> dict[str, int]:
    return {each.replica: each.cached_tokens for each in owner.consider(request(PROMPT), 0.0, 0.0).candidates}


def batches(*events: KVEvent) -> Apply:
    return Apply([Batch(0.0, list(events), 0)])


def test_tiers_continue_where_those_before_them_end() -> None:
    owner = router()
    owner.caches.apply(A, [stored(PROMPT[:9]), *on("CPU", 1, 2, 3, 4)])
    owner.caches.apply(A, on("STORAGE", 5, 6, 8, locality="LOCAL"))
    assert loads(owner) == {"a": {"CPU": 12, "STORAGE/LOCAL": 8}}
    assert held(owner) == {"a": 8, "b": 0}


def test_tiers_that_hold_a_prompt_by_turns_are_looked_through_again() -> None:
    owner = router()
    owner.caches.apply(A, [*on("CPU", 0), *on("STORAGE", 1, 2), *on("CPU", 3, 4)])
    assert loads(owner) == {"a": {"CPU": 4 + 8, "STORAGE": 8}}


def test_all_of_a_prompt_may_lie_in_a_tier_as_vllm_counts_it() -> None:
    owner = router(store(reading=Reading.WHOLE))
    owner.caches.apply(A, on("CPU", *range(10)))
    assert loads(owner) == {"a": {"CPU": 40}}
    assert loads(owner, PROMPT[:40]) == {"a": {"CPU": 40}}
    assert loads(owner, PROMPT[:39]) == {"a": {"CPU": 36}}
    owner.caches.apply(A, [stored(PROMPT)])
    assert loads(owner, PROMPT[:40]) == {"a": {"CPU": 4}}, "what its GPU has is used but for the last token's block"
    owner.caches.index.stores.add(Namespace("s", "m"), KEYS)
    assert loads(owner, PROMPT[:40])["b"] == {"store:s": 36}


def test_a_gap_behind_the_gpu_ends_it() -> None:
    owner = router()
    owner.caches.apply(A, [stored(PROMPT[:9]), *on("CPU", 3, 4)])
    assert loads(owner) == {}


def test_chunks_are_loaded_whole_and_found_by_their_last_block() -> None:
    owner = router()
    owner.caches.apply(A, [chunk("CPU", 0)])  # from here on, places of blocks are noted
    owner.caches.apply(A, [AllBlocksCleared(), stored(PROMPT)])
    owner.caches.apply(A, [chunk("CPU", 3), chunk("CPU", 7)])
    assert loads(owner) == {}
    owner.caches.apply(A, [AllBlocksCleared()])
    assert loads(owner) == {"a": {"CPU": 32}}
    owner.caches.apply(A, [stored(PROMPT[:5])])  # one block: its chunk is loaded over it
    assert loads(owner) == {"a": {"CPU": 28}}
    owner.caches.apply(A, [stored(PROMPT[:21])])  # five blocks: what is left of the second chunk is less than a chunk
    assert loads(owner) == {}


def test_a_removal_and_a_clear_take_what_they_name() -> None:
    owner = router()
    owner.caches.apply(A, [stored(PROMPT[:9]), *on("CPU", 0, 1, 2, 3)])
    owner.caches.apply(A, [BlockRemoved([KEYS[3]], "CPU")])
    assert loads(owner) == {"a": {"CPU": 4}}
    owner.caches.apply(A, [AllBlocksCleared()])
    assert held(owner)["a"] == 0
    assert loads(owner) == {"a": {"CPU": 12}}
    owner.caches.slept(A)
    assert loads(owner) == {}


def test_sleep_leaves_what_lies_on_a_disk() -> None:
    owner = router()
    owner.caches.apply(A, [*on("CPU", 0), *on("STORAGE", 0, 1, locality="LOCAL")])
    owner.caches.slept(A)
    assert loads(owner) == {"a": {"STORAGE/LOCAL": 8}}


def test_what_a_replica_tells_of_a_store_is_everybodys() -> None:
    owner = router(store())
    owner.caches.apply(A, [stored(PROMPT[:9]), *on("STORAGE", 0, 1, 2, 3, locality="REMOTE")])
    assert loads(owner) == {"a": {"store:s": 8}, "b": {"store:s": 16}}
    assert not owner.caches.index.has_other_tiers(A)
    owner.remove(A)
    assert loads(owner) == {"b": {"store:s": 16}}, "it outlives the replica that has put it there"


def test_only_those_who_are_attached_read_from_a_store() -> None:
    owner = router(store(replicas=("http://a:8000",)))
    owner.caches.apply(A, on("STORAGE", 0, locality="REMOTE"))
    owner.caches.apply(B, on("STORAGE", 0, 1, locality="REMOTE"))
    assert loads(owner) == {"a": {"store:s": 4}, "b": {"STORAGE/REMOTE": 8}}, "what b tells is not of this store"


def test_another_model_or_another_recipe_finds_nothing_there() -> None:
    owner = router(store())
    owner.put(replica("c", models=("m", "other")))
    owner.put(replica("d", recipe=RANDOM))
    owner.put(msgspec.structs.replace(replica("e"), models=("elsewhere",)))
    owner.caches.apply(ReplicaId("e"), on("STORAGE", 0, 1, locality="REMOTE"))
    assert loads(owner) == {}, "it keeps another model's cache"
    owner.caches.apply(A, on("STORAGE", 0, locality="REMOTE"))
    assert loads(owner).keys() == {"a", "b", "c"}


def test_a_store_may_name_the_model_by_where_it_is_loaded_from() -> None:
    owner = router(store(), root="/models/tiny")
    owner.caches.index.stores.add(Namespace("s", "/models/tiny"), KEYS[:2])
    owner.caches.index.stores.add(Namespace("s", "/models/large"), KEYS)
    assert loads(owner)["a"] == {"store:s": 8}


def test_mooncakes_cpu_is_not_an_engines_own_memory() -> None:
    owner = router(store(tiers=("cpu",)))
    owner.caches.apply(A, [*on("CPU", 0), *on("cpu", 0, 1)])
    assert loads(owner) == {"a": {"CPU": 4, "store:s": 4}, "b": {"store:s": 8}}


def test_an_owner_tells_stores_apart() -> None:
    owner = router(store("kv", tiers=("STORAGE/REMOTE/kvcr",)), store("fs", tiers=("STORAGE/REMOTE",)))
    owner.caches.apply(A, on("STORAGE", 0, 1, locality="REMOTE", ownership="kvcr"))
    owner.caches.apply(A, on("STORAGE", 0, 1, 2, locality="REMOTE"))
    assert loads(owner)["b"] == {"store:kv": 8, "store:fs": 4}
    owner.caches.apply(B, [BlockRemoved([KEYS[0]], "STORAGE", locality="REMOTE", ownership="kvcr")])
    assert loads(owner)["b"] == {"store:fs": 12}


def test_a_store_that_is_read_from_the_first_block_on_needs_all_of_them() -> None:
    owner = router(store(reading=Reading.WHOLE))
    owner.caches.apply(A, [stored(PROMPT[:9]), *on("STORAGE", 1, 2, 3, locality="REMOTE")])
    assert loads(owner) == {}
    owner.caches.apply(A, on("STORAGE", 0, locality="REMOTE"))
    assert loads(owner) == {"a": {"store:s": 8}, "b": {"store:s": 16}}


def test_a_store_that_has_all_of_a_prompt_leaves_one_token_to_compute() -> None:
    owner = router(store(reading=Reading.BUT_ONE))
    owner.caches.apply(A, on("STORAGE", *range(10), locality="REMOTE"))
    assert loads(owner)["b"] == {"store:s": 40}
    assert loads(owner, PROMPT[:40])["b"] == {"store:s": 39}
    owner.caches.apply(B, [stored(PROMPT)])
    assert loads(owner, PROMPT[:40])["b"] == {"store:s": 3}


def test_a_store_that_keeps_whole_prompts_has_this_one_or_nothing() -> None:
    owner = router(store(reading=Reading.PROMPT))
    owner.caches.index.stores.add(Namespace("s", "m"), [KEYS[8]])  # nine blocks: all but the last two of 38 tokens
    assert loads(owner, PROMPT[:38]) == {"a": {"store:s": 36}, "b": {"store:s": 36}}
    assert loads(owner, PROMPT[:41]).keys() == {"a", "b"}
    assert loads(owner, [*PROMPT, 1]) == loads(owner, PROMPT[:37]) == {}
    owner.caches.apply(A, [stored(PROMPT[:9])])
    assert loads(owner, PROMPT[:38])["a"] == {"store:s": 28}


def test_names_of_a_stores_own_are_known_by_their_tokens() -> None:
    owner = router(store(reading=Reading.WHOLE, by_tokens=True, tiers=("CPU",)))
    event = BlockStored(
        [7, 8], None, msgspec.Raw(msgspec.msgpack.encode(PROMPT[:16])), 8, medium="CPU", extra_keys=msgspec.Raw(b"\xc0")
    )
    owner.caches.apply(A, [event])
    assert owner.caches.index.stores.namespaces("s") == [Namespace("s", "m", LearnedKeys(8))]
    assert owner.caches.index.stores.holds(
        Namespace("s", "m", LearnedKeys(8)), OwnChain(LearnedKeys(8), PROMPT).keys(2)[1]
    )
    assert loads(owner) == {"a": {"store:s": 16}, "b": {"store:s": 16}}
    owner.caches.apply(A, [BlockRemoved([8], "CPU")])
    assert loads(owner)["b"] == {"store:s": 8}


def test_of_learned_keys_nobody_knows_whether_others_have_them() -> None:
    owner = router(store(), recipe=None)
    for name in (A, B):
        owner.caches.apply(name, [told(PROMPT[:9], RANDOM)])
    owner.caches.apply(
        A,
        [msgspec.structs.replace(told(PROMPT[:17], RANDOM), medium="STORAGE", locality="REMOTE")],
    )
    assert loads(owner) == {"a": {"STORAGE/REMOTE": 8}}


def test_a_store_that_is_down_counts_for_nothing() -> None:
    shared = store()
    owner = router(shared)
    owner.caches.apply(A, on("STORAGE", 0, locality="REMOTE"))
    shared.problem = "it does not answer"
    assert loads(owner) == {}
    shared.problem = ""
    assert loads(owner).keys() == {"a", "b"}


def test_a_stores_own_publisher_is_no_replica() -> None:
    shared = store(model="m", tiers=())
    owner = router(shared)
    owner.caches.stores.observe("s", batches(*on("cpu", 0, 1, 2)))
    assert owner.caches.index.replicas == {A, B}
    assert loads(owner) == {"a": {"store:s": 12}, "b": {"store:s": 12}}
    owner.caches.stores.observe("s", batches(BlockRemoved([KEYS[1]], "cpu")))
    assert loads(owner)["a"] == {"store:s": 4}
    owner.caches.stores.observe("s", Forget("another life"))
    assert loads(owner) == {}
    owner.caches.stores.observe("s", Lost(3, 7))
    assert (shared.counts["restarts"], shared.counts["lost_batches"]) == (1, 5)
    owner.caches.stores.observe("s", Standing(is_connected=False))
    assert shared.problem == "its event publisher cannot be reached"
    owner.caches.stores.observe("s", Standing(is_connected=True))
    assert shared.is_up


@pytest.mark.parametrize("prompts", [[PROMPT, PROMPT]])
def test_lists_of_prompts_are_left_out(prompts: list[list[int]]) -> None:
    owner = router(store())
    owner.caches.apply(A, on("STORAGE", 0, locality="REMOTE"))
    found = owner.consider(request(*prompts), 0.0, 0.0).candidates
    assert [each.loadable for each in found] == [(), ()]
    assert loads(owner, reads_cache=False) == {}


def test_what_could_be_loaded_is_no_promise_of_what_is_cached() -> None:
    owner = router(store())
    assert not owner.consider(request(PROMPT), 0.0, 0.0).is_predicted
    plain = router()
    assert plain.consider(request(PROMPT), 0.0, 0.0).is_predicted
    plain.caches.apply(A, [stored(PROMPT[:9]), *on("CPU", 2)])
    decision = plain.consider(request(PROMPT), 0.0, 0.0)
    assert (decision.cached_tokens, decision.loadable, decision.expected_tokens) == (8, (Load("CPU", 4, 4),), 12)


def settle(owner: Router, tokens: Sequence[int], cached: int) -> None:
    """One request, of which the engine then says that so many tokens were cached."""
    decision = owner.route(request(tokens), 0.0, 0.0)
    owner.release(decision.lease, Outcome.OK, 0.0, Truth(len(tokens), cached))
    owner.tick(10.0)


def test_loads_are_held_against_what_the_engine_says() -> None:
    owner = Router(CacheAware(), "cache_aware", stores=[store()])
    owner.put(replica("a"))
    owner.caches.apply(A, [stored(PROMPT[:9]), *on("CPU", 2, 3), *on("STORAGE", 4, 5, locality="REMOTE")])
    settle(owner, PROMPT, 24)
    audit = owner.caches.load_audit
    assert audit.tokens == {
        ("CPU", "loaded"): 8,
        ("CPU", "missed"): 0,
        ("store:s", "loaded"): 8,
        ("store:s", "missed"): 0,
    }
    tally = owner.caches.audit.tallies[A, "m"]
    assert (tally.estimates, tally.estimates_exact, tally.compared) == (1, 1, 0)
    assert not owner.caches.audit.differences


def test_what_an_engine_has_not_found_twice_is_believed_no_more() -> None:
    owner = Router(CacheAware(), "cache_aware", stores=[store()])
    owner.put(replica("a"))
    owner.caches.apply(A, [stored(PROMPT[:9]), *on("CPU", 2, 3), *on("STORAGE", 4, 5, locality="REMOTE")])
    owner.caches.predicted.forget_remembered(owner.caches.index.gpu.bit(A))
    settle(owner, PROMPT, 20)
    assert loads(owner)["a"] == {"CPU": 8, "store:s": 8}
    settle(owner, PROMPT, 20)
    assert loads(owner)["a"] == {"CPU": 8, "store:s": 4}
    for _ in range(2):
        settle(owner, PROMPT, 8)
    assert loads(owner) == {}
    assert owner.caches.load_audit.dropped == {"store:s": 1, "CPU": 1}


def test_what_is_announced_of_a_store_that_is_looked_at_counts_until_the_next_whole_look() -> None:
    shared = Store(StoreSettings(name="s", tiers=("STORAGE/REMOTE",)), Traits(is_looked_at=True))
    owner = router(shared)
    writer = Writer(shared, owner.caches.index.stores)
    owner.caches.apply(A, on("STORAGE", 0, 1, locality="REMOTE"))
    assert loads(owner)["b"] == {"store:s": 8}
    writer.add("m", KEYS[:1], part="layout")
    writer.looked()  # a look that may have begun before
    assert loads(owner)["b"] == {"store:s": 8}
    writer.looked()
    assert loads(owner)["b"] == {"store:s": 4}, "the second file was not there"
    for _ in range(2):  # nor does an engine's figure correct what is looked at anyway
        settle(owner, PROMPT, 0)
    assert loads(owner)["b"] == {"store:s": 4}


def test_what_replicas_ask_alike_and_what_not_is_told_apart() -> None:
    owner = router(store(), store("whole", Reading.WHOLE, tiers=("cpu",)))
    owner.caches.apply(A, [stored(PROMPT[:9]), *on("STORAGE", 2, 3, locality="REMOTE"), *on("cpu", *range(5))])
    owner.caches.apply(B, [stored(PROMPT[:13]), *on("CPU", 3, 4, 5)])
    owner.put(replica("c"))
    assert loads(owner) == {
        "a": {"store:s": 8, "store:whole": 4},
        "b": {"CPU": 12},
        "c": {"store:whole": 20},
    }


def test_each_source_says_in_which_steps_its_loads_end() -> None:
    one = store()
    owner = router(one)
    owner.caches.apply(A, on("STORAGE", 1, 3, locality="REMOTE"))
    (namespace,) = owner.caches.index.stores.namespaces("s")
    one.chunks[namespace] = 2
    owner.caches.apply(A, on("CPU", 0, 1))
    found = {each.replica: each.loadable for each in owner.consider(request(PROMPT), 0.0, 0.0).candidates}
    assert found[A] == (Load("CPU", 8, 4), Load("store:s", 8, 8))
    assert found[B] == (Load("store:s", 16, 8),)
    whole = router(store(reading=Reading.WHOLE))
    whole.caches.apply(A, on("STORAGE", 0, 1, locality="REMOTE"))
    (seen,) = (each for each in whole.consider(request(PROMPT), 0.0, 0.0).candidates if each.replica == B)
    assert seen.loadable == (Load("store:s", 8),), "of these nobody can be told where to end"


def test_from_where_a_replica_may_load_is_known_before_anything_lies_there() -> None:
    down = store("down")
    owner = router(store(), down)
    down.problem = "it is down"
    places = owner.caches.loader.places
    assert places(replica("a")) == ["store:s"]
    owner.caches.apply(A, on("CPU", 0))
    assert (places(replica("a")), places(replica("b"))) == (["CPU", "store:s"], ["store:s"])
    assert loads(owner) == {A: {"CPU": 4}}
