"""``balancer/processes/keys.py``: the brain finds the very keys that the gateway made."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.core import Prompt
from balancer.hashes import PromptHashes
from balancer.media import Media
from balancer.processes.frames import ProtocolError
from balancer.processes.keys import GivenHashes, Kind, OwnHashes
from balancer.processes.protocol import Chains
from hashing.extras import Lora, MultimodalItem
from hashing.memory import ChainMemory
from hashing.own import LearnedKeys
from hashing.recipes import Recipe

KINDS: list[Kind] = [Recipe(), Recipe("xxhash", block_size=4), LearnedKeys(8), Recipe(unseeded="random")]


def own(*prompts: Sequence[int], salt: str | None = None, media: Media | None = None) -> OwnHashes:
    return OwnHashes([Prompt(each, media or Media()) for each in prompts], salt, ChainMemory())


@given(
    st.lists(st.lists(st.integers(0, 10), max_size=40), min_size=1, max_size=3),
    st.none() | st.just("salt"),
    st.none() | st.just(Lora("l", "/p")),
)
def test_what_is_told_is_what_would_be_hashed_here(
    prompts: list[list[int]], salt: str | None, adapter: Lora | None
) -> None:
    hashes = own(*prompts, salt=salt)
    told = hashes.told([(number, kind, adapter) for number, kind in enumerate(KINDS)])
    given_ = GivenHashes(told, dict(enumerate(KINDS)))
    here = PromptHashes(prompts, salt, None)
    for kind in KINDS:
        size = kind.block_size
        wanted = [
            chain.keys(len(each) // size) for chain, each in zip(here.chains(kind, adapter), prompts, strict=False)
        ]
        assert [chain.keys(1) for chain in given_.chains(kind, adapter)] == wanted


def test_what_was_not_told_is_not_found_and_costs_nothing_else() -> None:
    told = own(list(range(40))).told([(0, KINDS[0], None)])
    assert GivenHashes(told, {}).chains(KINDS[0], None) == ()
    given_ = GivenHashes(told, {0: KINDS[0], 1: KINDS[1]})
    assert given_.chains(KINDS[1], None) == ()
    assert given_.chains(KINDS[0], Lora("l")) == ()
    assert len(given_.chains(KINDS[0], None)) == 1


def test_keys_that_are_cut_off_are_refused() -> None:
    with pytest.raises(ProtocolError):
        GivenHashes([Chains(0, None, [b"1234567"])], {0: KINDS[0]})


def test_a_short_prompt_has_a_key_of_its_own() -> None:
    prompt = [1, 2, 3, 4, 5]
    first = own(prompt).first()
    assert first
    assert own(prompt, [4]).first() == first
    image = Media((MultimodalItem("cat", 0, 4),))
    others = [own(prompt[:-1]), own([*prompt, 6]), own(prompt, salt="s"), own(prompt, media=image)]
    assert len({first, *(each.first() for each in others)}) == 5
    assert own().first() == own([]).first() == own([-1] * 20).first() == 0
