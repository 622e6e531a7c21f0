"""``balancer/knowledge.py``: what is said of a cache is the worst that is true of it, and why."""

import msgspec
import pytest

from balancer.knowledge import TRUSTED_AGAIN, Knowledge, Losses, judge
from hashing.recipes import Recipe
from indexer.events import EMPTY, NIL, BlockStored, KVEvent
from indexer.recognition import Recognition
from indexer.stream import Standing
from tests.support.routing import RANDOM, RECIPE, replica, told

WELL = Standing(is_connected=True, is_complete=True)
TOKENS = list(range(8))
OLD = Recipe.for_version("0.14.0", block_size=4, seed="7")


def seen(declared: Recipe | None, *events: KVEvent) -> Recognition:
    recognition = Recognition(declared)
    recognition.read(events)
    return recognition


SILENT = msgspec.structs.replace(told(TOKENS, RANDOM), extra_keys=NIL)  # as before vLLM 0.18
WINDOW = msgspec.structs.replace(
    told(TOKENS), group_idx=1, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=8
)
ORPHAN = BlockStored([5, 6], 4, EMPTY, 4)

STATES = {
    "silent": (Recognition(None), {"has_events": False}, Standing(), 3, Knowledge.BLIND, "no KV event source"),
    "unreachable": (Recognition(None), {}, Standing(is_complete=True), 3, Knowledge.BLIND, "cannot be reached"),
    "restored": (
        Recognition(None), {}, Standing(is_restored=True), 3, Knowledge.PARTIAL, "by its publisher, which cannot be reached",
    ),
    "lost": (Recognition(None), {}, Standing(is_connected=True), 3, Knowledge.PARTIAL, "3 batches of events lost for good"),
    "deaf": (
        Recognition(None), {}, Standing(is_connected=True, problem="publishes under another topic"),
        3, Knowledge.PARTIAL, "publishes under another topic",
    ),
    "late": (Recognition(None), {}, Standing(is_connected=True), 0, Knowledge.PARTIAL, "events are missing"),
    "unknown": (Recognition(None), {}, WELL, 0, Knowledge.PARTIAL, "how it hashes is not known, and no event"),
    "of random root": (
        Recognition(Recipe.for_version("0.22.0")), {}, WELL, 0, Knowledge.PARTIAL, "how it hashes is not known",
    ),
    "with orphans": (
        seen(RECIPE, told(TOKENS, RANDOM), ORPHAN), {}, WELL, 0, Knowledge.PARTIAL, "2 blocks could not be placed; its hashes",
    ),
    "hybrid": (seen(RECIPE, told(TOKENS), WINDOW), {}, WELL, 0, Knowledge.EXACT, "its recipe is proven"),
    "hybrid without a rule": (
        seen(RECIPE, told(TOKENS), msgspec.structs.replace(WINDOW, kv_cache_spec_sliding_window=None)),
        {}, WELL, 0, Knowledge.PARTIAL, "does not tell its sliding window",
    ),
    "hybrid and not proven": (
        seen(RECIPE, msgspec.structs.replace(WINDOW, parent_block_hash=7)),
        {}, WELL, 0, Knowledge.PARTIAL, "no event has shown yet how they are hashed",
    ),
    "learned": (seen(RECIPE, told(TOKENS, RANDOM)), {}, WELL, 0, Knowledge.LEARNED, "its hashes agree with no recipe"),
    "vague": (
        seen(Recipe.for_version("0.14.0"), SILENT), {}, WELL, 0, Knowledge.PARTIAL, "do not tell salted prompts from others",
    ),
    "contradicted": (
        seen(OLD, SILENT), {}, WELL, 0, Knowledge.PARTIAL, "an event disagrees with its recipe",
    ),
    "believed": (Recognition(RECIPE), {}, WELL, 0, Knowledge.EXACT, "no event has proven it yet"),
    "proven": (seen(RECIPE, told(TOKENS)), {}, WELL, 0, Knowledge.EXACT, "its recipe is proven by its own events"),
    "found": (
        seen(RECIPE, told(TOKENS, msgspec.structs.replace(RECIPE, seed="0"))), {}, WELL, 0, Knowledge.EXACT,
        "its events say that seed is '0', not None",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_each_state_has_its_reason(name: str) -> None:
    recognition, changes, link, lost, state, reason = STATES[name]
    view = judge(replica("a", **changes), recognition, link, Losses(batches=lost))
    assert view.state is state
    assert view.reason.startswith(reason) or reason in view.reason


@pytest.mark.parametrize("name", ["of random root", "with orphans", "learned", "contradicted", "believed", "proven"])
def test_the_worst_is_said_first(name: str) -> None:
    """Each fault hides all that are milder, whatever the keys say."""
    recognition = STATES[name][0]
    faults = [
        ({"has_events": False}, Standing(), 3, "no KV event source"),
        ({}, Standing(), 3, "cannot be reached"),
        ({}, Standing(is_connected=True), 3, "3 batches"),
        ({}, Standing(is_connected=True), 0, "events are missing"),
    ]
    for changes, link, lost, reason in faults:
        assert reason in judge(replica("a", **changes), recognition, link, Losses(batches=lost)).reason


def test_orphans_are_told_only_of_learned_keys() -> None:
    """A proven hash is its own place: blocks without a known parent are kept."""
    assert judge(replica("a"), seen(RECIPE, ORPHAN, told(TOKENS)), WELL, Losses()).state is Knowledge.EXACT


DOUBTS = {
    "unreadable": (Losses(events=2), "2 events could not be read"),
    "overfull": (Losses(overfull=12), "more blocks than it has"),
    "let go": (Losses(let_go=7), "7 blocks let go at [index] max_blocks"),
    "contradicted": (Losses(contradictions=1), "contradicted the index 1 time"),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_whatever_is_missing_makes_a_proven_replica_partial(name: str) -> None:
    losses, reason = DOUBTS[name]
    view = judge(replica("a"), seen(RECIPE, told(TOKENS)), WELL, losses)
    assert view.state is Knowledge.PARTIAL
    assert reason in view.reason


def test_a_cache_that_is_off_is_blind_whatever_else_is_said() -> None:
    view = judge(replica("a", has_prefix_caching=False), seen(RECIPE, told(TOKENS)), WELL, Losses())
    assert (view.state, view.reason) == (Knowledge.BLIND, "prefix caching is off: nothing is cached there")


def test_a_contradiction_is_forgiven_after_a_run_of_right_predictions() -> None:
    losses = Losses()
    assert not losses.confirmed()
    losses.contradicted()
    assert not any(losses.confirmed() for _ in range(TRUSTED_AGAIN - 1))
    losses.contradicted()  # the run begins anew
    assert [losses.confirmed() for _ in range(TRUSTED_AGAIN)] == [False] * (TRUSTED_AGAIN - 1) + [True]
    assert losses.contradictions == 0


def test_only_exact_and_learned_are_promises() -> None:
    assert [state for state in Knowledge if state.is_promise] == [Knowledge.EXACT, Knowledge.LEARNED]
