"""``balancer/router.py``: requests go where their blocks are, leases return to nothing, and nobody is promised too much."""

from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from balancer.core import NOTHING_ASKED, Asked, Candidate, Decision, Outcome, Replica, RouteRequest, Truth
from balancer.errors import NoReplica, UnknownModel
from balancer.fleet import Status
from balancer.hashes import PromptHashes
from balancer.healing import SETTLE_SECONDS
from balancer.knowledge import Knowledge
from balancer.matching import usable_blocks
from balancer.policies.base import make
from balancer.policies.cache_aware import CacheAware
from balancer.router import Router
from hashing.chain import Chain
from hashing.extras import Lora
from hashing.recipes import Recipe
from indexer.events import EMPTY, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.index import ReplicaId
from indexer.recognition import KeyState
from indexer.stream import Apply, Forget, Lost, Replay, Standing
from indexer.wire import Batch
from tests.support.routing import MODEL, RANDOM, RECIPE, replica, request, stored, told

A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")
PROMPT = list(range(100, 141))  # 41 tokens: ten full blocks and one token


def router(*names: str) -> Router:
    made = Router(CacheAware(), "cache_aware")
    for name in names or ("a", "b"):
        made.put(replica(name))
    return made


def events(*each: KVEvent) -> list[Apply]:
    return [Apply([Batch(0.0, list(each))])]


def cached(owner: Router, wanted: RouteRequest) -> dict[str, int]:
    """What each replica would be expected to have of a request; leaves nothing behind."""
    decision = owner.route(wanted, 0.0, 0.0)
    owner.release(decision.lease, Outcome.CANCELLED, 0.0)
    return {each.replica: each.cached_tokens for each in decision.candidates}


# Matching


def test_a_request_goes_to_the_holder_of_its_prompt() -> None:
    owner = router("a", "b", "c")
    owner.caches.observe(B, events(stored(PROMPT)))
    for draw in (0.0, 0.5, 0.99):
        decision = owner.route(request(PROMPT), 0.0, draw)
        owner.release(decision.lease, Outcome.CANCELLED, 0.0)
        assert (decision.replica.id, decision.cached_tokens, decision.prompt_tokens) == (B, 40, 41)


@pytest.mark.parametrize(("length", "usable"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (40, 9), (41, 10)])
def test_the_last_token_is_never_promised(length: int, usable: int) -> None:
    assert usable_blocks(length, 4) == usable
    owner = router("a")
    owner.caches.observe(A, events(stored(PROMPT)))
    assert cached(owner, request(PROMPT[:length])) == {"a": 4 * usable}


def test_a_hole_ends_the_match() -> None:
    owner = router()
    event = stored(PROMPT)
    owner.caches.observe(A, events(event, BlockRemoved(block_hashes=event.block_hashes[2:3])))
    owner.caches.observe(B, events(event, BlockRemoved(block_hashes=event.block_hashes[:1])))
    assert cached(owner, request(PROMPT)) == {"a": 8, "b": 0}


def test_salts_and_adapters_are_caches_of_their_own() -> None:
    sql = Lora("sql", "/adapters/sql")
    owner = Router(CacheAware(), "cache_aware")
    owner.put(replica("a", models=(MODEL, "sql"), adapters=(sql,)))
    owner.caches.observe(A, events(stored(PROMPT, salt="mine"), stored(PROMPT[:20], lora=sql)))
    assert cached(owner, request(PROMPT)) == {"a": 0}
    assert cached(owner, request(PROMPT, salt="mine")) == {"a": 40}
    assert cached(owner, request(PROMPT, salt="yours")) == {"a": 0}
    assert cached(owner, request(PROMPT, model="sql")) == {"a": 20}


def test_an_adapter_loaded_from_elsewhere_shares_nothing() -> None:
    owner = Router(CacheAware(), "cache_aware")
    for name, path in (("a", "/v1/sql"), ("b", "/v2/sql")):
        owner.put(replica(name, models=("sql",), adapters=(Lora("sql", path),)))
        owner.caches.observe(ReplicaId(name), events(stored(PROMPT, lora=Lora("sql", "/v1/sql"))))
    assert cached(owner, request(PROMPT, model="sql")) == {"a": 40, "b": 0}


def test_replicas_with_other_recipes_are_each_matched_in_tokens() -> None:
    owner = router("a")
    eight = Recipe(block_size=8, algorithm="sha256_cbor")
    owner.put(replica("b", recipe=eight))
    owner.caches.observe(A, events(stored(PROMPT)))
    owner.caches.observe(B, events(stored(PROMPT, recipe=eight)))
    assert cached(owner, request(PROMPT)) == {"a": 40, "b": 40}
    assert cached(owner, request(PROMPT[:40])) == {"a": 36, "b": 32}


def test_several_prompts_are_matched_one_by_one_and_not_held_against_the_engine() -> None:
    owner = router("a")
    owner.caches.observe(A, events(stored(PROMPT)))
    other = [7] * 10
    decision = owner.route(request(PROMPT, other, is_comparable=False), 0.0, 0.0)
    assert (decision.cached_tokens, decision.prompt_tokens, decision.is_predicted) == (40, 51, False)


def test_a_request_that_skips_the_cache_is_promised_nothing() -> None:
    owner = router("a")
    owner.caches.observe(A, events(stored(PROMPT)))
    decision = owner.route(request(PROMPT, reads_cache=False), 0.0, 0.0)
    assert (decision.cached_tokens, decision.is_predicted) == (0, True)


def test_a_replica_whose_hashes_nobody_knows_still_takes_requests() -> None:
    owner = Router(CacheAware(), "cache_aware")
    owner.put(replica("a", recipe=None))
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    assert (decision.replica.id, decision.cached_tokens, decision.is_predicted) == (A, 0, False)
    owner.release(decision.lease, Outcome.OK, 0.0, Truth(cached_tokens=16))
    assert owner.caches.audit.tallies[A, MODEL].compared == 0


def test_unknown_tokens_are_queued_by_their_guess_and_not_predicted() -> None:
    owner = router("a")
    decision = owner.route(request(size_hint=900), 0.0, 0.0)
    assert not decision.is_predicted
    assert [live.queued_tokens for live in owner.fleet] == [900]


# Expectations: between a decision and its events


def test_requests_that_come_before_the_first_event_stay_together() -> None:
    owner = router("a", "b", "c")
    first = owner.route(request(PROMPT), 0.0, 0.7)
    owner.started(first.lease, 0.0)
    assert cached(owner, request(PROMPT))[first.replica.id] == 40
    assert sum(cached(owner, request(PROMPT)).values()) == 40


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.CANCELLED, Outcome.UNREACHABLE])
def test_what_a_failed_request_promised_is_forgotten_at_once(outcome: Outcome) -> None:
    owner = router("a")
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    owner.release(decision.lease, outcome, 0.0)
    assert cached(owner, request(PROMPT)) == {"a": 0}
    assert not owner.caches.predicted


def test_events_have_a_while_to_come_after_a_request_has_ended_well() -> None:
    owner = router("a")
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    owner.release(decision.lease, Outcome.OK, 10.0)
    owner.tick(10.0 + SETTLE_SECONDS / 2)
    assert cached(owner, request(PROMPT)) == {"a": 40}
    owner.tick(10.0 + SETTLE_SECONDS)
    assert cached(owner, request(PROMPT)) == {"a": 0}
    assert not owner.caches.predicted


def test_what_events_have_confirmed_stays() -> None:
    owner = router("a")
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    owner.caches.observe(A, events(stored(PROMPT[:20])))
    owner.release(decision.lease, Outcome.OK, 0.0)
    owner.tick(SETTLE_SECONDS)
    assert cached(owner, request(PROMPT)) == {"a": 20}


def test_a_block_evicted_after_it_was_confirmed_is_not_expected_any_more() -> None:
    owner = router("a")
    owner.route(request(PROMPT), 0.0, 0.0)
    event = stored(PROMPT)
    owner.caches.observe(A, events(event, BlockRemoved(block_hashes=event.block_hashes[:1])))
    assert cached(owner, request(PROMPT)) == {"a": 0}


def test_a_block_that_was_held_and_is_evicted_is_not_expected_of_who_came_for_it() -> None:
    owner = router("a")
    event = stored(PROMPT)
    owner.caches.observe(A, events(event))
    owner.route(request(PROMPT), 0.0, 0.0)
    owner.caches.observe(A, events(BlockRemoved(block_hashes=event.block_hashes)))
    assert cached(owner, request(PROMPT)) == {"a": 0}


# News of a cache's end


def test_a_restart_forgets_what_was_held_and_what_was_expected() -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    owner.caches.observe(B, events(stored(PROMPT)))
    owner.caches.observe(A, [Lost(3, 5)])
    owner.route(request([5] * 20), 0.0, 0.0)
    owner.caches.observe(A, [Forget("sequence began anew")])
    owner.caches.observe(B, [Forget("sequence began anew"), *events(stored(PROMPT[:8]))])
    assert cached(owner, request(PROMPT)) == {"a": 0, "b": 8}
    assert sum(cached(owner, request([5] * 20)).values()) == 0
    assert owner.caches.losses[A].batches == 0


def test_a_clear_in_a_batch_counts_where_it_stands() -> None:
    owner = router("a")
    owner.caches.observe(A, events(stored(PROMPT), AllBlocksCleared(), stored(PROMPT[:12])))
    assert cached(owner, request(PROMPT)) == {"a": 12}


def test_lost_batches_are_counted_for_each_replica() -> None:
    owner = router()
    owner.caches.observe(A, [Lost(3, 5), Lost(9, 9)])
    assert {name: each.batches for name, each in owner.caches.losses.items()} == {A: 4, B: 0}


def test_replays_are_none_of_its_business() -> None:
    with pytest.raises(AssertionError):
        router().caches.observe(A, [Replay(0)])


def test_events_of_a_removed_replica_are_dropped_and_its_leases_end() -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    assert decision.replica.id == A
    owner.remove(A)
    owner.caches.observe(A, events(stored(PROMPT)))
    owner.release(decision.lease, Outcome.OK, 0.0, Truth(cached_tokens=40))
    owner.put(replica("a"))
    assert cached(owner, request(PROMPT)) == {"a": 0, "b": 0}
    owner.caches.index.check()


# Refusals


def test_without_any_replica_the_client_may_come_again() -> None:
    with pytest.raises(NoReplica) as told:
        Router(CacheAware(), "cache_aware").route(request(PROMPT), 0.0, 0.0)
    assert told.value.retry_after


def test_a_wrong_model_is_told_the_right_ones() -> None:
    with pytest.raises(UnknownModel, match=r"'nope' is not served here; served: m") as told:
        router().route(request(PROMPT, model="nope"), 0.0, 0.0)
    assert told.value.param == "model"


@pytest.mark.parametrize("status", [Status.LOST])
def test_the_best_match_is_passed_over_when_it_cannot_be_used(status: Status) -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    owner.set_status(A, status)
    assert owner.route(request(PROMPT), 0.0, 0.0).replica.id == B
    owner.set_status(B, Status.LOST)
    with pytest.raises(
        NoReplica, match=rf"none of 2 replicas of 'm' can take a request now \(.*{status}.*\); try again"
    ):
        owner.route(request(PROMPT), 0.0, 0.0)
    owner.set_status(A, Status.READY)
    assert owner.route(request(PROMPT), 0.0, 0.0).replica.id == A


def test_excluded_replicas_are_not_chosen() -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    assert owner.route(request(PROMPT, excluded=frozenset({A})), 0.0, 0.0).replica.id == B
    with pytest.raises(NoReplica):
        owner.route(request(PROMPT, excluded=frozenset({A, B})), 0.0, 0.0)
    assert owner.fleet.open_leases == 1


def test_a_refused_request_leaves_no_lease() -> None:
    owner = router()
    with pytest.raises(UnknownModel):
        owner.route(request(PROMPT, model="nope"), 0.0, 0.0)
    assert owner.fleet.open_leases == 0


# Leases


def test_a_lease_is_released_exactly_once() -> None:
    owner = router()
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    owner.release(decision.lease, Outcome.OK, 0.0)
    with pytest.raises(KeyError):
        owner.release(decision.lease, Outcome.OK, 0.0)


def test_only_good_endings_are_held_against_the_prediction() -> None:
    owner = router("a")
    for outcome in Outcome:
        decision = owner.route(request(PROMPT), 0.0, 0.0)
        owner.release(decision.lease, outcome, 0.0, Truth(cached_tokens=0))
        owner.tick(1e9)
    assert owner.caches.audit.tallies[A, MODEL].compared == 1


ENDINGS = st.lists(st.tuples(st.sampled_from(Outcome), st.booleans(), st.floats(0, 0.999)), max_size=30)


@given(ENDINGS, st.randoms(use_true_random=False))
def test_loads_return_to_zero_whatever_the_order_of_endings(
    ends: Sequence[tuple[Outcome, bool, float]], order: Random
) -> None:
    owner = router("a", "b", "c")
    open_: list[tuple[Decision, Outcome]] = []
    for at, (outcome, has_started, draw) in enumerate(ends):
        decision = owner.route(request([at] * 30), 0.0, draw)
        if has_started:
            owner.started(decision.lease, 0.0)
        open_.append((decision, outcome))
    order.shuffle(open_)
    for decision, outcome in open_:
        owner.release(decision.lease, outcome, 0.0)
    owner.tick(SETTLE_SECONDS)
    assert [(live.in_flight, live.queued_tokens) for live in owner.fleet] == [(0, 0)] * 3
    assert owner.fleet.open_leases == 0
    assert not owner.caches.predicted


class Traffic(RuleBasedStateMachine):
    """Any mixture of requests, endings, events, restarts and failures."""

    def __init__(self) -> None:
        super().__init__()
        self.router = router("a", "b", "c")
        self.now = 0.0
        self.open: list[Decision] = []
        self.queued: dict[int, int] = {}

    prompts = st.integers(0, 3).flatmap(
        lambda family: st.integers(1, 40).map(lambda length: [family * 1000 + at for at in range(length)])
    )
    names = st.sampled_from([A, B, C])

    @rule(prompt=prompts, draw=st.floats(0, 0.999))
    def ask(self, prompt: list[int], draw: float) -> None:
        try:
            decision = self.router.route(request(prompt), self.now, draw)
        except NoReplica:
            assert not any(live.is_available() for live in self.router.fleet)
            return
        assert decision.replica.id in {each.replica for each in decision.candidates}
        for each in decision.candidates:
            assert 0 <= each.cached_tokens <= usable_blocks(len(prompt), 4) * 4
            assert each.cached_tokens < len(prompt)
        self.open.append(decision)
        self.queued[decision.lease] = len(prompt) - decision.cached_tokens

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def first_output(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.open)).lease
        self.router.started(lease, self.now)
        self.queued[lease] = 0

    @precondition(lambda self: self.open)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        decision = data.draw(st.sampled_from(self.open))
        self.open.remove(decision)
        del self.queued[decision.lease]
        self.router.release(decision.lease, outcome, self.now, Truth(cached_tokens=decision.cached_tokens))

    @rule(name=names, prompt=prompts)
    def store(self, name: ReplicaId, prompt: list[int]) -> None:
        self.router.caches.observe(name, events(stored(prompt)))

    @rule(name=names, prompt=prompts)
    def evict(self, name: ReplicaId, prompt: list[int]) -> None:
        gpu = self.router.caches.index.gpu  # of what it never stored is told in test_caches: it makes the cache partial
        gone = [key for key in stored(prompt).block_hashes[-2:] if gpu.holds(name, 0, key)]
        self.router.caches.observe(name, events(BlockRemoved(block_hashes=gone)))

    @rule(name=names)
    def clear(self, name: ReplicaId) -> None:
        self.router.caches.observe(name, events(AllBlocksCleared()))

    @rule(name=names)
    def restart(self, name: ReplicaId) -> None:
        self.router.caches.observe(name, [Forget("restart")])

    @rule(name=names, status=st.sampled_from(Status))
    def turn(self, name: ReplicaId, status: Status) -> None:
        self.router.set_status(name, status)

    @rule(seconds=st.floats(0, 2))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.router.tick(self.now)

    @invariant()
    def loads_are_the_sums_over_open_leases(self) -> None:
        for live in self.router.fleet:
            mine = [decision.lease for decision in self.open if decision.replica.id == live.replica.id]
            assert live.in_flight == len(mine)
            assert live.queued_tokens == sum(self.queued[lease] for lease in mine)
        assert self.router.fleet.open_leases == len(self.open)

    @invariant()
    def the_index_is_sound(self) -> None:
        self.router.caches.index.check()

    @invariant()
    def whoever_owes_nothing_is_expected_to_do_nothing(self) -> None:
        if not self.open:
            self.router.tick(self.now + SETTLE_SECONDS)
            assert not self.router.caches.predicted


TestTraffic = Traffic.TestCase


def test_the_policy_sees_what_is_known() -> None:
    seen: list[Sequence[Candidate]] = []

    class Spy:
        def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
            seen.append(candidates)
            return candidates[1]

    owner = Router(Spy(), "spy")
    for name in ("a", "b"):
        owner.put(replica(name))
    owner.caches.observe(A, events(stored(PROMPT)))
    first = owner.route(request([9] * 50), 0.0, 0.0)
    second = owner.route(request(PROMPT), 0.0, 0.0)
    assert second.policy == "spy"
    assert list(seen[1]) == list(second.candidates)
    assert [(each.replica, each.cached_tokens, each.queued_tokens, each.in_flight) for each in seen[1]] == [
        ("a", 40, 0, 0),
        ("b", 0, 50, 1),
    ]
    assert [each.last_lease for each in seen[1]] == [0, first.lease]


def test_a_recipe_that_changes_is_used_from_the_next_request_on() -> None:
    owner = router("a")
    owner.caches.observe(A, events(stored(PROMPT)))
    owner.put(replica("a", recipe=Recipe(block_size=8)))
    assert cached(owner, request(PROMPT)) == {"a": 0}
    owner.put(replica("a", recipe=RECIPE))
    assert cached(owner, request(PROMPT)) == {"a": 40}


def test_a_replica_that_tells_nothing_of_its_cache_is_not_predicted() -> None:
    """No events: what is guessed of it must not count as a prediction."""
    router = Router(make("round_robin"), "round_robin")
    for name, tells in (("silent", False), ("tells", True)):
        router.put(
            Replica(ReplicaId(name), f"http://{name}", models=("m",), recipe=Recipe(block_size=4), has_events=tells)
        )
    tokens = [1, 2, 3, 4, 5]
    wanted = RouteRequest("m", PromptHashes([tokens], None, None), (5,))
    decisions = {each.replica.id: each for each in (router.route(wanted, 0.0, 0.0), router.route(wanted, 0.0, 0.0))}
    assert [decisions[ReplicaId(name)].is_predicted for name in ("silent", "tells")] == [False, True]
    assert all(each.knows_tokens for each in decisions.values())


# Keys that are proven or learned

WELL = Standing(is_connected=True, is_complete=True)


def test_a_replica_whose_recipe_nobody_declared_is_learned_and_then_predicted() -> None:
    owner = Router(CacheAware(), "cache_aware")
    owner.put(replica("a", recipe=None))
    assert not owner.route(request(PROMPT), 0.0, 0.0).is_predicted
    owner.caches.observe(A, events(told(PROMPT, RANDOM), told(PROMPT[:20], RANDOM, salt="mine")))
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    assert (decision.cached_tokens, decision.is_predicted) == (40, True)
    assert cached(owner, request(PROMPT, salt="mine")) == {"a": 20}
    assert cached(owner, request(PROMPT, salt="yours")) == {"a": 0}
    event = told(PROMPT, RANDOM)
    owner.caches.observe(A, events(BlockRemoved(event.block_hashes[3:], "GPU")))
    assert cached(owner, request(PROMPT[:30])) == {"a": 12}
    owner.caches.observe(A, events(AllBlocksCleared(), told(PROMPT[:8], RANDOM)))
    assert cached(owner, request(PROMPT)) == {"a": 8}


def test_learned_adapters_need_no_path_that_agrees() -> None:
    sql = Lora("sql", "/here/sql")
    owner = Router(CacheAware(), "cache_aware")
    owner.put(replica("a", models=(MODEL, "sql"), adapters=(sql,)))
    owner.caches.observe(A, events(told(PROMPT, RANDOM), told(PROMPT, RANDOM, lora=Lora("sql", "/there/sql"))))
    assert owner.caches.recognitions[A].state is KeyState.LEARNED
    assert cached(owner, request(PROMPT, model="sql")) == {"a": 40}


def test_proven_and_learned_replicas_are_scored_side_by_side_in_tokens() -> None:
    owner = router("a", "b", "c")
    eight = Recipe(block_size=8, algorithm="xxhash", root=b"x" * 16)
    owner.caches.observe(A, events(told(PROMPT[:30], recipe=RECIPE)))
    owner.caches.observe(B, events(told(PROMPT, recipe=eight)))
    owner.caches.observe(C, events(told(PROMPT[:20], recipe=Recipe(block_size=2, seed="0"))))
    states = [owner.caches.recognitions[name].state for name in (A, B, C)]
    assert states == [KeyState.PROVEN, KeyState.LEARNED, KeyState.PROVEN]
    assert cached(owner, request(PROMPT)) == {"a": 28, "b": 40, "c": 20}
    assert owner.route(request(PROMPT), 0.0, 0.0).replica.id == B


def test_a_recipe_that_the_first_event_refutes_voids_only_what_was_read_before() -> None:
    owner = router()
    for name in (A, B):
        owner.caches.observe(name, events(stored(PROMPT)))  # without tokens: it proves nothing, and is believed
    assert cached(owner, request(PROMPT)) == {"a": 40, "b": 40}
    owner.caches.observe(A, events(told(PROMPT[:12], RANDOM), told([7] * 9, RANDOM)))
    assert cached(owner, request(PROMPT)) == {"a": 12, "b": 40}
    assert cached(owner, request([7] * 9)) == {"a": 8, "b": 0}
    assert owner.caches.index.gpu.blocks(A) == 5


def test_a_recipe_that_is_found_by_trying_voids_nothing() -> None:
    seeded = Recipe(block_size=4, seed="0")
    owner = router("a")
    owner.caches.observe(A, events(stored(PROMPT, recipe=seeded)))
    assert cached(owner, request(PROMPT)) == {"a": 0}
    owner.caches.observe(A, events(told([7] * 9, recipe=seeded)))
    assert cached(owner, request(PROMPT)) == {"a": 40}


def test_expectations_of_learned_keys_are_met_by_their_events() -> None:
    owner = router("a")
    owner.caches.observe(A, events(told([7] * 9, RANDOM)))
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    assert cached(owner, request(PROMPT)) == {"a": 40}
    event = told(PROMPT, RANDOM)
    owner.caches.observe(A, events(event, BlockRemoved(event.block_hashes[:1], "GPU")))
    assert cached(owner, request(PROMPT)) == {"a": 0}, "what came and went is not expected any more"
    owner.release(decision.lease, Outcome.OK, 0.0)
    owner.tick(SETTLE_SECONDS)
    assert not owner.caches.predicted


def test_a_restart_begins_the_proof_anew() -> None:
    owner = router("a")
    owner.caches.observe(A, events(told(PROMPT, RANDOM)))
    owner.caches.observe(A, [WELL])
    assert owner.caches.view(A, 1.0).state is Knowledge.LEARNED
    owner.caches.observe(A, [Forget("restart")])
    assert owner.caches.recognitions[A].state is KeyState.UNPROVEN
    assert cached(owner, request(PROMPT)) == {"a": 0}
    owner.caches.observe(A, events(told(PROMPT, recipe=RECIPE)))
    assert owner.caches.recognitions[A].state is KeyState.PROVEN
    assert cached(owner, request(PROMPT)) == {"a": 40}
    owner.caches.observe(
        A, [Forget("restart"), *events(told(PROMPT[:20], recipe=msgspec.structs.replace(RANDOM, root=b"s" * 32)))]
    )
    assert cached(owner, request(PROMPT)) == {"a": 20}


def test_what_was_learned_outlives_what_the_engine_says_again() -> None:
    owner = router("a")
    owner.caches.observe(A, events(told(PROMPT, RANDOM)))
    owner.put(replica("a", max_model_len=9))
    assert cached(owner, request(PROMPT)) == {"a": 40}
    owner.remove(A)
    owner.put(replica("a"))
    assert owner.caches.recognitions[A].state is KeyState.UNPROVEN


def test_a_view_says_since_when_it_holds() -> None:
    owner = router("a")
    owner.caches.observe(A, [Standing()])
    assert (owner.caches.view(A, 1.0).state, owner.caches.view(A, 2.0).since) == (Knowledge.BLIND, 1.0)
    owner.caches.observe(A, [WELL])
    assert (owner.caches.view(A, 3.0).state, owner.caches.view(A, 4.0).since) == (Knowledge.EXACT, 3.0)
    believed = owner.caches.view(A, 4.0).reason
    owner.caches.observe(A, events(told(PROMPT, recipe=RECIPE)))
    proven = owner.caches.view(A, 5.0)
    assert (proven.state, proven.since) == (Knowledge.EXACT, 3.0)
    assert proven.reason != believed, "the reason may change while the state holds"
    owner.caches.observe(A, [Lost(3, 5)])
    assert (owner.caches.view(A, 6.0).state, owner.caches.view(A, 6.0).since) == (Knowledge.PARTIAL, 6.0)
    owner.remove(A)
    owner.put(replica("a"))
    owner.caches.observe(A, [Standing()])
    assert (owner.caches.view(A, 7.0).state, owner.caches.view(A, 7.0).since) == (Knowledge.BLIND, 7.0)


def test_an_engine_that_drafts_computes_the_last_block_of_a_hit_anew() -> None:
    """vLLM 0.32, block size 16, prompts of 17 to 97 tokens: 0, 0, 16, 32, 80 cached; without EAGLE 16, 16, 32, 48, 96."""
    router = Router(make("cache_aware"), "cache_aware")
    recipe = Recipe(block_size=16)
    name = ReplicaId("drafts")
    router.put(Replica(name, "http://drafts", models=("m",), recipe=recipe, has_eagle=True))
    router.caches.apply(name, [BlockStored(list(Chain(recipe, range(97)).keys(6)), None, EMPTY, 16)])
    for length, cached in ((17, 0), (32, 0), (33, 16), (49, 32), (97, 80)):
        wanted = RouteRequest("m", PromptHashes([range(length)], None, None), (length,))
        assert router.route(wanted, 0.0, 0.0).cached_tokens == cached


def test_lost_batches_of_a_replica_that_is_gone_are_nobodys() -> None:
    router = Router(make("cache_aware"), "cache_aware")
    router.put(replica("a"))
    router.remove(A)
    router.caches.observe(A, [Lost(0, 9)])
    router.put(replica("a"))
    assert router.caches.losses[A].batches == 0


def test_what_nobody_holds_goes_to_the_same_of_equals_whoever_decides() -> None:
    prompts = [[at] * 300 for at in range(40)]
    homes: list[list[ReplicaId]] = []
    for names, draw in (("abcd", 0.0), ("dcba", 0.9)):
        owner = router(*names)
        decided = [owner.consider(request(each), 0.0, draw) for each in prompts]
        homes.append([each.replica.id for each in decided])
    assert homes[0] == homes[1]
    assert len(set(homes[0])) == 4


@pytest.mark.parametrize(("length", "salt"), [(255, None), (300, "s")])
def test_what_is_short_leans_nowhere_and_a_salt_makes_another_beginning(length: int, salt: str | None) -> None:
    owner = router(*"abcd")
    plain, other = request([7] * 300), request([7] * length, salt=salt)
    homes = [{owner.consider(each, 0.0, draw / 9).replica.id for draw in range(9)} for each in (plain, other)]
    assert len(homes[0]) == 1
    assert homes[1] != homes[0]


def test_load_and_what_is_held_count_before_where_a_prompt_leans() -> None:
    owner = router("a", "b")
    alike = [request([at] * 300) for at in range(20) if owner.consider(request([at] * 300), 0.0, 0.0).replica.id == A]
    assert [owner.route(each, 0.0, 0.0).replica.id for each in alike[:2]] == [A, B], "A has one request under way"
    for name in "ab":
        owner.caches.observe(ReplicaId(name), events(stored([9] * 300)))
    held = request([9] * 300)
    assert {owner.consider(held, 0.0, draw).replica.id for draw in (0.0, 0.9)} == {"a", "b"}, "chance, as both hold it"
