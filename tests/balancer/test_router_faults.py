"""``balancer/router.py`` against what publishers say that does not fit: other sizes, owners, tiers and shapes."""

import random
from collections.abc import Collection

import msgspec
import pytest

from balancer.core import Knowledge, Outcome, Replica, Truth
from balancer.policies.base import make
from balancer.router import Router
from indexer.events import EMPTY, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.index import ReplicaId
from indexer.stream import Apply, Standing
from indexer.wire import Batch
from tests.support.routing import MODEL, RECIPE, replica, request, stored, told

PROMPT = list(range(1000, 1100))
A, B = ReplicaId("a"), ReplicaId("b")
WIDE = msgspec.structs.replace(RECIPE, block_size=8)


def router(*replicas: Replica) -> Router:
    """A router of these replicas, all of whose events arrive."""
    made = Router(make("cache_aware", {}), "cache_aware")
    for each in replicas:
        made.put(each)
        made.caches.observe(each.id, [Standing(is_connected=True, is_complete=True)])
    return made


def tell(over: Router, name: ReplicaId, *events: KVEvent) -> None:
    over.caches.observe(name, [Apply([Batch(1.0, list(events))])])


def cached(over: Router, model: str = MODEL) -> dict[str, int]:
    decision = over.consider(request(PROMPT, model=model), 0.0, 0.5)
    return {each.replica: each.cached_tokens for each in decision.candidates}


def replaced(event: BlockStored, **changes: object) -> BlockStored:
    return msgspec.structs.replace(event, **changes)


def test_an_engine_of_another_block_size_than_it_told_is_scored_by_its_events() -> None:
    over = router(replica("a"), replica("b"))
    tell(over, A, told(PROMPT, WIDE))
    tell(over, B, told(PROMPT[:40]))
    assert cached(over) == {"a": 96, "b": 40}, "in tokens, whatever their blocks"
    assert over.caches.view(A, 0.0).state is Knowledge.EXACT
    assert "block_size is 8, not 4" in over.caches.view(A, 0.0).reason


def test_a_tier_of_another_block_size_leaves_the_gpu_as_it_is() -> None:
    over = router(replica("a"))
    tell(over, A, told(PROMPT))
    tell(over, A, replaced(told(PROMPT, WIDE), medium="CPU"))
    assert cached(over) == {"a": 96}
    tell(over, A, AllBlocksCleared())
    assert cached(over) == {"a": 0}


def test_what_lies_in_a_shared_store_is_no_replicas_gpu() -> None:
    over = router(replica("a"), replica("b"))
    event = replaced(stored(PROMPT), medium="STORAGE", locality="REMOTE")
    tell(over, A, event)
    assert cached(over) == {"a": 0, "b": 0}
    (remote,) = [tier for tier in over.caches.index.tiers if tier.locality == "REMOTE"]
    assert over.caches.index.tiers[remote].blocks(A) == 25


def test_a_publisher_that_nobody_configured_is_no_replica() -> None:
    over = router(replica("a"))
    tell(over, ReplicaId("kv@SHARED_STORAGE@m"), stored(PROMPT))
    assert [live.replica.id for live in over.fleet] == ["a"]
    assert over.caches.index.replicas == {"a"}
    assert cached(over) == {"a": 0}


def test_a_placeholder_of_the_cpu_tier_is_kept_in_either_order() -> None:
    (first, *_) = stored(PROMPT).block_hashes
    place = BlockStored([first], None, EMPTY, 0, medium="CPU", group_idx=0)
    for order in ([place, told(PROMPT)], [told(PROMPT), place]):
        over = router(replica("a"))
        tell(over, A, *order)
        tell(over, A, BlockRemoved([first], "GPU", 0))
        assert cached(over) == {"a": 0}, "a lower tier is not the GPU"
        assert [
            table.holds(A, 0, first) for tier, table in over.caches.index.tiers.items() if tier.medium == "CPU"
        ] == [True]


def test_draft_models_that_publish_pairs_of_tokens_are_not_called_exact() -> None:
    over = router(replica("a"))
    pairs = msgspec.Raw(msgspec.msgpack.encode([[at, at + 1] for at in range(8)]))
    tell(over, A, BlockStored([11, 12], None, pairs, 4, medium="GPU"))
    assert cached(over) == {"a": 0}
    view = over.caches.view(A, 0.0)
    assert view.state is Knowledge.PARTIAL
    assert "in a form that no prompt has" in view.reason


def test_aliases_of_a_model_share_its_cache() -> None:
    over = router(replica("a", models=("m", "alias")), replica("b", models=("m", "alias")))
    tell(over, B, stored(PROMPT))
    assert cached(over, "alias") == cached(over, "m") == {"a": 0, "b": 96}


@pytest.mark.parametrize(("length", "blocks"), [(3, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_a_prompt_of_few_tokens_is_promised_what_the_engine_can_use(length: int, blocks: int) -> None:
    over = router(replica("a"), replica("b"))
    tell(over, A, stored(PROMPT))
    decision = over.consider(request(PROMPT[:length]), 0.0, 0.5)
    assert {each.replica: each.cached_tokens for each in decision.candidates} == {"a": 4 * blocks, "b": 0}


def test_prompts_without_a_block_are_spread_by_load() -> None:
    over = router(replica("a"), replica("b"))
    chosen = [over.route(request([1, 2, 3]), 0.0, 0.5).replica.id for _ in range(6)]
    assert (chosen.count(A), chosen.count(B)) == (3, 3)


@pytest.mark.parametrize("in_turn", [True, False])
def test_requests_whose_tokens_nobody_knows_are_spread_evenly(in_turn: bool) -> None:
    """One after the other, or all at once: nobody holds anything of them, and they are not all the first one's."""
    over = Router(make("predicted_ttft", {}), "predicted_ttft")
    for name in "abcd":
        over.put(replica(name))
    dice = random.Random(1)
    chosen = []
    for _ in range(100):
        decision = over.route(request(size_hint=5000), 0.0, dice.random())
        chosen.append(decision.replica.id)
        if in_turn:
            over.started(decision.lease, 0.0)
            over.release(decision.lease, Outcome.OK, 0.0)
    counts = [chosen.count(ReplicaId(name)) for name in "abcd"]
    assert min(counts) > 15
    assert in_turn or counts == [25] * 4


# Coming and going -----------------------------------------------------------------------------------------------------


def test_200_replicas_that_come_and_go_leave_nothing_behind() -> None:
    """With events queued at the moment of their removal, and requests under way."""
    over = router(replica("stays"))
    baseline = 0
    for at in range(200):
        name = replica(f"pod-{at}")
        over.put(name)
        over.caches.observe(name.id, [Standing(is_connected=True, is_complete=True)])
        tell(over, name.id, told(list(range(at, at + 400))), replaced(stored([at] * 40), medium=f"M{at % 3}"))
        lease = over.route(request(list(range(at, at + 41)), excluded=frozenset({ReplicaId("stays")})), 0.0, 0.5).lease
        over.remove(name.id)
        tell(over, name.id, stored([at] * 80))
        over.caches.observe(name.id, [Standing()])
        _end(over, lease)
        if at == 20:
            baseline = size_of(over)
    assert size_of(over) <= baseline
    assert over.caches.index.size == 0
    assert len(over.fleet) == 1


def _end(over: Router, lease: int) -> None:
    over.release(lease, Outcome.OK, 0.0, Truth(prompt_tokens=41, cached_tokens=8))
    for now in (1.0, 5.0, 60.0):
        over.tick(now)
        while over.caches.index.has_retired:
            over.tick(now)


def size_of(thing: object, seen: set[int] | None = None) -> int:
    """Items in all containers that can be reached from the object's own attributes."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type)):
        return 0
    seen.add(id(thing))
    inner: list[object] = []
    if isinstance(thing, dict):
        inner = [*thing.keys(), *thing.values()]
    elif isinstance(thing, Collection):
        inner = list(thing)
    count = len(inner)
    names = [*getattr(thing, "__dict__", {})]
    names += [
        name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ()) if not name.startswith("__")
    ]
    for each in [*inner, *(getattr(thing, name, None) for name in names)]:
        count += size_of(each, seen)
    return count
