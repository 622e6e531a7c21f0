"""``balancer/caches.py``: what makes a cache doubtful, and what ends the doubt."""

from collections.abc import Sequence

import msgspec
import pytest

from balancer.caches import Caches, Renew
from balancer.core import Knowledge
from hashing.recipes import Recipe
from indexer.events import AllBlocksCleared, BlockRemoved, KVEvent
from indexer.index import ReplicaId
from indexer.stream import Apply, Forget, Standing
from indexer.wire import Batch
from tests.support.routing import RANDOM, RECIPE, replica, stored, told

A = ReplicaId("a")
PROMPT = list(range(41))
LARGER = msgspec.structs.replace(RECIPE, block_size=8)
COMPLETE = Standing(is_connected=True, is_complete=True)


def caches() -> Caches:
    made = Caches()
    made.put(replica("a", num_gpu_blocks=1_000))
    made.observe(A, [COMPLETE])
    return made


def hear(made: Caches, *events: KVEvent) -> None:
    made.observe(A, [Apply([Batch(0.0, list(events), digest=1)])])


def view(made: Caches) -> tuple[Knowledge, str]:
    seen = made.view(A, 0.0)
    return seen.state, seen.reason


# Removals of what was never stored ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "before"), [(RECIPE, Knowledge.EXACT), (RANDOM, Knowledge.LEARNED)], ids=["proven", "learned"]
)
def test_who_removes_what_it_never_stored_is_in_doubt_until_a_clear(recipe: Recipe, before: Knowledge) -> None:
    made, event = caches(), told(PROMPT, recipe)
    hear(made, event)
    hear(made, BlockRemoved(event.block_hashes[-2:]))
    assert view(made)[0] is before
    hear(made, BlockRemoved([*event.block_hashes[-1:], 1, 2]))
    assert view(made) == (Knowledge.PARTIAL, "3 blocks removed that no event had stored")
    hear(made, AllBlocksCleared())
    assert view(made)[0] is before


def test_another_replicas_strangers_are_no_doubt() -> None:
    made = caches()
    made.put(replica("b"))
    hear(made, told(PROMPT))
    made.observe(ReplicaId("b"), [Apply([Batch(0.0, [BlockRemoved([1])], digest=1)])])
    assert view(made)[0] is Knowledge.EXACT


def test_other_tiers_remove_what_they_never_announced() -> None:
    made = caches()
    hear(made, told(PROMPT), BlockRemoved([1], medium="CPU"))
    assert view(made)[0] is Knowledge.EXACT


def test_what_was_removed_before_a_clear_does_not_matter() -> None:
    made = caches()
    hear(made, BlockRemoved([1]), AllBlocksCleared(), told(PROMPT))
    assert view(made)[0] is Knowledge.EXACT


# Computed, and nothing to show for it ---------------------------------------------------------------------------------


def test_an_engine_that_has_computed_and_has_no_event_to_show_is_in_doubt() -> None:
    made = caches()
    made.felt(A, 70.0)
    assert view(made) == (
        Knowledge.PARTIAL,
        "it had computed 70 tokens before its events were followed, and its publisher has none to show for them; "
        "the next one ends the doubt",
    )
    hear(made, told(PROMPT))
    made.felt(A, 140.0)
    assert view(made)[0] is Knowledge.EXACT, "its events have come from the first on"


def test_what_a_new_engine_computes_is_no_doubt_for_it_may_fill_no_block() -> None:
    made = caches()
    for tokens in (0.0, 3.0, 70.0):
        made.felt(A, tokens)
        assert view(made)[0] is Knowledge.EXACT


def test_a_restart_ends_that_doubt() -> None:
    made = caches()
    made.felt(A, 70.0)
    made.observe(A, [Forget("the engine was restarted"), COMPLETE])
    made.felt(A, 0.0)
    assert view(made)[0] is Knowledge.EXACT


# Another engine's events ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then", "what"),
    [
        (RECIPE, RANDOM, "a first block is hashed in another way than those before"),
        (RECIPE, LARGER, "an event has blocks of 8 tokens, where those before had 4"),
        (
            RANDOM,
            msgspec.structs.replace(RANDOM, block_size=8),
            "an event has blocks of 8 tokens, where those before had 4",
        ),
    ],
    ids=["root", "size", "size-learned"],
)
def test_events_that_are_another_engines_are_told_and_followed_anew(first: Recipe, then: Recipe, what: str) -> None:
    made = caches()
    hear(made, told(PROMPT, first))
    hear(made, told(PROMPT, then))
    made.tick(0.0)
    assert view(made) == (Knowledge.PARTIAL, f"{what}: is it another engine's?")
    assert not made.orders, "it may be that event which is wrong"
    hear(made, told(PROMPT[1:], then))
    made.tick(0.1)
    made.tick(0.2)
    assert made.orders == [Renew(A, f"{what}: is it another engine's?")]
    made.observe(A, [Forget("followed anew"), COMPLETE])
    hear(made, told(PROMPT, then))
    assert view(made)[0].is_promise


def test_engines_that_share_an_address_are_followed_anew_ever_more_rarely() -> None:
    made = caches()
    for second in range(1_000):
        hear(made, told(PROMPT, RECIPE), told(PROMPT, RANDOM), told(PROMPT[1:], RANDOM))
        assert view(made)[0] is Knowledge.PARTIAL
        made.tick(float(second))
        made.observe(A, [Forget("followed anew"), COMPLETE])
    assert len(made.orders) == 7


def test_one_odd_event_is_a_doubt_until_others_agree() -> None:
    made = caches()
    hear(made, told(PROMPT), told(PROMPT, RANDOM))
    assert view(made)[0] is Knowledge.PARTIAL
    for start in range(1, 21):
        hear(made, told(range(start, start + 41)))
    assert view(made)[0] is Knowledge.EXACT
    made.tick(0.0)
    assert not made.orders


def test_another_engines_event_stays_a_doubt_whatever_groups_it_tells_of() -> None:
    made = caches()
    hear(made, told(PROMPT))
    hear(made, told(PROMPT, RANDOM))
    window = msgspec.structs.replace(
        told(PROMPT), group_idx=1, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=8
    )
    hear(made, window)
    assert view(made) == (
        Knowledge.PARTIAL,
        "a first block is hashed in another way than those before: is it another engine's?",
    )


def test_a_cache_that_was_too_full_for_another_size_is_followed_anew() -> None:
    made = Caches()
    made.put(replica("a", num_gpu_blocks=5))
    made.observe(A, [COMPLETE])
    hear(made, told(PROMPT))
    made.tick(0.0)
    assert view(made)[0] is Knowledge.PARTIAL
    made.put(replica("a", num_gpu_blocks=1_000))
    made.tick(0.1)
    assert [type(order) for order in made.orders] == [Renew]
    made.observe(A, [Forget("followed anew"), COMPLETE])
    hear(made, told(PROMPT))
    made.tick(0.2)
    assert view(made)[0] is Knowledge.EXACT


@pytest.mark.parametrize(
    "events",
    [
        [told(PROMPT, salt="s")],
        [stored(PROMPT, recipe=RANDOM)],
        [msgspec.structs.replace(told(PROMPT, RANDOM), parent_block_hash=7)],
        [msgspec.structs.replace(told(PROMPT, LARGER), medium="CPU")],
        [msgspec.structs.replace(told(PROMPT), token_ids=msgspec.Raw(msgspec.msgpack.encode([-1, *range(39)])))],
    ],
    ids=["salted", "without tokens", "in the middle", "of another tier", "no tokens"],
)
def test_what_proves_nothing_is_no_doubt(events: Sequence[KVEvent]) -> None:
    made = caches()
    hear(made, told(PROMPT))
    hear(made, *events)
    assert view(made)[0] is Knowledge.EXACT
