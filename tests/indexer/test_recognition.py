"""``indexer/recognition.py``: what events say of an engine's hashes, and keys that are learned where they say nothing.

Engines here hash by a recipe with a root of any choice; what they announce is built as vLLM 0.32 builds it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hashing.chain import Chain
from hashing.extras import NO_EXTRAS, BlockExtras, Extras, Lora, MultimodalItem
from hashing.recipes import Algorithm, Recipe
from indexer.events import EMPTY, NIL, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.index import CacheIndex, ReplicaId, Tier
from indexer.learned import OWN
from indexer.recognition import KeyState, Recognition

SIZE = 4
ROOT = b"\x07" * 32
DECLARED = Recipe.for_version("0.32.0", block_size=SIZE)
RANDOM = msgspec.structs.replace(DECLARED, root=ROOT)
"""An engine whose root nobody can know."""

PUBLISHED = Recipe(lora_form="name", multimodal_form="offset", salt_form="plain", embeds_form="plain")
"""The form in which every release tells the extras."""

CLEARED = AllBlocksCleared()
TOKENS = list(range(100, 140))
LORA = Lora("sql", "/adapters/sql", 3)
A = ReplicaId("a")


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def stored(
    recipe: Recipe,
    tokens: Sequence[int] = TOKENS,
    first: int = 0,
    last: int | None = None,
    extras: Extras = NO_EXTRAS,
    **changes: Any,
) -> BlockStored:
    """What an engine with this recipe announces of blocks [first, last) of a prompt, as vLLM 0.32 does."""
    chain = Chain(recipe, tokens, extras)
    keys, size = chain.keys(len(chain)), recipe.block_size
    last = len(chain) if last is None else last
    published = BlockExtras(msgspec.structs.replace(PUBLISHED, block_size=size), extras)
    plain = BlockStored(
        block_hashes=list(keys[first:last]),
        parent_block_hash=keys[first - 1] if first else None,
        token_ids=raw(list(tokens[first * size : last * size])),
        block_size=size,
        lora_id=extras.lora.id if extras.lora else None,
        medium="GPU",
        lora_name=extras.lora.name if extras.lora else None,
        extra_keys=raw(list(published.of(first, last))),
        group_idx=0,
    )
    return msgspec.structs.replace(plain, **changes)


def removed(event: BlockStored) -> BlockRemoved:
    """All blocks of the event at once."""
    return BlockRemoved(event.block_hashes, event.medium, event.group_idx, event.locality, event.ownership)


def wanted(recognition: Recognition, tokens: Sequence[int] = TOKENS, extras: Extras = NO_EXTRAS) -> list[int]:
    """The keys by which a request's blocks are looked for."""
    assert recognition.recipe is not None
    chain = Chain(recognition.recipe, tokens, extras)
    return list(chain.keys(len(chain)))


def keys(events: Sequence[KVEvent]) -> list[list[int]]:
    return [event.block_hashes for event in events if not isinstance(event, AllBlocksCleared)]


def learned(*before: KVEvent) -> Recognition:
    """One that has seen that nothing agrees; ``before`` is what it has read besides."""
    recognition = Recognition(DECLARED)
    _, is_void = recognition.read([stored(RANDOM, [1] * SIZE), *before])
    assert is_void
    return recognition


def standing(recognition: Recognition) -> tuple[KeyState, Recipe | None]:
    """A call, for mypy takes an attribute that was compared once for settled."""
    return recognition.state, recognition.recipe


# Proof


@pytest.mark.parametrize("version", ["0.32.0", "0.30.0", "0.22.0", "0.18.0", "0.14.0", "0.11.1"])
def test_a_recipe_that_is_right_is_proven_and_events_pass_untouched(version: str) -> None:
    recipe = Recipe.for_version(version, block_size=SIZE, seed="7")
    recognition = Recognition(recipe)
    events: list[KVEvent] = [stored(recipe), CLEARED]
    passed, is_void = recognition.read(events)
    assert passed is events
    assert (recognition.state, recognition.recipe, recognition.reason) == (KeyState.PROVEN, recipe, "")
    assert not is_void
    assert recognition.read(events) == (events, False)
    assert recognition.unplaced == 0


@pytest.mark.parametrize("seed", ["0", "42", "7", None])
@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("algorithm", get_args(Algorithm))
@pytest.mark.parametrize("version", ["0.32.0", "0.22.0"])
def test_a_usual_difference_from_what_was_declared_is_found(
    version: str, algorithm: Algorithm, size: int, seed: str | None
) -> None:
    """With "7" the settings are right in the seed and wrong in the rest."""
    actual = Recipe.for_version(version, algorithm=algorithm, block_size=size, seed=seed)
    if not actual.has_known_root:
        actual = msgspec.structs.replace(actual, root=b"r" * actual.digest_bytes)
    recognition = Recognition(Recipe.for_version(version, block_size=8, seed="7" if seed == "7" else None))
    recognition.read([stored(actual)])
    if actual.root is not None:
        assert recognition.state is KeyState.LEARNED
        return
    assert recognition.state is KeyState.PROVEN
    salted = Extras(lora=LORA, salt="pepper")
    assert wanted(recognition, extras=salted) == stored(actual, extras=salted).block_hashes, "forms are kept"
    assert f"block_size is {size}, not 8" in recognition.reason
    assert ("algorithm" in recognition.reason) == (algorithm != "sha256")
    assert ("seed" in recognition.reason) == (seed in {"0", "42"})


def test_a_root_that_was_declared_and_is_wrong_is_given_up() -> None:
    recognition = Recognition(RANDOM)
    recognition.read([stored(DECLARED)])
    assert standing(recognition) == (KeyState.PROVEN, DECLARED)
    assert "root is None" in recognition.reason


def test_a_root_that_was_declared_and_is_right_is_proven() -> None:
    recognition = Recognition(RANDOM)
    recognition.read([stored(RANDOM)])
    assert standing(recognition) == (KeyState.PROVEN, RANDOM)


def test_a_salted_prompt_proves_as_well_as_any() -> None:
    for recipe, state in ((DECLARED, KeyState.PROVEN), (RANDOM, KeyState.LEARNED)):
        recognition = Recognition(DECLARED)
        recognition.read([stored(recipe, extras=Extras(salt="pepper"))])
        assert recognition.state is state


def test_an_image_in_the_first_block_proves_in_the_form_of_its_release() -> None:
    image = Extras(multimodal=(MultimodalItem("cat", 1, 6),))
    for version in ("0.32.0", "0.22.0"):
        recipe = Recipe.for_version(version, block_size=SIZE, seed="0")
        recognition = Recognition(msgspec.structs.replace(recipe, seed=None))
        recognition.read([stored(recipe, extras=image)])
        assert standing(recognition) == (KeyState.PROVEN, recipe)


CANNOT_PROVE: dict[str, KVEvent] = {
    "a child": stored(RANDOM, first=1),
    "an adapter's, whose path is not told": stored(RANDOM, extras=Extras(lora=LORA)),
    "an adapter's without a number": stored(RANDOM, extras=Extras(lora=Lora("sql", "/sql"))),
    "an adapter's without a name (vLLM 0.11)": stored(RANDOM, lora_id=3),
    "of another group": stored(RANDOM, group_idx=1),
    "of another tier": stored(RANDOM, medium="CPU"),
    "a placeholder": stored(RANDOM, token_ids=EMPTY, block_size=0),
    "without tokens": stored(RANDOM, token_ids=EMPTY),
    "sparse": stored(RANDOM, block_hashes=[1, 2]),
    "nothing": stored(RANDOM, [], token_ids=EMPTY, block_hashes=[]),
    "nothing, of no size": stored(RANDOM, [], token_ids=EMPTY, block_hashes=[], block_size=0),
    "negative size": stored(RANDOM, block_size=-4),
    "tokens of another type": stored(RANDOM, token_ids=raw(["a"] * 40)),
    "tokens that are no list": stored(RANDOM, token_ids=raw({"a": 1})),
    "tokens cut off": stored(RANDOM, token_ids=msgspec.Raw(b"\x9f")),
    "extras of another type": stored(RANDOM, extra_keys=raw(5)),
    "extras of a shape to come": stored(RANDOM, extra_keys=raw([[{"new": 1}]] * 10)),
    "a removal": removed(stored(RANDOM)),
    "a clear": CLEARED,
}


@pytest.mark.parametrize("name", CANNOT_PROVE)
def test_what_proves_nothing_leaves_everything_as_it_was(name: str) -> None:
    recognition = Recognition(DECLARED)
    events = [CANNOT_PROVE[name]]
    passed, is_void = recognition.read(events)
    assert passed is events
    assert (recognition.state, recognition.recipe, recognition.reason) == (KeyState.UNPROVEN, DECLARED, "")
    assert not is_void


@pytest.mark.parametrize("tokens", [[-1] * 40, [1 << 63] * 40])
def test_tokens_that_cannot_be_hashed_never_raise(tokens: list[int]) -> None:
    recognition = Recognition(DECLARED)
    passed, _ = recognition.read([stored(RANDOM, token_ids=raw(tokens)), stored(DECLARED)])
    assert recognition.state is KeyState.LEARNED
    assert len(keys(passed)) == 2


@given(
    st.binary(max_size=20) | st.lists(st.integers(-5, (1 << 64) - 1), max_size=9).map(lambda each: bytes(raw(each))),
    st.binary(max_size=20) | st.just(bytes(NIL)),
    st.integers(-2, 5),
    st.lists(st.integers(0, 5), max_size=4),
    st.none() | st.integers(0, 5),
    st.booleans(),
)
def test_no_event_raises(
    tokens: bytes, extras: bytes, size: int, hashes: list[int], parent: int | None, is_learned: bool
) -> None:
    event = BlockStored(hashes, parent, msgspec.Raw(tokens), size, extra_keys=msgspec.Raw(extras))
    recognition = learned() if is_learned else Recognition(DECLARED)
    recognition.read([event, removed(event)])
    assert recognition.recipe is not None


def test_the_first_event_that_can_prove_does() -> None:
    recognition = Recognition(DECLARED)
    recognition.read([CLEARED, stored(DECLARED, first=2), stored(DECLARED, extras=Extras(lora=LORA))])
    assert standing(recognition) == (KeyState.UNPROVEN, DECLARED)
    recognition.read([stored(DECLARED, first=2), stored(DECLARED), stored(RANDOM)])
    assert standing(recognition) == (KeyState.PROVEN, DECLARED), "and the matter is closed"


# vLLM before 0.18: events do not say whether there was a salt


def silent(recipe: Recipe, extras: Extras = NO_EXTRAS) -> BlockStored:
    return stored(recipe, extras=extras, extra_keys=NIL)


def test_an_old_release_may_have_begun_with_a_salted_prompt() -> None:
    old = Recipe.for_version("0.14.0", block_size=SIZE, seed="7")
    recognition = Recognition(old)
    event = silent(old, Extras(salt="pepper"))
    assert recognition.read([event]) == ([event], False)
    assert recognition.state is KeyState.UNPROVEN
    assert recognition.recipe == old
    assert "disagrees" in recognition.reason
    recognition.read([event, silent(old)])
    assert (recognition.state, recognition.reason) == (KeyState.PROVEN, "")


def test_an_image_in_a_later_block_does_not_hide_that_an_old_release_agrees() -> None:
    old = Recipe.for_version("0.14.0", block_size=SIZE, seed="7")
    recognition = Recognition(old)
    recognition.read([silent(old, Extras(multimodal=(MultimodalItem("cat", 9, 3),)))])
    assert recognition.state is KeyState.PROVEN


def test_an_old_release_of_an_unknown_root_is_learned_and_says_what_it_cannot_know() -> None:
    old = Recipe.for_version("0.14.0", block_size=SIZE)
    recognition = Recognition(old)
    assert recognition.recipe is None, "nothing that prompts could be hashed with"
    passed, is_void = recognition.read([silent(msgspec.structs.replace(old, root=ROOT))])
    assert (recognition.state, is_void) == (KeyState.LEARNED, True)
    assert keys(passed) == [wanted(recognition)]
    assert "before 0.18" in recognition.reason


def test_an_adapter_is_told_apart_by_its_name_alone() -> None:
    old = msgspec.structs.replace(Recipe.for_version("0.14.0", block_size=SIZE), root=ROOT)
    recognition = learned()
    passed, _ = recognition.read([silent(old), silent(old, Extras(lora=LORA))])
    assert keys(passed) == [wanted(recognition), wanted(recognition, extras=Extras(lora=LORA))]
    passed, _ = recognition.read([stored(old, [9] * 8, extra_keys=NIL, lora_id=3)])
    assert keys(passed) == [[]], "vLLM 0.11 does not even name it"
    assert recognition.unplaced == 2


# Learned keys


def test_a_random_root_is_learned_from_the_first_event_on() -> None:
    recognition = Recognition(DECLARED)
    before = stored(RANDOM, [5] * 12, first=1)
    assert recognition.read([before]) == ([before], False)
    passed, is_void = recognition.read([CLEARED, stored(RANDOM, last=3), stored(RANDOM, first=3), CLEARED])
    assert is_void
    assert standing(recognition) == (KeyState.LEARNED, msgspec.structs.replace(OWN, block_size=SIZE))
    assert recognition.reason
    assert keys(passed) == [wanted(recognition)[:3], wanted(recognition)[3:]]
    assert passed[0] == passed[3] == CLEARED
    passed, is_void = recognition.read([stored(RANDOM, [8] * 9)])
    assert (keys(passed), is_void) == ([wanted(recognition, [8] * 9)], False)


def test_all_else_about_an_event_is_kept() -> None:
    recognition = learned()
    event = stored(RANDOM, medium="GPU", group_idx=0, kv_cache_spec_kind="full_attention", session_id="s")
    (passed,), _ = recognition.read([event])
    assert isinstance(passed, BlockStored)
    assert msgspec.structs.replace(passed, block_hashes=event.block_hashes) == event
    (child,), _ = recognition.read([stored(RANDOM, first=2)])
    assert isinstance(child, BlockStored)
    assert child.parent_block_hash is None, "the engine's name for it would mean nothing"
    (gone,), _ = recognition.read([removed(event)])
    assert gone == BlockRemoved(passed.block_hashes, "GPU", 0)


def test_without_a_declared_recipe_nothing_is_guessed() -> None:
    """A plain prompt could show the root, but not how the salts of later ones are hashed."""
    recognition = Recognition(None)
    assert recognition.recipe is None
    passed, is_void = recognition.read([stored(DECLARED), stored(DECLARED, extras=Extras(salt="pepper"))])
    assert (recognition.state, is_void) == (KeyState.LEARNED, True)
    assert keys(passed) == [wanted(recognition), wanted(recognition, extras=Extras(salt="pepper"))]
    assert "not known" in recognition.reason


EXTRAS = {
    "salt": Extras(salt="pepper"),
    "salt like an adapter": Extras(lora=LORA, salt="sql"),
    "salt of one letter": Extras(lora=Lora("s", "/s"), salt="s"),
    "adapter": Extras(lora=LORA),
    "images": Extras(
        multimodal=(MultimodalItem("cat", 2, 7), MultimodalItem("cat", 10, 2), MultimodalItem("s", 12, 30))
    ),
    "all": Extras(lora=LORA, multimodal=(MultimodalItem("sql", 0, 9),), salt="sql"),
}


@pytest.mark.parametrize("name", EXTRAS)
@pytest.mark.parametrize("version", ["0.32.0", "0.22.0"])
def test_learned_keys_are_those_that_a_request_computes(name: str, version: str) -> None:
    extras = EXTRAS[name]
    engine = msgspec.structs.replace(Recipe.for_version(version, block_size=SIZE), root=ROOT)
    recognition = learned()
    passed, _ = recognition.read([stored(engine, extras=extras, last=2), stored(engine, extras=extras, first=2)])
    expected = wanted(recognition, extras=extras)
    assert keys(passed) == [expected[:2], expected[2:]]
    assert expected[0] != wanted(recognition)[0]
    assert recognition.unplaced == 0


def test_prompt_embeddings_are_part_of_the_key() -> None:
    embeds = Extras(embeds=tuple(bytes([at]) * 32 for at in range(3)))
    recognition = learned()
    passed, _ = recognition.read([stored(RANDOM, [0] * 12, extras=embeds)])
    assert keys(passed) == [wanted(recognition, [0] * 12, embeds)]


def test_a_child_whose_parent_was_never_seen_has_no_place() -> None:
    recognition = learned()
    event = stored(RANDOM, first=2)
    passed, _ = recognition.read([event, removed(event)])
    assert keys(passed) == [[], []]
    assert recognition.unplaced == 8
    recognition.read([CLEARED])
    assert recognition.unplaced == 0, "what is gone is not missed"


def test_what_came_before_it_was_clear_what_to_do_is_missed_until_it_is_gone() -> None:
    recognition = Recognition(DECLARED)
    recognition.read([stored(RANDOM, first=2)])
    recognition.read([stored(RANDOM, [5] * 8)])
    assert (recognition.state, recognition.unplaced) == (KeyState.LEARNED, 8)
    recognition.read([CLEARED])
    assert recognition.unplaced == 0
    recognition = Recognition(DECLARED)
    recognition.read([stored(RANDOM, first=2)])
    recognition.read([CLEARED])
    recognition.read([stored(RANDOM, [5] * 8)])
    assert recognition.unplaced == 0


def test_every_copy_is_taken_back_once() -> None:
    recognition = learned()
    event = stored(RANDOM)
    passed, _ = recognition.read([event, event, event, *[removed(event)] * 4])
    assert keys(passed) == [*[wanted(recognition)] * 6, []], "the fourth was never stored"
    passed, _ = recognition.read([stored(RANDOM, first=2)])
    assert keys(passed) == [[]], "and its parent is gone with the last"


def test_a_parent_is_known_as_long_as_a_copy_is_left() -> None:
    recognition = learned()
    event = stored(RANDOM, last=2)
    recognition.read([event, event, removed(event)])
    passed, _ = recognition.read([stored(RANDOM, first=2)])
    assert keys(passed) == [wanted(recognition)[2:]]


def test_a_clear_forgets_names_of_the_gpu_and_no_others() -> None:
    recognition = learned()
    gpu, cpu = stored(RANDOM), stored(RANDOM, medium="CPU")
    lower = stored(RANDOM, medium="cpu")  # as Mooncake's connector writes it: the same tier to the index
    passed, _ = recognition.read([gpu, gpu, cpu, CLEARED, removed(gpu), removed(lower), removed(cpu)])
    expected = wanted(recognition)
    assert keys(passed) == [expected, expected, expected, [], expected, []]


def test_placeholders_and_events_without_extras_are_the_blocks_that_the_gpu_has_described() -> None:
    recognition = learned()
    salted = stored(RANDOM, extras=Extras(salt="pepper"))
    placeholder = BlockStored(salted.block_hashes[1::2], None, EMPTY, 0, medium="CPU", group_idx=0)
    bare = msgspec.structs.replace(salted, extra_keys=NIL, medium="STORAGE", ownership="kvcr", locality="REMOTE")
    passed, _ = recognition.read([salted, placeholder, bare, removed(placeholder), removed(bare)])
    expected = wanted(recognition, extras=Extras(salt="pepper"))
    assert keys(passed) == [expected, expected[1::2], expected, expected[1::2], expected]
    passed, _ = recognition.read([BlockStored([1, *salted.block_hashes], None, EMPTY, 0, medium="CPU")])
    assert keys(passed) == [[]], "one that is not known makes their places uncertain"
    assert recognition.unplaced == 11


def test_sparse_spans_have_no_place() -> None:
    recognition = learned()
    event = stored(RANDOM)
    passed, _ = recognition.read([msgspec.structs.replace(event, block_hashes=event.block_hashes[1::2])])
    assert keys(passed) == [[]]
    assert recognition.unplaced == 5


def test_groups_of_other_block_sizes_use_the_same_hashes_for_other_tokens() -> None:
    """Hybrid models: the coarser group has every second hash of the finer one."""
    recognition = learned()
    fine = stored(RANDOM, group_idx=1)
    coarse = msgspec.structs.replace(fine, block_hashes=fine.block_hashes[1::2], block_size=2 * SIZE, group_idx=0)
    double = msgspec.structs.replace(OWN, block_size=2 * SIZE)
    expected = [Chain(double, TOKENS).keys(5), wanted(recognition)]
    passed, _ = recognition.read([coarse, fine, removed(coarse), removed(fine)])
    assert keys(passed) == [*expected, *expected]
    passed, _ = recognition.read([fine, coarse, removed(coarse), removed(fine)])
    assert keys(passed) == [*expected[::-1], *expected]


@pytest.mark.parametrize(
    "extras", [5, [None], [[{"new": 1}]] * 10, [["cat", 1, 2]] * 10, [[None]] * 10, {"a": 1}, [7] * 10]
)
def test_extras_of_unknown_shape_cost_their_event(extras: Any) -> None:
    recognition = learned()
    passed, _ = recognition.read([stored(RANDOM, extra_keys=raw(extras)), stored(RANDOM, [3] * SIZE)])
    told = 1 if extras == [None] else 0
    assert [len(each) for each in keys(passed)] == [told, 1]
    assert recognition.unplaced == 10 - told


def test_an_adapter_called_like_a_salt_is_another_prefix() -> None:
    recognition = learned()
    passed, _ = recognition.read([stored(RANDOM, extras=Extras(lora=LORA)), stored(RANDOM, extras=Extras(salt="sql"))])
    adapter, salt = keys(passed)
    assert not set(adapter) & set(salt)


# Incarnations


def test_another_incarnation_is_proven_anew() -> None:
    recognition = learned(stored(RANDOM))
    recognition.forget()
    assert (recognition.state, recognition.recipe, recognition.reason) == (KeyState.UNPROVEN, DECLARED, "")
    other = msgspec.structs.replace(DECLARED, root=b"\x08" * 32)
    passed, is_void = recognition.read([stored(other, last=3)])
    assert (recognition.state, is_void) == (KeyState.LEARNED, True)
    passed, _ = recognition.read([stored(RANDOM, first=3), stored(other, first=3)])
    assert keys(passed) == [[], wanted(recognition)[3:]], "no name of the former life means anything"
    recognition.forget()
    recognition.read([stored(DECLARED)])
    assert (recognition.state, recognition.unplaced) == (KeyState.PROVEN, 0)


def test_what_is_declared_counts_until_an_event_has_spoken() -> None:
    recognition = Recognition(None)
    recognition.declare(DECLARED)
    assert standing(recognition)[1] == DECLARED
    recognition.declare(Recipe.for_version("0.22.0", block_size=SIZE))
    assert standing(recognition)[1] is None, "a root that is drawn at random"
    recognition.read([stored(RANDOM)])
    recognition.declare(DECLARED)
    assert standing(recognition) == (KeyState.LEARNED, msgspec.structs.replace(OWN, block_size=SIZE))
    recognition.forget()
    assert standing(recognition) == (KeyState.UNPROVEN, DECLARED)


def test_an_objection_is_to_one_declared_recipe_and_not_to_the_next() -> None:
    old = Recipe.for_version("0.14.0", block_size=SIZE, seed="7")
    recognition = Recognition(old)
    recognition.read([silent(msgspec.structs.replace(old, root=ROOT))])
    recognition.declare(old)
    assert recognition.reason, "the same again is no news"
    recognition.declare(msgspec.structs.replace(old, seed="8"))
    assert not recognition.reason


def test_a_seed_that_is_no_text_is_nothing_to_hash_with() -> None:
    recognition = Recognition(msgspec.structs.replace(DECLARED, algorithm="sha256_cbor", seed="\udc80"))
    assert standing(recognition) == (KeyState.UNPROVEN, None)
    recognition.read([stored(DECLARED)])
    assert standing(recognition) == (KeyState.PROVEN, DECLARED)


# Any life of a cache


class Life(RuleBasedStateMachine):
    """An engine with a random root: whatever it stores, evicts and clears, the index holds it under the keys of requests."""

    def __init__(self) -> None:
        super().__init__()
        self.recognition = Recognition(None)
        self.index = CacheIndex()
        self.index.add(A)
        self.held: Counter[int] = Counter()  # the truth, by the engine's names
        self.ours: dict[int, int] = {}  # the engine's name -> the key that a request computes
        self.parents: dict[int, int | None] = {}
        self.root = 0
        self.passed: list[KVEvent] = []

    prompts = st.tuples(
        st.integers(0, 2).flatmap(lambda family: st.integers(4, 30).map(lambda n: [family] * 6 + [9] * (n - 4))),
        st.sampled_from([NO_EXTRAS, Extras(salt="a"), Extras(lora=LORA), Extras(lora=LORA, salt="sql")]),
        st.integers(1, 3),
        st.booleans(),
    )

    @property
    def engine(self) -> Recipe:
        return msgspec.structs.replace(DECLARED, root=bytes([self.root]) * 32)

    def publish(self, *events: KVEvent) -> None:
        passed, is_void = self.recognition.read(events)
        if is_void:
            self.index.forget(A)
        self.index.apply(A, passed)

    @rule(prompt=prompts)
    def compute(self, prompt: tuple[list[int], Extras, int, bool]) -> None:
        """A request takes what is held from the front, and stores the rest in steps; or skips the cache and stores all."""
        tokens, extras, step, skips = prompt
        if extras.lora and self.recognition.state is KeyState.UNPROVEN:
            return
        chain = Chain(self.engine, tokens, extras)
        names = chain.keys(len(chain))
        own = Chain(msgspec.structs.replace(OWN, block_size=SIZE), tokens, extras).keys(len(chain))
        self.ours.update(zip(names, own, strict=True))
        hit = 0
        while not skips and hit < len(names) and names[hit] in self.held:
            hit += 1
        spans = [(at, min(at + step, len(names))) for at in range(hit, len(names), step)]
        self.publish(*[stored(self.engine, tokens, first, last, extras) for first, last in spans])
        self.held.update(names[hit:])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.held[name] -= 1
        self.held += Counter()
        self.publish(BlockRemoved([name], "GPU", 0))

    @rule()
    def clear(self) -> None:
        self.held.clear()
        self.publish(CLEARED)

    @rule()
    def restart(self) -> None:
        self.root += 1
        self.held.clear()
        self.recognition.forget()
        self.index.forget(A)

    @invariant()
    def the_index_holds_what_the_engine_holds(self) -> None:
        expected: Counter[int] = Counter()
        for name, copies in self.held.items():
            expected[self.ours[name]] += copies
        assert self.index.tiers[Tier()].held(A) == expected
        assert self.recognition.unplaced == 0

    @invariant()
    def names_are_counted_as_blocks_are(self) -> None:
        assert self.recognition.learned.held() == self.held


TestLife = Life.TestCase
