"""``balancer/hashes.py``: one chain a prompt, made once, and none where there is no hash."""

from balancer.hashes import PromptHashes
from balancer.media import NO_MEDIA, Media
from hashing.chain import Chain
from hashing.extras import Extras, Lora, MultimodalItem
from hashing.memory import ChainMemory
from hashing.own import LearnedKeys, OwnChain
from hashing.recipes import Recipe
from tests.support.routing import RECIPE

TOKENS = list(range(40))


def test_chains_are_those_of_the_engine() -> None:
    lora = Lora("sql", "/adapters/sql")
    made = PromptHashes([TOKENS, TOKENS[:8]], "salt", ChainMemory(1 << 20)).chains(RECIPE, lora)
    expected = [Chain(RECIPE, tokens, Extras(lora=lora, salt="salt")).keys(99) for tokens in (TOKENS, TOKENS[:8])]
    assert [chain.keys(99) for chain in made] == expected


def test_a_chain_is_made_once_for_each_recipe_and_adapter() -> None:
    hashes = PromptHashes([TOKENS], None, None)
    assert hashes.chains(RECIPE, None) is hashes.chains(Recipe(block_size=4), None)
    assert hashes.chains(RECIPE, None) is not hashes.chains(Recipe(block_size=8), None)
    assert hashes.chains(RECIPE, None) is not hashes.chains(RECIPE, Lora("sql", "/adapters/sql"))


def test_a_salt_separates() -> None:
    plain, salted = (PromptHashes([TOKENS], salt, None).chains(RECIPE, None)[0] for salt in (None, "s"))
    assert not set(plain.keys(10)) & set(salted.keys(10))


def test_tokens_without_a_hash_have_no_chain() -> None:
    assert PromptHashes([[-1] * 8], None, None).chains(RECIPE, None) == []
    assert PromptHashes([[2**64] * 8], None, None).chains(RECIPE, None) == []


def test_an_engine_with_a_random_root_has_no_chain() -> None:
    assert PromptHashes([TOKENS], None, None).chains(Recipe(block_size=4, unseeded="random"), None) == []


def test_keys_that_are_learned_are_our_own() -> None:
    lora = Lora("sql", "/adapters/sql")
    hashes = PromptHashes([TOKENS], "salt", ChainMemory(1 << 20))
    for learned in (LearnedKeys(4), LearnedKeys(4, tells_extras=False)):
        (made,) = hashes.chains(learned, lora)
        assert made.keys(99) == OwnChain(learned, TOKENS, Extras(lora=lora, salt="salt")).keys(99)
        assert hashes.chains(learned, lora)[0] is made
    assert PromptHashes([[-1] * 8], None, None).chains(LearnedKeys(4), None) == []


def test_pictures_are_part_of_the_keys_from_where_they_lie() -> None:
    item = MultimodalItem("cat", 10, 7)
    for recipe in (RECIPE, LearnedKeys(4)):
        hashes = PromptHashes([TOKENS, TOKENS], "salt", None, [Media((item,)), NO_MEDIA])
        cat, plain = (list(chain.keys(99)) for chain in hashes.chains(recipe, None))
        assert cat[:2] == plain[:2]
        assert not set(cat[2:]) & set(plain)
    (made,) = PromptHashes([TOKENS], None, None, [Media((item,))]).chains(RECIPE, None)
    assert made.keys(99) == Chain(RECIPE, TOKENS, Extras(multimodal=(item,))).keys(99)


def test_a_picture_that_nobody_can_name_ends_the_chain() -> None:
    for recipe in (RECIPE, LearnedKeys(4)):
        (known,) = PromptHashes([TOKENS], None, None, [Media(known_tokens=10)]).chains(recipe, None)
        (plain,) = PromptHashes([TOKENS], None, None).chains(recipe, None)
        assert known.keys(99) == plain.keys(2)[:2]
        (nothing,) = PromptHashes([TOKENS], None, None, [Media(known_tokens=0)]).chains(recipe, None)
        assert nothing.keys(99) == []
