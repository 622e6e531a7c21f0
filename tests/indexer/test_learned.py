"""``indexer/learned.py``: whatever an engine calls its blocks, they get the keys that a request computes."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hashing.extras import Extras, Lora, MultimodalItem
from hashing.recipes import Recipe
from indexer import learned as limits
from indexer import orphans
from indexer.events import EMPTY, NIL, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.index import CacheIndex, ReplicaId, Tier
from indexer.learned import LearnedBlocks
from tests.indexer.announced import LORA, RANDOM, ROOT, SIZE, TOKENS, raw, removed, silent, stored, wanted

CLEARED = AllBlocksCleared()
CPU = Tier("CPU")
A = ReplicaId("a")


def learned(*before: KVEvent) -> LearnedBlocks:
    """Blocks of an engine with one adapter; ``before`` is what it has read besides a first event."""
    blocks = LearnedBlocks({LORA.name: LORA})
    blocks.read([stored(RANDOM, [1] * SIZE), *before])
    return blocks


def keys(events: Sequence[KVEvent]) -> list[list[int]]:
    return [event.block_hashes for event in events if not isinstance(event, AllBlocksCleared)]


def known(blocks: LearnedBlocks) -> dict[tuple[str, int], Counter[int]]:
    """Keys with their copies, by medium and group, as ``restate`` tells them."""
    found: dict[tuple[str, int], Counter[int]] = {}
    for event in blocks.restate():
        at = found.setdefault((event.medium or "GPU", event.group_idx or 0), Counter())
        if isinstance(event, BlockRemoved):
            at.update(dict(zip(event.block_hashes, event.remaining_copy_counts or (), strict=True)))
            at.subtract(event.block_hashes)
        else:
            at.update(event.block_hashes)
    return found


# Placed at once


def test_a_prompt_is_found_whole_and_in_pieces() -> None:
    blocks = learned()
    passed = blocks.read([CLEARED, stored(RANDOM, last=3), stored(RANDOM, first=3), CLEARED, stored(RANDOM, [8] * 9)])
    assert keys(passed) == [wanted()[:3], wanted()[3:], wanted([8] * 9)]
    assert passed[0] == passed[3] == CLEARED
    assert blocks.unplaced == 0


def test_all_else_about_an_event_is_kept() -> None:
    blocks = learned()
    whole: dict[str, Any] = {
        "kv_cache_spec_kind": "full_attention",
        "kv_cache_spec_sliding_window": 8,
        "session_id": "s",
        "locality": "LOCAL",
        "ownership": "kvcr",
    }
    event = stored(RANDOM, **whole)
    (passed,) = blocks.read([event])
    assert isinstance(passed, BlockStored)
    assert msgspec.structs.replace(passed, block_hashes=event.block_hashes) == event
    (child,) = blocks.read([stored(RANDOM, first=2)])
    assert isinstance(child, BlockStored)
    assert child.parent_block_hash is None, "the engine's name for it would mean nothing"
    assert blocks.read([removed(event)]) == [BlockRemoved(passed.block_hashes, "GPU", 0, "LOCAL", "kvcr")]


EXTRAS = {
    "salt": Extras(salt="pepper"),
    "salt like an adapter": Extras(lora=LORA, salt="sql"),
    "salt of one letter": Extras(lora=Lora("s", "/s"), salt="s"),
    "adapter": Extras(lora=LORA),
    "images": Extras(
        multimodal=(MultimodalItem("cat", 2, 7), MultimodalItem("cat", 10, 2), MultimodalItem("s", 12, 30))
    ),
    "all": Extras(lora=LORA, multimodal=(MultimodalItem("sql", 0, 9),), salt="sql"),
    "embeddings": Extras(salt="pepper", embeds=tuple(bytes([at]) * 32 for at in range(10))),
}


@pytest.mark.parametrize("name", EXTRAS)
@pytest.mark.parametrize("version", ["0.32.0", "0.22.0"])
def test_keys_are_those_that_a_request_computes(name: str, version: str) -> None:
    extras = EXTRAS[name]
    engine = msgspec.structs.replace(Recipe.for_version(version, block_size=SIZE), root=ROOT)
    blocks = LearnedBlocks({} if extras.lora is None else {extras.lora.name: extras.lora})
    passed = blocks.read([stored(engine, extras=extras, last=2), stored(engine, extras=extras, first=2)])
    expected = wanted(extras=extras)
    assert keys(passed) == [expected[:2], expected[2:]]
    assert not set(expected) & set(wanted())
    assert blocks.unplaced == 0


def test_an_adapter_called_like_a_salt_is_another_prefix() -> None:
    passed = learned().read([stored(RANDOM, extras=Extras(lora=LORA)), stored(RANDOM, extras=Extras(salt="sql"))])
    adapter, salt = keys(passed)
    assert not set(adapter) & set(salt)


def test_an_adapter_that_was_moved_no_longer_finds_what_the_old_one_left() -> None:
    blocks = learned(stored(RANDOM, extras=Extras(lora=LORA)))
    moved = Lora(LORA.name, "/adapters/newer", LORA.id)
    blocks.adapters = {LORA.name: moved}
    (passed,) = keys(
        blocks.read([stored(msgspec.structs.replace(RANDOM, root=b"\x08" * 32), extras=Extras(lora=moved))])
    )
    assert passed == wanted(extras=Extras(lora=moved))
    assert not set(passed) & set(wanted(extras=Extras(lora=LORA)))


def test_an_adapter_that_nobody_declared_goes_by_its_name() -> None:
    event = silent(msgspec.structs.replace(Recipe.for_version("0.14.0", block_size=SIZE), root=ROOT), Extras(lora=LORA))
    assert keys(LearnedBlocks().read([event])) == [wanted(extras=Extras(lora=Lora("sql")))]


def test_every_copy_is_taken_back_once() -> None:
    blocks, event = learned(), stored(RANDOM)
    passed = blocks.read([event, event, event, *[removed(event)] * 4])
    assert keys(passed) == [*[wanted()] * 6, []], "the fourth was never stored"


def test_a_name_twice_in_one_event_is_two_copies() -> None:
    blocks, event = learned(), stored(RANDOM, [5] * 4)
    twice = msgspec.structs.replace(
        event, block_hashes=event.block_hashes * 2, token_ids=raw([5] * 8), extra_keys=raw([None] * 2)
    )
    passed = blocks.read([twice, *[removed(event)] * 3])
    assert [len(each) for each in keys(passed)] == [2, 1, 1, 0]


def test_a_parent_is_known_as_long_as_a_copy_is_left() -> None:
    event = stored(RANDOM, last=2)
    blocks = learned(event, event, removed(event))
    assert keys(blocks.read([stored(RANDOM, first=2)])) == [wanted()[2:]]


def test_a_clear_forgets_names_of_the_gpu_and_no_others() -> None:
    gpu, cpu = stored(RANDOM), stored(RANDOM, medium="CPU")
    lower = stored(RANDOM, medium="cpu")  # as Mooncake's connector writes it: the same tier to the index
    passed = learned().read([gpu, gpu, cpu, CLEARED, removed(gpu), removed(lower), removed(cpu)])
    assert keys(passed) == [wanted(), wanted(), wanted(), [], wanted(), []]


def test_cache_groups_of_larger_blocks_have_every_second_key() -> None:
    """Hybrid models: the engine hashes at the smaller size, and the coarser group has every second of these hashes."""
    fine = stored(RANDOM, group_idx=1)
    coarse = msgspec.structs.replace(
        fine,
        block_hashes=fine.block_hashes[1::2],
        block_size=2 * SIZE,
        group_idx=0,
        extra_keys=raw([None] * 5),
    )
    child = msgspec.structs.replace(
        coarse,
        block_hashes=coarse.block_hashes[2:],
        parent_block_hash=coarse.block_hashes[1],
        token_ids=raw(TOKENS[16:]),
        extra_keys=NIL,
    )
    expected = [wanted()[1::2], wanted()]
    blocks = LearnedBlocks()
    assert keys(blocks.read([coarse, fine, removed(coarse), removed(fine)])) == [*expected, *expected]
    assert blocks.hash_block_size == SIZE
    assert keys(blocks.read([coarse, removed(coarse), child])) == [expected[0], expected[0], []]
    passed, late = keys(blocks.read([fine]))
    assert (passed, sorted(late)) == (expected[1], sorted(expected[0][2:])), "the other group knows the child's parent"


def test_a_sparse_span_has_the_keys_of_the_blocks_that_another_group_has_named() -> None:
    fine = stored(RANDOM)
    sparse = msgspec.structs.replace(fine, block_hashes=fine.block_hashes[1::3], group_idx=1)
    empty = msgspec.structs.replace(fine, block_hashes=[], group_idx=1)
    blocks = learned()
    assert keys(blocks.read([fine, sparse, empty])) == [wanted(), wanted()[1::3], []]
    blocks = learned()
    assert keys(blocks.read([sparse])) == [[]]
    assert blocks.unplaced == 3
    assert known(blocks) == {("GPU", 0): Counter(wanted([1] * SIZE))}
    blocks.read([fine])
    assert blocks.unplaced == 0
    assert known(blocks)["GPU", 1] == Counter(wanted()[1::3])


# What waits


def test_a_child_waits_for_its_parent() -> None:
    blocks = learned()
    assert keys(blocks.read([stored(RANDOM, first=4), stored(RANDOM, first=2, last=4)])) == [[], []]
    assert (len(blocks.orphans), blocks.unplaced, blocks.orphans.placed) == (8, 8, 0)
    passed = blocks.read([stored(RANDOM, last=2)])
    assert keys(passed)[0] == wanted()[:2]
    assert sorted(keys(passed)[1]) == sorted(wanted()[2:])
    assert (len(blocks.orphans), blocks.unplaced, blocks.orphans.placed) == (0, 0, 8)
    assert keys(blocks.read([removed(stored(RANDOM))])) == [wanted()]


def test_what_follows_a_block_that_another_tier_has_needs_no_parent() -> None:
    blocks = learned(stored(RANDOM, last=4, medium="CPU"), removed(stored(RANDOM, last=3, medium="CPU")))
    assert keys(blocks.read([stored(RANDOM, first=1)])) == [wanted()[3:]]
    assert blocks.unplaced == 2


def test_what_waited_in_a_lower_tier_is_placed_there() -> None:
    blocks = learned(stored(RANDOM, first=1, medium="CPU"), stored(RANDOM, first=1), stored(RANDOM, first=1))
    blocks.read([stored(RANDOM, last=1)])
    tail = Counter(wanted()[1:])
    assert known(blocks) == {("GPU", 0): Counter([*wanted([1] * SIZE), *wanted()]) + tail, ("CPU", 0): tail}


def test_what_waits_and_is_removed_is_not_missed() -> None:
    blocks = learned(stored(RANDOM, first=2), stored(RANDOM, first=2))
    assert keys(blocks.read([removed(stored(RANDOM, first=2, last=5))])) == [[]]
    assert len(blocks.orphans) == 8, "a copy is left"
    assert keys(blocks.read([removed(stored(RANDOM, first=2, last=5))])) == [[]]
    assert len(blocks.orphans) == 5
    passed = blocks.read([stored(RANDOM, last=2)])
    assert keys(passed) == [wanted()[:2]], "the middle is a hole now"
    passed = blocks.read([stored(RANDOM, first=2, last=5)])
    assert Counter(keys(passed)[1]) == Counter(wanted()[5:] * 2)


def test_a_removal_from_another_tier_takes_nothing_that_waits() -> None:
    blocks = learned(stored(RANDOM, first=2))
    blocks.read([removed(stored(RANDOM, first=2, medium="CPU"))])
    assert len(blocks.orphans) == 8


def test_a_clear_empties_what_waits_on_the_gpu() -> None:
    blocks = learned(stored(RANDOM, first=2), stored(RANDOM, first=2, last=4, medium="CPU"), CLEARED)
    assert len(blocks.orphans) == 2
    blocks.read([stored(RANDOM, last=2)])
    assert known(blocks) == {("GPU", 0): Counter(wanted()[:2]), ("CPU", 0): Counter(wanted()[2:4])}


@pytest.mark.parametrize("medium", ["CPU", "cpu"])
def test_a_placeholder_is_the_block_that_the_gpu_describes_before_or_after_it(medium: str) -> None:
    salted = stored(RANDOM, extras=Extras(salt="pepper"))
    placeholder = BlockStored(salted.block_hashes[1::2], None, EMPTY, 0, medium=medium, group_idx=0)
    expected = wanted(extras=Extras(salt="pepper"))
    after, before = learned(salted, placeholder), learned(placeholder, salted)
    for blocks in (after, before):
        assert known(blocks)["CPU", 0] == Counter(expected[1::2])
        assert blocks.unplaced == 0
        assert keys(blocks.read([removed(salted), removed(placeholder)])) == [expected, expected[1::2]]
    blocks = learned(salted, BlockStored([1, *salted.block_hashes], None, EMPTY, 0, medium=medium))
    assert known(blocks)["CPU", 0] == Counter(expected), "one that is not known costs no other"
    assert blocks.unplaced == 1


def test_an_offload_tier_that_leaves_out_the_salt_is_believed_when_the_gpu_has_told_it() -> None:
    salted = stored(RANDOM, extras=Extras(salt="pepper"))
    bare = msgspec.structs.replace(salted, extra_keys=NIL, medium="STORAGE", ownership="kvcr", locality="REMOTE")
    expected = wanted(extras=Extras(salt="pepper"))
    for blocks in (learned(salted, bare), learned(bare, salted)):
        assert known(blocks)["STORAGE", 0] == Counter(expected)
    blocks = learned(bare)
    assert blocks.unplaced == 10, "it may be a plain prompt's or a salted one's"


def test_those_that_wait_for_the_longest_time_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "MAX_WAITING", 6)
    blocks = learned(
        stored(RANDOM, first=2, last=6), stored(RANDOM, [7] * 40, first=5), stored(RANDOM, first=2, last=3)
    )
    assert (len(blocks.orphans), blocks.unplaced) == (6, 10)
    blocks.read([stored(RANDOM, last=2), stored(RANDOM, [7] * 40, last=5)])
    gpu = known(blocks)["GPU", 0]
    assert gpu[wanted()[2]] == 1, "its first copy had been let go"
    assert not set(gpu) & set(wanted()[3:])
    assert gpu[wanted([7] * 40)[9]]
    assert (len(blocks.orphans), blocks.unplaced) == (0, 4), "they are there, and not known"
    blocks.read([CLEARED])
    assert blocks.unplaced == 0, "what is gone is not missed"


def test_places_are_bounded_whatever_a_publisher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PLACES", 3)
    blocks = learned(*[stored(RANDOM, group_idx=at) for at in range(50)])
    assert len(blocks._places) == 3
    assert blocks.unplaced == 47 * 10
    assert keys(blocks.read([removed(stored(RANDOM, group_idx=40)), removed(stored(RANDOM))])) == [[], wanted()]
    fields = [removed(stored(RANDOM, medium="gPu" if at % 2 else "GpU", ownership=str(at))) for at in range(50)]
    blocks.read(fields)
    assert len(blocks._by_fields) <= 12


def test_blocks_that_are_each_others_parents_wait_for_ever_and_hang_nothing() -> None:
    loops = [BlockStored([a], b, raw([3] * SIZE), SIZE) for a, b in ((1, 2), (2, 1), (3, 3), (4, 3))]
    blocks = learned(*loops)
    assert len(blocks.orphans) == 4
    blocks.read([BlockStored([1, 3], None, raw([3] * 2 * SIZE), SIZE)])
    assert blocks.unplaced == 0


def test_names_are_bounded_and_the_index_is_told_what_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_NAMES", 20)
    monkeypatch.setattr(limits, "LET_GO_AT_ONCE", 5)
    blocks = LearnedBlocks()
    blocks.read([stored(RANDOM), stored(RANDOM, last=2), stored(RANDOM, [7] * 40)])
    passed = blocks.read([stored(RANDOM, [8] * 8)])
    assert passed[1] == BlockRemoved(wanted()[:5], "GPU", 0, remaining_copy_counts=[0] * 5)
    assert blocks.unplaced == 7
    assert known(blocks) == {("GPU", 0): Counter([*wanted()[5:], *wanted([7] * 40), *wanted([8] * 8)])}
    for at in range(100):
        blocks.read([stored(RANDOM, [at, 0, 0, 0])])
        assert blocks.held().total() <= 25


# Copies that are counted by the engine


def test_a_removal_that_tells_what_is_left_is_believed() -> None:
    blocks, event = learned(stored(RANDOM), stored(RANDOM)), stored(RANDOM)
    names = event.block_hashes
    counted = BlockRemoved(names[:4], "GPU", 0, remaining_copy_counts=[2, 1, 0, 5])
    assert blocks.read([counted]) == [BlockRemoved(wanted()[:4], "GPU", 0, remaining_copy_counts=[2, 1, 0, 5])]
    copies = known(blocks)["GPU", 0]
    assert [copies[key] for key in wanted()[:5]] == [2, 1, 0, 5, 2]
    unknown = BlockRemoved([77, names[2], names[0]], "GPU", 0, remaining_copy_counts=[1, 0, 1])
    assert blocks.read([unknown]) == [BlockRemoved(wanted()[:1], "GPU", 0, remaining_copy_counts=[1])]
    miscounted = BlockRemoved(names[:2], "GPU", 0, remaining_copy_counts=[7])
    assert blocks.read([miscounted]) == [BlockRemoved(wanted()[:2], "GPU", 0)]
    assert known(blocks)["GPU", 0].keys().isdisjoint(wanted()[:3])


def test_countless_copies_cost_no_memory() -> None:
    """A number is whatever a publisher says; what is told of it again must not be as long."""
    blocks, event = learned(stored(RANDOM)), stored(RANDOM)
    blocks.read([BlockRemoved(event.block_hashes, "GPU", 0, remaining_copy_counts=[2**31] * len(event.block_hashes))])
    assert sum(len(each.block_hashes) for each in blocks.restate()) < 3 * len(event.block_hashes)
    assert {known(blocks)["GPU", 0][key] for key in wanted()} == {2**31}


def test_what_waits_is_counted_too() -> None:
    event = stored(RANDOM, first=2)
    blocks = learned(event, event, event)
    left = BlockRemoved(event.block_hashes[:3], "GPU", 0, remaining_copy_counts=[2, 0, 9])
    assert blocks.read([left]) == [BlockRemoved([], "GPU", 0, remaining_copy_counts=[])]
    blocks.read([stored(RANDOM, last=3), stored(RANDOM, first=3, last=4)])
    copies = known(blocks)["GPU", 0]
    assert [copies[key] for key in wanted()[2:6]] == [3, 1, 3, 3]


def test_removals_of_an_engine_that_announces_only_the_last_copy_take_all() -> None:
    event = stored(RANDOM)
    blocks = learned(event, event)
    blocks.removal_means_gone = True
    passed = blocks.read([removed(event), removed(event)])
    assert keys(passed) == [wanted(), []]
    assert not set(known(blocks)["GPU", 0]) & set(wanted())


# What cannot be read


def repr_of(changes: dict[str, Any]) -> str:
    """The same in every process: where an object lies is no name."""
    return str({name: bytes(value) if isinstance(value, msgspec.Raw) else value for name, value in changes.items()})


@pytest.mark.parametrize(
    "changes",
    [
        *({"extra_keys": raw(extras)} for extras in (5, [None], [[{"new": 1}]] * 10, [["cat", 1, 2]] * 10, {"a": 1})),
        *({"extra_keys": raw(extras)} for extras in ([[None]] * 10, [7] * 10, [["a", "b"]] + [None] * 9)),
        {"extra_keys": raw([None, ["an image (vLLM 0.18)"], *[None] * 8])},
        *({"token_ids": raw(tokens)} for tokens in (["a"] * 40, {"a": 1}, [[1, 2]] * 40, [-1] * 40, [0.5] * 40)),
        {"token_ids": msgspec.Raw(b"\x9f")},
        {"block_size": -4},
        {"block_size": 3},
        {"lora_id": 3},
    ],
    ids=repr_of,
)
def test_what_cannot_be_read_costs_its_event(changes: dict[str, Any]) -> None:
    blocks = learned()
    event = stored(RANDOM, **changes)
    assert keys(blocks.read([event, stored(RANDOM, [3] * SIZE)])) == [[], wanted([3] * SIZE)]
    assert blocks.unplaced == 10
    blocks.read([removed(event)])
    assert blocks.unplaced == 0


def test_tokens_that_no_engine_has_are_tokens_like_others() -> None:
    tokens = [1 << 32, *range(7), *[(1 << 64) - 1] * 4, *range(4)]
    assert keys(learned().read([stored(RANDOM, tokens)])) == [wanted(tokens)]


@given(
    st.binary(max_size=20) | st.lists(st.integers(-5, (1 << 64) - 1), max_size=9).map(lambda each: bytes(raw(each))),
    st.binary(max_size=20) | st.just(bytes(NIL)),
    st.integers(-2, 5),
    st.lists(st.integers(0, 5), max_size=4),
    st.none() | st.integers(0, 5),
    st.sampled_from(["GPU", "CPU", None, ""]),
)
def test_no_event_raises(
    tokens: bytes, extras: bytes, size: int, hashes: list[int], parent: int | None, medium: str | None
) -> None:
    event = BlockStored(hashes, parent, msgspec.Raw(tokens), size, medium=medium, extra_keys=msgspec.Raw(extras))
    for blocks in (LearnedBlocks(), learned()):
        blocks.read([event])
        blocks.read([removed(event), event, CLEARED, removed(event)])
        assert not len(blocks.orphans)


# All of it again


def test_what_is_known_can_be_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESTATED_AT_ONCE", 4)
    blocks = learned(stored(RANDOM), stored(RANDOM, last=3), stored(RANDOM, medium="STORAGE", locality="REMOTE"))
    told = list(blocks.restate())
    assert all(0 < len(event.block_hashes) <= 4 for event in told)
    assert {event.locality for event in told if event.medium == "STORAGE"} == {"REMOTE"}
    assert known(blocks) == {
        ("GPU", 0): Counter([*wanted([1] * SIZE), *wanted(), *wanted()[:3]]),
        ("STORAGE", 0): Counter(wanted()),
    }
    assert repr(blocks) == "<LearnedBlocks 21 known, <Orphans 0 waiting, 0 placed>>"


# Any order of events


class AnyOrder(RuleBasedStateMachine):
    """Spans of prompts come in any order, some as placeholders: what has a key has the right one, and the rest waits."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = LearnedBlocks()
        self.blocks.hash_block_size = SIZE
        self.index = CacheIndex()
        self.index.add(A)
        self.told: dict[Tier, Counter[int]] = {Tier(): Counter(), CPU: Counter()}
        self.ours: dict[int, int] = {}  # the engine's name -> the key that a request computes
        self.parents: dict[int, int | None] = {}

    spans = st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 4), st.sampled_from([None, "pepper"]))

    def publish(self, event: KVEvent) -> None:
        self.index.apply(A, self.blocks.read([event]))

    @rule(span=spans, medium=st.sampled_from(["GPU", "CPU"]), is_placeholder=st.booleans())
    def store(self, span: tuple[int, int, int, str | None], medium: str, is_placeholder: bool) -> None:
        family, first, length, salt = span
        tokens, extras = [*[5] * 2 * SIZE, *[family] * 6 * SIZE], Extras(salt=salt)
        event = stored(RANDOM, tokens, first, first + length, extras, medium=medium)
        whole = stored(RANDOM, tokens, extras=extras)
        self.ours.update(zip(whole.block_hashes, wanted(tokens, extras), strict=True))
        self.parents.update(zip(whole.block_hashes, [None, *whole.block_hashes], strict=False))
        if is_placeholder and medium == "CPU":
            event = BlockStored(event.block_hashes, None, EMPTY, 0, medium=medium)
        self.told[Tier(medium)].update(event.block_hashes)
        self.publish(event)

    @precondition(lambda self: any(self.told.values()))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        tier = data.draw(st.sampled_from([tier for tier, told in self.told.items() if told]))
        name = data.draw(st.sampled_from(sorted(self.told[tier])))
        self.told[tier] -= Counter([name])
        self.publish(BlockRemoved([name], tier.medium))

    @rule()
    def clear(self) -> None:
        self.told[Tier()].clear()
        self.publish(CLEARED)

    @invariant()
    def every_copy_has_its_key_or_waits(self) -> None:
        waiting: dict[Tier, Counter[int]] = {tier: Counter() for tier in self.told}
        for name, orphan in self.blocks.orphans._waiting.items():
            for place, copies in orphan.copies.items():
                waiting[place.tier][name] += copies
        for tier, told in self.told.items():
            placed: Counter[int] = Counter()
            for name, copies in (told - waiting[tier]).items():
                placed[self.ours[name]] += copies
            held = self.index.tiers[tier].held(A) if tier in self.index.tiers else Counter()
            assert held == placed
            assert waiting[tier] <= told

    @invariant()
    def nothing_waits_for_what_is_known(self) -> None:
        known = {name for place in self.blocks._places.values() for name in place.keys}
        for name, orphan in self.blocks.orphans._waiting.items():
            assert name not in known
            assert not orphan.links or self.parents[name] not in known


TestAnyOrder = AnyOrder.TestCase
