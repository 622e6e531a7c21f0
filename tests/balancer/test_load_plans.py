"""``balancer/load_plans.py`` through the router: loads weigh what they take, and links are busy with what was sent."""

import math

import msgspec
import pytest

from balancer.core import Candidate, Load, Outcome, Truth
from balancer.economics.economy import Economy
from balancer.economics.links import Link
from balancer.economics.mix import Load as MixLoad
from balancer.economics.mix import Mix
from balancer.economics.settings import LinkSettings, ModelSettings
from balancer.explain import Plan, plan_of
from balancer.policies.predicted_ttft import PredictedTtft
from balancer.router import Router
from balancer.store_settings import StoreSettings
from balancer.stores import Store, Traits
from hashing.chain import Chain
from indexer.events import EMPTY, BlockStored
from indexer.index import ReplicaId
from tests.support.routing import RECIPE, replica, request, stored

A, B = ReplicaId("a"), ReplicaId("b")
PROMPT = list(range(4001))  # a thousand full blocks of four, and one token
KEYS = list(Chain(RECIPE, PROMPT).keys(1000))
WEIGHT = (ModelSettings(name="m", bytes_per_token=1000.0),)
FAST, SLOW = (
    0.08,
    0.008,
)  # Gbit/s of which nine tenths are data: 111 and 1,111 microseconds a token, which takes 100 to compute


def router(gigabits: float | None, models: tuple[ModelSettings, ...] = WEIGHT) -> Router:
    """``a`` has the prompt in its CPU tier, ``b`` a tenth of it on its GPU."""
    links = [LinkSettings(source="CPU", gigabits_per_second=gigabits or 1.0, latency_ms=0.0)]
    economy = Economy(links, models) if gigabits is not None else Economy()
    made = Router(PredictedTtft(), "predicted_ttft", economy=economy)
    for name in ("a", "b"):
        made.put(replica(name, models=("m",)))
    made.caches.apply(A, [BlockStored([key], None, EMPTY, 4, medium="CPU") for key in KEYS])
    made.caches.apply(B, [stored(PROMPT[:401])])
    return made


def seen(owner: Router, now: float = 0.0) -> dict[ReplicaId, Candidate]:
    return {each.replica: each for each in owner.consider(request(PROMPT), now, 0.0).candidates}


def test_what_can_be_loaded_quickly_is_as_good_as_there() -> None:
    owner = router(FAST * 10)
    found = seen(owner)[A]
    assert (found.cached_tokens, found.load_tokens, found.computed_tokens) == (0, 4000, 1)
    assert found.load_seconds == pytest.approx(4000 * 1000 / (FAST * 10 * 125e6 * 0.9))
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    assert decision.replica.id == A
    live = owner.fleet.get(A)
    assert live is not None
    assert live.queued_tokens == 1, "nothing else has to be computed"


@pytest.mark.parametrize("owner", [router(SLOW), router(None), router(FAST, ())])
def test_what_loads_slowly_or_nobody_knows_how_is_no_reason_to_go_there(owner: Router) -> None:
    assert owner.route(request(PROMPT), 0.0, 0.0).replica.id == B


def test_without_a_weight_or_a_link_all_of_it_counts_as_computed() -> None:
    for owner in (router(None), router(FAST, ())):
        found = seen(owner)[A]
        assert (found.load_tokens, found.load_seconds, found.computed_tokens) == (0, 0.0, 4001)
        assert [load.tokens for load in found.loadable] == [4000]


def test_what_is_loaded_fills_a_cache_as_what_is_computed_does() -> None:
    owner = router(FAST * 10)
    live = owner.fleet.get(A)
    assert live is not None
    live.room_tokens = 4000
    assert owner.route(request(PROMPT), 0.0, 0.0).replica.id == A
    assert live.turnover(0.0) < math.inf, "it is full"


def test_a_link_has_to_finish_what_it_was_sent_before() -> None:
    owner = router(FAST * 10)
    other = list(range(10_000, 14_001))
    owner.caches.apply(A, [BlockStored([key], None, EMPTY, 4, medium="CPU") for key in Chain(RECIPE, other).keys(1000)])
    alone = seen(owner)[A].load_seconds
    owner.route(request(PROMPT), 0.0, 0.0)
    live = owner.fleet.get(A)
    assert live is not None

    def seconds(now: float) -> float:
        return owner.consider(request(other), now, 0.0).candidates[0].load_seconds

    assert seconds(0.0) == pytest.approx(2 * alone - live.wait(0.0)), "it waits for its turn meanwhile"
    assert seconds(0.01) == pytest.approx(2 * alone - live.wait(0.01) - 0.01)
    assert seconds(5.0) == pytest.approx(alone)
    owner.remove(A)
    assert owner.load_plans._busy_until == {}


def test_more_that_is_cached_is_less_to_load() -> None:
    one = Candidate(A, 100, 20, 0, 0, load_tokens=60, load_seconds=3.0)
    found = one.counting(40)
    assert (found.cached_tokens, found.load_tokens, found.load_seconds, found.computed_tokens) == (40, 40, 2.0, 20)
    assert one.counting(90).load_tokens == 0
    assert one.counting(90).computed_tokens == 10
    fewer = one.counting(10)
    assert (fewer.load_tokens, fewer.load_seconds) == (70, 3.0)
    assert Candidate(A, 100, 20, 0, 0).counting(50).computed_tokens == 50


def test_a_slow_link_weighs_what_it_takes_where_the_engine_cannot_be_told() -> None:
    link = Link(SLOW * 125e6 * 0.9)
    found = seen(router(SLOW))[A]
    assert found.load_tokens == 4000
    assert found.load_seconds == pytest.approx(link.seconds(4_000_000))


def told(gigabits: float, **changes: object) -> Router:
    """The same, of engines that can be told what to load; ``b`` is not there."""
    owner = router(gigabits)
    owner.remove(B)
    able = {"connectors": ("OffloadingConnector",), "release": (0, 32)}
    owner.put(replica("a", models=("m",), **{**able, **changes}))
    return owner


def test_an_engine_that_can_be_told_does_what_is_cheapest() -> None:
    slow, fast = told(SLOW), told(FAST * 10)
    for _ in range(3):
        decision = slow.route(request(PROMPT), 0.0, 0.0)
        assert decision.mix is not None
        assert (decision.mix.loaded_tokens, decision.mix.computed_tokens) == (0, 4001)
        assert (decision.hint, decision.loads, decision.expected_tokens) == ({"max_load_tokens": 0}, (), 0)
        assert decision.loadable == (Load("CPU", 4000, 4),)
        slow.release(decision.lease, Outcome.OK, 0.0, Truth(4001, 0))
        slow.caches.predicted.forget(slow.caches.index.gpu.bit(A))
    assert slow.caches.load_audit.tokens == {("CPU", "left"): 12_000, ("CPU", "taken"): 0}
    assert slow.caches.load_audit.dropped == {}, "it was not asked for, and is still there"
    assert slow.load_plans.hints == {"max_load_tokens": 3}
    assert slow.load_plans._busy_until == {}
    decision = slow.route(request(PROMPT), 0.0, 0.0)
    slow.release(decision.lease, Outcome.OK, 0.0, Truth(4001, 4000))
    assert slow.caches.load_audit.tokens["CPU", "taken"] == 4000
    assert not slow.caches.healer._doubts, "it has not done as it was told, which says nothing against the index"
    decision = fast.route(request(PROMPT), 0.0, 0.0)
    assert (decision.hint, decision.expected_tokens) == ({}, 4000)
    assert fast.load_plans.hints == {}


def test_who_says_so_himself_is_not_told_and_not_judged() -> None:
    owner = told(SLOW)
    decision = owner.route(request(PROMPT, takes_hint=False), 0.0, 0.0)
    assert decision.mix is not None
    assert (decision.hint, decision.mix.loaded_tokens) == ({}, 4000)
    owner.release(decision.lease, Outcome.OK, 0.0, Truth(4001, 0))
    assert owner.caches.load_audit.tokens == {}


@pytest.mark.parametrize(
    "changes", [{"release": None}, {"release": (0, 30)}, {"connectors": ()}, {"connectors": ("X",)}]
)
def test_who_cannot_be_told_loads_all(changes: dict[str, object]) -> None:
    decision = told(SLOW, **changes).consider(request(PROMPT), 0.0, 0.0)
    assert decision.mix is not None
    assert (decision.hint, decision.mix.loaded_tokens) == ({}, 4000), "the CPU tier is read by all that know no length"


def test_what_is_more_cached_than_was_planned_is_less_to_load() -> None:
    mix = Mix(0, (MixLoad("CPU", 0, 320, 0.0, 0.0), MixLoad("store:s", 320, 640, 0.0, 0.0)), 361, 0.0)
    decision = told(SLOW).consider(request(PROMPT), 0.0, 0.0)
    decision = msgspec.structs.replace(decision, mix=mix, hint={"max_load_tokens": 640})
    assert decision.loads == (Load("CPU", 320), Load("store:s", 320))
    more = msgspec.structs.replace(decision, cached_tokens=400)
    assert (more.loads, more.expected_tokens) == ((Load("store:s", 240),), 640)


def test_what_an_engine_was_not_to_load_and_what_it_was_are_counted_apart() -> None:
    owner = told(SLOW)
    mix = Mix(0, (MixLoad("CPU", 0, 320, 0.0, 0.0),), 3681, 0.0)
    sent = owner.consider(request(PROMPT), 0.0, 0.0)
    sent = msgspec.structs.replace(sent, mix=mix, hint={"max_load_tokens": 320})
    audit = owner.caches.load_audit
    for actual, expected in (
        (320, {"loaded": 320, "missed": 0, "left": 3680, "taken": 0}),
        (400, {"loaded": 320, "missed": 0, "left": 3600, "taken": 80}),
        (300, {"loaded": 300, "missed": 20, "left": 3680, "taken": 0}),
        (4000, {"loaded": 320, "missed": 0, "left": 0, "taken": 3680}),
    ):
        audit.tokens.clear()
        audit.compare(sent, actual, request(PROMPT), Chain(RECIPE, PROMPT), 4)
        assert {result: count for (_, result), count in audit.tokens.items()} == expected, actual


def store_behind(gigabits: float, **changes: object) -> Router:
    """``a`` has the prompt on its GPU, as far as anybody knows; behind it is a store, in which nothing lies yet."""
    store = Store(StoreSettings(name="s"), Traits())
    economy = Economy(models=WEIGHT, stores={"s": Link(gigabits * 125e6)})
    owner = Router(PredictedTtft(), "predicted_ttft", stores=[store], economy=economy)
    able = {"connectors": ("OffloadingConnector",), "release": (0, 32)}
    owner.put(replica("a", models=("m",), **{**able, **changes}))
    owner.caches.apply(A, [stored(PROMPT)])
    return owner


def test_what_is_thought_to_be_on_the_gpu_is_not_loaded_over_a_slow_link_if_it_is_gone() -> None:
    slow, fast = store_behind(SLOW), store_behind(FAST * 10)
    decision = slow.route(request(PROMPT), 0.0, 0.0)
    assert (decision.mix, decision.cached_tokens, decision.hint) == (None, 4000, {"kv_load_tiers": []})
    assert (decision.loads, decision.expected_tokens) == ((), 4000)
    assert slow.load_plans.hints == {"kv_load_tiers": 1}
    plan = plan_of(decision)
    assert isinstance(plan, Plan)
    assert (plan.hit_tokens, plan.loads, plan.computed_tokens, plan.hint) == (4000, {}, 1, {"kv_load_tiers": []})
    assert fast.route(request(PROMPT), 0.0, 0.0).hint == {}, "there it is worth it"


@pytest.mark.parametrize("changes", [{"release": None}, {"connectors": ()}])
def test_who_cannot_be_told_is_not_told_that_either(changes: dict[str, object]) -> None:
    assert store_behind(SLOW, **changes).route(request(PROMPT), 0.0, 0.0).hint == {}


def test_who_says_so_himself_or_asks_several_things_at_once_is_not_told_that_either() -> None:
    owner = store_behind(SLOW)
    assert owner.route(request(PROMPT, takes_hint=False), 0.0, 0.0).hint == {}
    assert owner.route(request(PROMPT, reads_cache=False), 0.0, 0.0).hint == {}
    assert owner.route(request(PROMPT, PROMPT), 0.0, 0.0).hint == {}


@pytest.mark.parametrize("gigabits", [SLOW, FAST * 10])
def test_where_anything_may_have_been_loaded_speeds_are_learned_from_what_the_engine_says(gigabits: float) -> None:
    """A prompt of which 1 token was to be computed takes 10 s each time; who was told to load nothing is taken at that."""
    owner = store_behind(gigabits)
    for at in range(20):
        decision = owner.route(request(PROMPT), 100.0 * at, 0.0)
        owner.started(decision.lease, 100.0 * at + 10)
        owner.release(decision.lease, Outcome.OK, 100.0 * at + 11, Truth(4001, 0))
    live = owner.fleet.get(A)
    assert live is not None
    expected, computed = live.prefill.seconds(1, 4000, 0), live.prefill.seconds(4001, 2000, 0)
    assert computed == pytest.approx(10, rel=0.1)
    assert (expected > 5) is (gigabits == SLOW)
