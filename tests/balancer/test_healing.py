"""``balancer/healing.py`` through the router: the engine's own figures correct the index, and say where an error came from."""

from collections.abc import Sequence

import msgspec
import pytest

from balancer.audit import Cause
from balancer.caches import Resync
from balancer.core import Decision, Knowledge, Outcome, Truth
from balancer.healing import MAX_SUSPECTS, RENDERED_LATER, SETTLE_SECONDS, Correction
from balancer.knowledge import TRUSTED_AGAIN
from balancer.policies.cache_aware import CacheAware
from balancer.router import Router
from hashing.extras import Lora
from indexer.events import AllBlocksCleared, BlockRemoved, KVEvent
from indexer.index import ReplicaId
from indexer.stream import Apply, Forget, Lost, Standing
from indexer.wire import Batch
from tests.support.routing import MODEL, RANDOM, replica, request, stored, told

A, B = ReplicaId("a"), ReplicaId("b")
PROMPT = list(range(100, 141))  # 41 tokens: ten full blocks of four and one token
OTHER = list(range(500, 541))
KEYS = stored(PROMPT).block_hashes


def router(**changes: object) -> Router:
    made = Router(CacheAware(), "cache_aware")
    made.put(replica("a", **changes))
    return made


def events(*each: KVEvent, skipped: tuple[str, ...] = ()) -> list[Apply]:
    return [Apply([Batch(0.0, list(each), None, skipped)])]


def ask(
    owner: Router,
    tokens: Sequence[int],
    actual: int | None,
    now: float,
    *between: Apply | Forget,
    rendered_at: float | None = None,
) -> Decision:
    """One request of which the engine found ``actual`` tokens; ``between`` comes while it is under way. Judged at once."""
    decision = owner.route(request(tokens, rendered_at=rendered_at), now, 0.0)
    owner.caches.observe(A, between)
    owner.release(decision.lease, Outcome.OK, now, Truth(prompt_tokens=len(tokens), cached_tokens=actual))
    owner.tick(now + SETTLE_SECONDS)
    return decision


def state(owner: Router) -> tuple[Knowledge, str]:
    view = owner.caches.view(A, 0.0)
    return view.state, view.reason


def cached(owner: Router, tokens: Sequence[int]) -> int:
    decision = owner.route(request(tokens), 0.0, 0.0)
    owner.release(decision.lease, Outcome.CANCELLED, 0.0)
    return decision.cached_tokens


def causes(owner: Router) -> dict[Cause, int]:
    tally = owner.caches.audit.tallies.get((A, MODEL))
    return {} if tally is None else {cause: count for cause, count in tally.causes.items() if count}


def corrections(owner: Router) -> dict[Correction, int]:
    return {each: count for each, count in owner.caches.healer.corrections.items() if count}


# What is remembered of replicas that do not tell all


def test_a_blind_replica_is_known_by_what_was_sent_there() -> None:
    owner = router(has_events=False, recipe=None)
    owner.put(replica("b", has_events=False, recipe=None))
    first = owner.route(request(PROMPT), 0.0, 0.9)
    owner.release(first.lease, Outcome.OK, 0.0)
    owner.tick(1e6)
    for draw in (0.0, 0.9):
        again = owner.route(request(PROMPT), 1e6, draw)
        owner.release(again.lease, Outcome.CANCELLED, 1e6)
        assert (again.replica.id, again.cached_tokens, again.is_predicted) == (first.replica.id, 32, False)
        assert {each.knowledge for each in again.candidates} == {Knowledge.BLIND}


def test_what_failed_or_was_cancelled_is_not_remembered() -> None:
    owner = router(has_events=False)
    for outcome in (Outcome.CANCELLED, Outcome.ERROR, Outcome.UNREACHABLE):
        owner.release(owner.route(request(PROMPT), 0.0, 0.0).lease, outcome, 0.0)
    assert cached(owner, PROMPT) == 0


def test_no_more_is_remembered_than_the_engine_has_room_for() -> None:
    owner = router(has_events=False, num_gpu_blocks=15)
    ask(owner, PROMPT, None, 0.0)
    ask(owner, OTHER, None, 10.0)
    assert cached(owner, OTHER) == 40
    assert cached(owner, PROMPT) < 40
    assert len(owner.caches.predicted) <= 15


def test_without_prefix_caching_nothing_is_remembered() -> None:
    owner = router(has_events=False, has_prefix_caching=False)
    ask(owner, PROMPT, None, 0.0)
    assert cached(owner, PROMPT) == 0


def test_an_index_that_came_late_fills_as_requests_walk_over_known_chains() -> None:
    owner = router()
    owner.caches.observe(A, [Lost(0, 99), *events(stored(PROMPT + OTHER[:8]))])
    owner.caches.observe(
        A, events(BlockRemoved(KEYS[:3]))
    )  # its first blocks were stored before we came, as far as we know
    assert cached(owner, PROMPT) == 0
    ask(owner, PROMPT, None, 0.0)
    assert cached(owner, PROMPT) == 40
    owner.caches.observe(A, events(BlockRemoved(KEYS[1:2])))
    assert cached(owner, PROMPT) == 4


def test_what_was_remembered_is_void_once_all_is_known() -> None:
    owner = router()
    owner.caches.observe(A, [Standing(is_connected=True)])
    ask(owner, PROMPT, None, 0.0)
    assert cached(owner, PROMPT) == 40
    owner.caches.observe(A, [Standing(is_connected=True, is_complete=True)])
    assert state(owner)[0] is Knowledge.EXACT
    assert cached(owner, PROMPT) == 0


AD = Lora("ad", "/adapters/ad")
FROM_ELSEWHERE = msgspec.structs.replace(AD, path="/elsewhere/ad")
BEGINNING, WHOLE = told(OTHER[:4], RANDOM), told(OTHER[:8], RANDOM)
REST = msgspec.structs.replace(
    told(OTHER[4:8], RANDOM), block_hashes=WHOLE.block_hashes[1:], parent_block_hash=BEGINNING.block_hashes[0]
)


@pytest.mark.parametrize(
    ("doubtful", "dispelling", "known"),
    [
        ([told(OTHER, lora=FROM_ELSEWHERE)], told([7] * 9), Knowledge.EXACT),
        ([told([7] * 9, RANDOM), REST], BEGINNING, Knowledge.LEARNED),
    ],
    ids=["proven at last", "placed at last"],
)
def test_what_was_remembered_is_void_once_keys_are_in_doubt_no_more(
    doubtful: list[KVEvent], dispelling: KVEvent, known: Knowledge
) -> None:
    owner = router(adapters=(AD,))
    owner.caches.observe(A, events(*doubtful))
    assert state(owner)[0] is Knowledge.PARTIAL
    ask(owner, PROMPT, None, 0.0)
    assert cached(owner, PROMPT) == 40
    owner.caches.observe(A, events(dispelling))
    assert cached(owner, PROMPT) == 0, "whoever is believed is not matched by anything else"
    assert state(owner)[0] is known
    assert not owner.caches.predicted


def test_what_was_remembered_is_void_once_trust_is_restored() -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    ask(owner, PROMPT, 12, 0.0)
    ask(owner, OTHER, None, 10.0)
    assert cached(owner, OTHER) == 40
    for turn in range(TRUSTED_AGAIN):
        ask(owner, PROMPT, 40, 20.0 + turn)
    assert state(owner)[0] is Knowledge.EXACT
    assert cached(owner, OTHER) == 0


def test_an_exact_replica_is_believed_and_nothing_else_remembered() -> None:
    owner = router()
    ask(owner, PROMPT, 0, 0.0)
    assert cached(owner, PROMPT) == 0


def test_nobody_is_asked_for_the_events_of_an_engine_that_has_none() -> None:
    owner = router(has_events=False)
    ask(owner, PROMPT, 12, 0.0)
    ask(owner, OTHER, 12, 10.0)
    assert corrections(owner)[Correction.LEARNED]
    assert owner.caches.orders == []


# The engine says less


def test_a_block_missing_twice_drops_its_chain_and_asks_for_a_replay() -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    assert ask(owner, PROMPT, 12, 0.0).cached_tokens == 40
    assert cached(owner, PROMPT) == 40
    assert state(owner)[0] is Knowledge.PARTIAL
    assert owner.caches.orders == []
    ask(owner, PROMPT, 12, 10.0)
    assert cached(owner, PROMPT) == 12
    assert [order.replica for order in owner.caches.orders] == [A]
    assert isinstance(owner.caches.orders[0], Resync)
    assert corrections(owner) == {Correction.DROPPED: 1}
    assert [each.cause for each in owner.caches.audit.differences] == [Cause.INDEX, Cause.INDEX]
    owner.caches.index.check()


def test_two_blocks_missing_once_each_drop_nothing() -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT), stored(OTHER)))
    ask(owner, PROMPT, 12, 0.0)
    ask(owner, PROMPT, 16, 10.0)
    ask(owner, OTHER, 12, 20.0)
    assert cached(owner, PROMPT) == cached(owner, OTHER) == 40
    assert corrections(owner) == {}


def test_a_text_that_the_engine_renders_otherwise_takes_nothing_out_of_the_index() -> None:
    """The template writes the date, and it is midnight: what was rendered before is computed after, request by request."""
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    midnight = 86_400.0
    for turn in range(5):
        ask(owner, PROMPT, 12, midnight + turn, rendered_at=midnight - 5 + turn)
    assert cached(owner, PROMPT) == 40
    assert (causes(owner), corrections(owner)) == ({Cause.WORKLOAD: 5}, {})
    assert "rendered otherwise" in owner.caches.audit.differences[-1].reason
    assert owner.caches.audit.tallies[A, MODEL].other_tokens == 0, "it had the same length"
    assert state(owner)[0] is Knowledge.EXACT
    assert owner.caches.orders == []


def test_blocks_of_a_text_that_the_engine_renders_otherwise_are_not_taken_for_unnamed_ones() -> None:
    owner = router()
    for now in (0.0, 1.0):
        ask(owner, PROMPT, 32, now, rendered_at=now)
    assert (causes(owner), corrections(owner)) == ({Cause.WORKLOAD: 2}, {})
    assert state(owner)[0] is Knowledge.EXACT


@pytest.mark.parametrize(("actual", "correction"), [(12, Correction.DROPPED), (40, Correction.LEARNED)])
def test_what_a_later_rendering_shows_again_is_the_indexs(actual: int, correction: Correction) -> None:
    """Both have the same tokens, so the one that the engine made in between had them, too."""
    owner = router()
    if actual == 12:
        owner.caches.observe(A, events(stored(PROMPT)))
    later = 10.0 + RENDERED_LATER
    ask(owner, PROMPT, actual, 10.0, rendered_at=9.0)
    ask(owner, PROMPT, actual, later + 5, rendered_at=later - 0.1)
    assert corrections(owner) == {}
    ask(owner, PROMPT, actual, later + 10, rendered_at=later)
    assert corrections(owner) == {correction: 1}
    assert causes(owner) == {Cause.WORKLOAD: 2, Cause.INDEX: 1}
    assert cached(owner, PROMPT) == actual


def test_an_eviction_before_the_request_was_computed_is_no_error_of_the_index() -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    for now in (0.0, 10.0):
        ask(
            owner,
            PROMPT,
            12,
            now,
            *events(BlockRemoved(KEYS[3:4])),
            *events(msgspec.structs.replace(stored(PROMPT), block_hashes=KEYS[3:4])),
        )
    assert causes(owner) == {Cause.ROUTING: 2}
    assert cached(owner, PROMPT) == 40
    assert state(owner)[0] is Knowledge.EXACT


@pytest.mark.parametrize("news", [events(AllBlocksCleared()), [Forget("restart")]])
def test_a_clear_before_the_request_was_computed_is_no_error_of_the_index(news: list[Apply | Forget]) -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    ask(owner, PROMPT, 0, 0.0, *news)
    assert causes(owner) == {Cause.ROUTING: 1}
    assert "cleared" in owner.caches.audit.differences[0].reason


def test_blocks_expected_of_requests_under_way_that_never_came_are_expected_no_more() -> None:
    owner = router()
    under_way = owner.route(request(PROMPT), 0.0, 0.0)
    assert ask(owner, PROMPT, 0, 0.0).cached_tokens == 40
    assert causes(owner) == {Cause.ROUTING: 1}
    assert corrections(owner) == {Correction.DENIED: 1}
    assert cached(owner, PROMPT) == 0
    owner.release(under_way.lease, Outcome.OK, 20.0)


def test_remembered_blocks_that_were_not_there_are_forgotten_at_once() -> None:
    owner = router(has_events=False)
    ask(owner, PROMPT, None, 0.0)
    ask(owner, [*PROMPT[:40], 7, 7, 7, 7, 7], 8, 10.0)
    assert corrections(owner) == {Correction.DENIED: 1}
    tally = owner.caches.audit.tallies[A, MODEL]
    assert (tally.compared, tally.estimates, tally.estimates_exact) == (0, 1, 0)


# The engine says more


def test_what_the_engine_found_is_learnt() -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT[:8])))
    assert ask(owner, PROMPT, 32, 0.0).cached_tokens == 8
    assert cached(owner, PROMPT) == 32
    assert (causes(owner), corrections(owner)) == ({Cause.INDEX: 1}, {Correction.LEARNED: 1})
    assert "contradicted" in state(owner)[1]
    owner.caches.observe(A, events(BlockRemoved(KEYS[4:5])))
    assert cached(owner, PROMPT) == 16


def test_blocks_stored_before_the_request_was_computed_are_no_error_of_the_index() -> None:
    owner = router()
    ask(owner, PROMPT, 40, 0.0, *events(stored(PROMPT)))
    assert causes(owner) == {Cause.ROUTING: 1}
    assert corrections(owner) == {}
    assert state(owner)[0] is Knowledge.EXACT


def test_blocks_that_were_stored_before_and_evicted_since_are_not_remembered() -> None:
    owner = router()
    ask(owner, PROMPT, 40, 0.0, *events(stored(PROMPT), BlockRemoved(KEYS)))
    assert causes(owner) == {Cause.ROUTING: 1}
    assert corrections(owner) == {}
    assert cached(owner, PROMPT) == 0


def test_a_contradiction_is_not_held_against_a_replica_of_which_events_are_missing_meanwhile() -> None:
    owner = router()
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    owner.caches.observe(A, [Standing(is_connected=True, is_complete=False)])
    owner.release(decision.lease, Outcome.OK, 0.0, Truth(prompt_tokens=len(PROMPT), cached_tokens=40))
    owner.tick(SETTLE_SECONDS)
    assert decision.is_predicted
    assert corrections(owner) == {Correction.LEARNED: 1}
    assert [order.replica for order in owner.caches.orders] == [A]
    owner.caches.observe(A, [Standing(is_connected=True, is_complete=True)])
    assert state(owner)[0] is Knowledge.EXACT
    assert cached(owner, PROMPT) == 0


def test_nothing_is_remembered_of_a_replica_that_has_become_exact_meanwhile() -> None:
    owner = router()
    owner.caches.observe(A, [Standing(is_connected=True, is_complete=False)])
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    owner.caches.observe(A, [Standing(is_connected=True, is_complete=True)])
    owner.release(decision.lease, Outcome.OK, 0.0, Truth(prompt_tokens=len(PROMPT), cached_tokens=40))
    owner.tick(SETTLE_SECONDS)
    assert not decision.is_predicted
    assert state(owner)[0] is Knowledge.EXACT
    assert cached(owner, PROMPT) == 0


def test_what_comes_from_another_tier_is_not_taken_for_gpu_blocks() -> None:
    owner = router()
    owner.caches.observe(A, events(msgspec.structs.replace(stored(PROMPT), medium="CPU")))
    decision = ask(owner, PROMPT, 40, 0.0)
    assert not decision.is_predicted
    assert corrections(owner) == {}
    assert cached(owner, PROMPT) == 0


# What is said of it


def test_right_predictions_restore_the_trust() -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    ask(owner, PROMPT, 12, 0.0)
    for turn in range(TRUSTED_AGAIN):
        assert state(owner)[0] is Knowledge.PARTIAL
        ask(owner, PROMPT, 40, 10.0 + turn)
    assert state(owner)[0] is Knowledge.EXACT


def test_another_prompt_length_is_the_workloads() -> None:
    owner = router()
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    owner.release(decision.lease, Outcome.OK, 0.0, Truth(prompt_tokens=44, cached_tokens=8))
    owner.tick(100.0)
    assert causes(owner) == {Cause.WORKLOAD: 1}
    assert state(owner)[0] is Knowledge.EXACT


def test_a_difference_is_judged_only_when_its_events_had_time_to_come() -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    owner.release(decision.lease, Outcome.OK, 0.0, Truth(cached_tokens=12))
    owner.tick(SETTLE_SECONDS / 2)
    assert not owner.caches.audit.differences
    owner.caches.observe(A, events(BlockRemoved(KEYS[3:4])))
    owner.tick(SETTLE_SECONDS)
    assert [each.cause for each in owner.caches.audit.differences] == [Cause.ROUTING]


def test_a_replica_that_is_gone_is_judged_no_more() -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    owner.release(decision.lease, Outcome.OK, 0.0, Truth(cached_tokens=12))
    owner.remove(A)
    owner.tick(100.0)
    assert owner.caches.audit.differences[0].cause is Cause.ROUTING


def test_suspicions_are_bounded() -> None:
    owner = router()
    healer = owner.caches.healer
    owner.caches.observe(A, events(stored(PROMPT)))
    decision = owner.route(request(PROMPT), 0.0, 0.0)
    life = owner.caches.healer.life(A)
    for at in range(MAX_SUSPECTS + 10):
        healer.doubt(decision, 0, [10_000_000 + at], 4, life, 0.0)
    healer.tick(100.0)
    healer.doubt(decision, 0, [10_000_000], 4, life, 0.0)  # forgotten: missing for the first time again
    healer.tick(100.0)
    assert corrections(owner) == {}


@pytest.mark.parametrize("reset", [events(AllBlocksCleared()), [Forget("restart")]])
def test_unreadable_events_make_a_replica_partial_until_its_cache_is_known_to_be_empty(
    reset: list[Apply | Forget],
) -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT), skipped=("garbage", "garbage")))
    assert state(owner) == (Knowledge.PARTIAL, "2 events could not be read")
    owner.caches.observe(A, reset)
    assert state(owner)[0] is Knowledge.EXACT


def test_a_clear_does_not_make_up_for_what_could_not_be_read_of_its_own_batch() -> None:
    """It may have come after the clear."""
    owner = router()
    owner.caches.observe(A, events(AllBlocksCleared(), stored(PROMPT), skipped=("garbage",)))
    assert state(owner) == (Knowledge.PARTIAL, "1 event could not be read")


def test_more_blocks_than_the_engine_has_are_not_believed() -> None:
    """Reports of what is merely reused look like stores; counted as copies they would stay for ever."""
    owner = router(num_gpu_blocks=25)
    owner.caches.observe(A, events(*[stored(PROMPT)] * 3))
    owner.tick(0.0)
    assert state(owner)[0] is Knowledge.PARTIAL
    assert "more blocks than it has" in state(owner)[1]
    owner.caches.observe(A, events(BlockRemoved(KEYS[:1])))
    assert cached(owner, PROMPT) == 0
    owner.caches.observe(A, events(AllBlocksCleared(), *[stored(PROMPT)] * 2, BlockRemoved(KEYS[:1])))
    owner.tick(1.0)
    assert state(owner)[0] is Knowledge.EXACT
    assert cached(owner, PROMPT) == 40


def test_more_blocks_than_the_engine_has_are_not_believed_of_learned_keys_either() -> None:
    owner = router(num_gpu_blocks=25, recipe=None)
    event = told(PROMPT, RANDOM)
    first = BlockRemoved(event.block_hashes[:1])
    owner.caches.observe(A, events(*[event] * 3))
    owner.tick(0.0)
    assert "more blocks than it has" in state(owner)[1]
    owner.caches.observe(A, events(first))
    assert cached(owner, PROMPT) == 0
    owner.caches.observe(A, events(event, first))
    assert cached(owner, PROMPT) == 0, "the name is gone with its copies"
    owner.caches.observe(A, events(AllBlocksCleared(), *[event] * 2, first))
    owner.tick(1.0)
    assert state(owner)[0] is Knowledge.LEARNED
    assert cached(owner, PROMPT) == 40


def test_learned_keys_heal_as_computed_ones_do() -> None:
    owner = router(recipe=None)
    owner.caches.observe(A, events(told(PROMPT, RANDOM)))
    assert state(owner)[0] is Knowledge.LEARNED
    for now in (0.0, 10.0):
        ask(owner, PROMPT, 12, now)
    assert corrections(owner) == {Correction.DROPPED: 1}
    assert cached(owner, PROMPT) == 12


def test_a_clear_does_not_make_up_for_what_is_missing_of_other_tiers() -> None:
    """It empties the GPU alone: a block of the CPU tier that was lost with an unreadable batch is still there."""
    owner = router()
    owner.caches.observe(A, events(msgspec.structs.replace(stored(OTHER), medium="CPU")))
    owner.caches.observe(A, events(stored(PROMPT), skipped=("garbage",)))
    owner.caches.observe(A, events(AllBlocksCleared()))
    assert state(owner) == (Knowledge.PARTIAL, "1 event could not be read")
    owner.caches.observe(A, [Forget("restart")])
    assert state(owner)[0] is Knowledge.EXACT


def test_a_dropped_chain_is_held_against_a_replica_until_its_cache_is_known_to_be_empty() -> None:
    """Copies beyond the first went with it: what events say of them later cannot be counted right."""
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT), stored(PROMPT), stored(OTHER)))
    for now in (0.0, 10.0):
        ask(owner, PROMPT, 0, now)
    for turn in range(2 * TRUSTED_AGAIN):
        ask(owner, OTHER, 40, 20.0 + turn)
    assert state(owner)[0] is Knowledge.PARTIAL
    assert "was not there" in state(owner)[1]
    owner.caches.observe(A, events(AllBlocksCleared()))
    assert state(owner)[0] is Knowledge.EXACT


@pytest.mark.parametrize("actual", [-1, -1000, 42, 10**30])
def test_figures_that_cannot_be_are_nobodys_blocks(actual: int) -> None:
    owner = router()
    owner.caches.observe(A, events(stored(PROMPT)))
    for now in (0.0, 10.0, 20.0):
        ask(owner, PROMPT, actual, now)
    assert cached(owner, PROMPT) == 40
    assert causes(owner) == {Cause.WORKLOAD: 3}
    assert state(owner)[0] is Knowledge.EXACT


def test_events_that_find_no_room_are_missing() -> None:
    owner = router()
    owner.caches.observe(
        A, events(*(msgspec.structs.replace(stored(PROMPT[:8]), medium=f"tier {at}") for at in range(40)))
    )
    assert state(owner)[0] is Knowledge.PARTIAL
