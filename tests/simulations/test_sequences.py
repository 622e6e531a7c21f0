import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashing.chain import Chain
from hashing.extras import Extras, Lora, MultimodalItem
from hashing.recipes import Recipe
from simulations.sequences import KeyPrompt, TokenPrompt

RECIPE = Recipe(block_size=4)
EXTRAS = st.sampled_from(
    [
        Extras(),
        Extras(salt="a salt"),
        Extras(lora=Lora("ad", "/adapters/ad", 3)),
        Extras(multimodal=(MultimodalItem("cat", 2, 9),), salt="s"),
    ]
)


@given(st.lists(st.integers(0, 200_000), max_size=30), st.lists(st.integers(0, 200_000), max_size=30), EXTRAS)
def test_keys_of_generated_blocks_are_those_of_the_whole_text(
    prompt: list[int], output: list[int], extras: Extras
) -> None:
    sequence = TokenPrompt(prompt, extras).start(RECIPE, "r")
    for token in output:
        sequence.append(token)
        chain = Chain(RECIPE, prompt + output[: sequence.num_tokens - len(prompt)], extras)
        assert sequence.keys == chain.keys(len(chain))


def test_an_event_carries_tokens_parent_and_untagged_extra_keys() -> None:
    extras = Extras(Lora("ad", "/adapters/ad", 3), (MultimodalItem("cat", 2, 4), MultimodalItem("dog", 7, 9)), "s")
    sequence = TokenPrompt(list(range(10)), extras).start(RECIPE, "r")
    for token in (10, 11):
        sequence.append(token)
    event = sequence.stored(0, 3, with_tokens=True)
    assert event.tokens() == list(range(12))
    assert event.extras() == [
        ["ad", ["cat", 2], "s"],
        ["ad", ["cat", -2], ["dog", 3]],
        ["ad", ["dog", -1]],
    ]
    assert (event.lora_name, event.lora_id, event.medium, event.group_idx) == ("ad", 3, "GPU", 0)
    later = sequence.stored(1, 3, with_tokens=True)
    assert later.block_hashes == sequence.keys[1:]
    assert later.parent_block_hash == sequence.keys[0]
    assert later.tokens() == list(range(4, 12))


def test_events_without_tokens_keep_hashes_and_parent() -> None:
    sequence = TokenPrompt(list(range(12)), Extras(salt="s")).start(RECIPE, "r")
    full, short = (sequence.stored(1, 3, with_tokens=flag) for flag in (True, False))
    assert (short.tokens(), short.extras()) == ([], None)
    assert msgspec.structs.replace(full, token_ids=short.token_ids, extra_keys=short.extra_keys) == short


def test_an_event_does_not_change_when_the_sequence_grows() -> None:
    sequence = TokenPrompt(list(range(7))).start(RECIPE, "r")
    event = sequence.stored(0, 1, with_tokens=True)
    sequence.append(7)
    assert len(event.block_hashes) == 1


def test_given_keys_cover_what_is_known_and_later_blocks_are_nobody_elses() -> None:
    sequences = [KeyPrompt(num_tokens=6, keys=[11, 12]).start(RECIPE, name) for name in ("r1", "r2", "r1")]
    for sequence in sequences:
        for token in range(6):
            sequence.append(token)
    assert [sequence.keys[:2] for sequence in sequences] == [[11, 12]] * 3
    assert [len(sequence.keys) for sequence in sequences] == [3] * 3
    own = [sequence.keys[2] for sequence in sequences]
    assert own[0] == own[2] != own[1]
    assert sequences[0].stored(1, 3, with_tokens=True).tokens() == []


def test_a_full_block_without_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="keys: 1 given, a prompt of 8 tokens has 2 full blocks of 4"):
        KeyPrompt(num_tokens=8, keys=[1]).start(RECIPE, "r")


def test_prompts_given_as_embeddings_are_refused() -> None:
    with pytest.raises(ValueError, match="embeddings cannot be simulated"):
        TokenPrompt([0, 0, 0, 0], Extras(embeds=(b"digest",))).start(RECIPE, "r")
