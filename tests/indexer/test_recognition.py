"""``indexer/recognition.py``: what events say of an engine's hashes, and keys that are learned where they say nothing.

Engines here hash by a recipe with a root of any choice; what they announce is built as vLLM 0.32 builds it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hashing.chain import Chain
from hashing.extras import NO_EXTRAS, Extras, Lora, MultimodalItem
from hashing.own import LearnedKeys, OwnChain
from hashing.recipes import Algorithm, Recipe
from indexer.events import EMPTY, NIL, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.index import CacheIndex, ReplicaId, Tier
from indexer.recognition import MAX_DOUBTS, KeyState, Recognition
from tests.indexer.announced import DECLARED, LORA, RANDOM, ROOT, SIZE, TOKENS, raw, removed, silent, stored

CLEARED = AllBlocksCleared()
A = ReplicaId("a")


def wanted(recognition: Recognition, tokens: Sequence[int] = TOKENS, extras: Extras = NO_EXTRAS) -> list[int]:
    """The keys by which a request's blocks are looked for."""
    recipe = recognition.recipe
    assert recipe is not None
    chain = OwnChain(recipe, tokens, extras) if isinstance(recipe, LearnedKeys) else Chain(recipe, tokens, extras)
    return list(chain.keys(len(chain)))


def keys(events: Sequence[KVEvent]) -> list[list[int]]:
    return [event.block_hashes for event in events if not isinstance(event, AllBlocksCleared)]


def learned() -> Recognition:
    """One that has seen that nothing agrees."""
    recognition = Recognition(DECLARED, [LORA])
    _, is_void = recognition.read([stored(RANDOM, [1] * SIZE)])
    assert is_void
    return recognition


def standing(recognition: Recognition) -> tuple[KeyState, Recipe | LearnedKeys | None]:
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
    "of another tier": stored(RANDOM, medium="CPU"),
    "a placeholder": stored(RANDOM, token_ids=EMPTY, block_size=0),
    "without tokens": stored(RANDOM, token_ids=EMPTY),
    "sparse": stored(RANDOM, block_hashes=[1, 2]),
    "nothing": stored(RANDOM, [], token_ids=EMPTY, block_hashes=[]),
    "nothing, of no size": stored(RANDOM, [], token_ids=EMPTY, block_hashes=[], block_size=0),
    "negative size": stored(RANDOM, block_size=-4),
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


@pytest.mark.parametrize("tokens", [raw(["a"] * 40), raw({"a": 1}), msgspec.Raw(b"\x9f"), raw([[1, 2], [2, 3]] * 20)])
def test_tokens_of_another_form_prove_nothing_and_are_no_reason_to_trust(tokens: msgspec.Raw) -> None:
    """Draft models have made engines publish pairs: no prompt will ever be found among such blocks."""
    recognition = Recognition(DECLARED)
    odd = stored(RANDOM, token_ids=tokens)
    for other in (removed(odd), stored(RANDOM, token_ids=tokens, medium="CPU"), stored(RANDOM, first=1)):
        recognition.read([other])
        assert recognition.reason == ""
    assert recognition.read([odd]) == ([odd], False)
    assert standing(recognition) == (KeyState.UNPROVEN, DECLARED)
    assert "its events name tokens in a form that no prompt has" in recognition.reason
    recognition.read([odd, stored(DECLARED)])
    assert (recognition.state, recognition.reason) == (KeyState.PROVEN, "")


@pytest.mark.parametrize("tokens", [[-1] * 40, [1 << 63] * 40])
def test_tokens_that_cannot_be_hashed_never_raise(tokens: list[int]) -> None:
    recognition = Recognition(DECLARED)
    recognition.read([stored(RANDOM, token_ids=raw(tokens)), stored(DECLARED)])
    assert recognition.state is KeyState.LEARNED


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


def old_release(seed: str | None = "7") -> Recipe:
    return Recipe.for_version("0.14.0", block_size=SIZE, seed=seed)


def test_an_old_release_may_have_begun_with_a_salted_prompt() -> None:
    old = old_release()
    recognition = Recognition(old)
    event = silent(old, Extras(salt="pepper"))
    assert recognition.read([event]) == ([event], False)
    assert recognition.state is KeyState.UNPROVEN
    assert recognition.recipe == old
    assert "disagrees" in recognition.reason
    recognition.read([event, silent(old)])
    assert (recognition.state, recognition.reason) == (KeyState.PROVEN, "")


def test_an_image_in_a_later_block_does_not_hide_that_an_old_release_agrees() -> None:
    old = old_release()
    recognition = Recognition(old)
    recognition.read([silent(old, Extras(multimodal=(MultimodalItem("cat", 9, 3),)))])
    assert recognition.state is KeyState.PROVEN


def test_an_old_release_of_an_unknown_root_is_learned_and_says_what_it_cannot_know() -> None:
    old = old_release(seed=None)
    recognition = Recognition(old)
    assert recognition.recipe is None, "nothing that prompts could be hashed with"
    passed, is_void = recognition.read([silent(msgspec.structs.replace(old, root=ROOT))])
    assert (recognition.state, is_void, recognition.is_vague) == (KeyState.LEARNED, True, True)
    assert keys(passed) == [wanted(recognition)]
    assert wanted(recognition, extras=Extras(salt="pepper")) == wanted(recognition), "a hint is better than nothing"
    assert "before 0.18" in recognition.reason


def test_an_old_release_with_another_seed_is_learned_once_enough_prompts_disagree() -> None:
    recognition = Recognition(old_release(seed="7"))
    other = msgspec.structs.replace(old_release(), seed="8")
    prompts = [[at] * 8 for at in range(MAX_DOUBTS)]
    for prompt in [*prompts[:-1], *prompts[:-1]]:
        assert recognition.read([silent(other, tokens=prompt)])[1] is False, "the same prompt again is one doubt"
    assert standing(recognition) == (KeyState.UNPROVEN, old_release())
    passed, is_void = recognition.read([silent(other, tokens=prompts[-1])])
    assert (recognition.state, is_void, recognition.is_vague) == (KeyState.LEARNED, True, True)
    held = [key for event in keys(passed) for key in event]
    assert Counter(held) == Counter(key for prompt in [*prompts, *prompts[:-1]] for key in wanted(recognition, prompt))


def test_an_adapter_of_an_old_release_proves_and_is_learned_by_its_name() -> None:
    recognition = Recognition(old_release(), [LORA])
    recognition.read([silent(old_release(), Extras(lora=LORA))])
    assert recognition.state is KeyState.PROVEN
    old = msgspec.structs.replace(old_release(), root=ROOT)
    recognition = learned()
    passed, _ = recognition.read([silent(old), silent(old, Extras(lora=LORA))])
    assert keys(passed) == [wanted(recognition), wanted(recognition, extras=Extras(lora=LORA))]
    passed, _ = recognition.read([stored(old, [9] * 8, extra_keys=NIL, lora_id=3)])
    assert keys(passed) == [[]], "vLLM 0.11 does not even name it"
    assert recognition.unplaced == 2


# Adapters


def of_adapter(recipe: Recipe, adapter: Lora = LORA, tokens: Sequence[int] = TOKENS) -> BlockStored:
    return stored(recipe, tokens, extras=Extras(lora=adapter))


MOVED = Lora(LORA.name, "/adapters/newer", LORA.id)


@pytest.mark.parametrize("version", ["0.32.0", "0.22.0"])
def test_adapters_whose_paths_are_known_prove_alone(version: str) -> None:
    recipe = Recipe.for_version(version, block_size=SIZE, seed="0")
    recognition = Recognition(msgspec.structs.replace(recipe, seed="7"), [LORA])
    recognition.read([of_adapter(recipe)])
    assert standing(recognition) == (KeyState.PROVEN, recipe)


def test_an_adapter_that_is_declared_later_proves_then() -> None:
    recognition = Recognition(DECLARED)
    recognition.read([of_adapter(DECLARED)])
    assert recognition.state is KeyState.UNPROVEN
    recognition.declare(DECLARED, [LORA])
    recognition.read([of_adapter(DECLARED)])
    assert standing(recognition) == (KeyState.PROVEN, DECLARED)


def test_an_adapter_that_disagrees_may_have_been_moved() -> None:
    recognition = Recognition(DECLARED, [LORA])
    assert recognition.read([of_adapter(DECLARED, MOVED)])[1] is False
    assert standing(recognition) == (KeyState.UNPROVEN, DECLARED)
    assert "'sql'" in recognition.reason
    assert "path" in recognition.reason
    recognition.declare(DECLARED, [MOVED])
    assert not recognition.reason, "what was said of another path"
    recognition.read([of_adapter(DECLARED, MOVED)])
    assert recognition.state is KeyState.PROVEN


def test_adapters_alone_show_in_the_end_that_the_root_is_another() -> None:
    recognition = Recognition(DECLARED, [LORA])
    for at in range(MAX_DOUBTS):
        assert recognition.state is KeyState.UNPROVEN
        passed, is_void = recognition.read([of_adapter(RANDOM, tokens=[at] * 8)])
    assert standing(recognition) == (KeyState.LEARNED, LearnedKeys(SIZE))
    assert (is_void, recognition.is_vague) == (True, False)
    assert Counter(key for event in keys(passed) for key in event) == Counter(
        key for at in range(MAX_DOUBTS) for key in wanted(recognition, [at] * 8, Extras(lora=LORA))
    )


def test_without_a_declared_recipe_an_adapter_is_enough_to_begin_with() -> None:
    recognition = Recognition(None)
    passed, is_void = recognition.read([of_adapter(RANDOM)])
    assert (recognition.state, is_void) == (KeyState.LEARNED, True)
    assert keys(passed) == [wanted(recognition, extras=Extras(lora=Lora(LORA.name)))]


def test_blocks_of_an_adapter_that_was_moved_are_those_of_the_new_one() -> None:
    recognition = learned()
    old, _ = recognition.read([of_adapter(RANDOM)])
    recognition.declare(DECLARED, [MOVED])
    new, _ = recognition.read([of_adapter(RANDOM, MOVED)])
    assert keys(new) == [wanted(recognition, extras=Extras(lora=MOVED))]
    assert not set(keys(new)[0]) & set(keys(old)[0])


# Learned keys


def test_a_random_root_is_learned_and_nothing_of_before_is_lost() -> None:
    recognition = Recognition(DECLARED)
    before, tail, head = stored(RANDOM, [5] * 12, first=1), stored(RANDOM, first=3), stored(RANDOM, last=3)
    assert recognition.read([CLEARED, before, tail]) == ([CLEARED, before, tail], False)
    passed, is_void = recognition.read([head, stored(RANDOM, [5] * 12, medium="CPU")])
    assert is_void
    assert standing(recognition) == (KeyState.LEARNED, LearnedKeys(SIZE))
    assert recognition.reason
    index = CacheIndex()
    index.add(A)
    index.apply(A, passed)
    five = wanted(recognition, [5] * 12)
    assert index.gpu.held(A) == Counter([*wanted(recognition), *five[1:]])
    assert index.tiers[Tier("CPU")].held(A) == Counter(five)
    assert recognition.unplaced == 0
    passed, is_void = recognition.read([stored(RANDOM, [8] * 9)])
    assert (keys(passed), is_void) == ([wanted(recognition, [8] * 9)], False)


def test_what_has_no_place_is_counted_from_then_on() -> None:
    recognition = Recognition(DECLARED)
    recognition.read([stored(RANDOM, first=2)])
    assert recognition.unplaced == 0, "its hashes are believed"
    recognition.read([stored(RANDOM, [5] * 8)])
    assert (recognition.state, recognition.unplaced) == (KeyState.LEARNED, 8)
    recognition.read([CLEARED])
    assert recognition.unplaced == 0


def test_without_a_declared_recipe_nothing_is_guessed() -> None:
    """A plain prompt could show the root, but not how the salts of later ones are hashed."""
    recognition = Recognition(None)
    assert recognition.recipe is None
    passed, is_void = recognition.read([stored(DECLARED), stored(DECLARED, extras=Extras(salt="pepper"))])
    assert (recognition.state, is_void) == (KeyState.LEARNED, True)
    assert keys(passed) == [[*wanted(recognition), *wanted(recognition, extras=Extras(salt="pepper"))]]
    assert "not known" in recognition.reason


# Incarnations


def test_another_incarnation_is_proven_anew() -> None:
    recognition = learned()
    recognition.read([stored(RANDOM)])
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
    assert standing(recognition) == (KeyState.LEARNED, LearnedKeys(SIZE))
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
        self.recognition = Recognition(None, [LORA])
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
        chain = Chain(self.engine, tokens, extras)
        names = chain.keys(len(chain))
        own = OwnChain(LearnedKeys(SIZE), tokens, extras).keys(len(chain))
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
