"""``indexer/hybrid.py``: the hit rule of several cache groups, by examples; vLLM's own word is in ``tests/real``."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.hybrid import (
    CHUNKED_LOCAL,
    FULL_ATTENTION,
    MAMBA,
    Found,
    GroupSpec,
    HitRule,
    hash_sizes,
    hit_rule,
    why_unknown,
)

SIZE = 16


def full(group: int = 0, size: int = SIZE, kind: str = "full_attention", *, eagle: bool = False) -> GroupSpec:
    return GroupSpec(group, kind, size, is_eagle=eagle)


def sliding(group: int = 1, window: int | None = 64, size: int = SIZE, *, eagle: bool = False) -> GroupSpec:
    return GroupSpec(group, "sliding_window", size, window, eagle)


def mamba(group: int = 1, size: int = SIZE) -> GroupSpec:
    return GroupSpec(group, MAMBA, size)


def chunked(group: int = 1, chunk: int | None = 64) -> GroupSpec:
    return GroupSpec(group, CHUNKED_LOCAL, SIZE, chunk)


def hit(prompt_tokens: int, *groups: tuple[GroupSpec, Iterable[int]], hash_size: int = SIZE) -> int:
    """The hit of a replica that holds in each group the blocks that end with these hashes of the chain."""
    rule = hit_rule(tuple(spec for spec, _ in groups), hash_size)
    held = {spec.group: set(places) for spec, places in groups}
    return rule.usable_tokens(prompt_tokens, [found(rule, held, at, prompt_tokens) for at in range(len(rule.parts))], 1)


def found(rule: HitRule, held: dict[int, set[int]], at: int, prompt_tokens: int) -> Found:
    part = rule.parts[at]
    places = range(part.step - 1, prompt_tokens // rule.hash_size, part.step)
    return Found([int(all(place in held[group] for group in part.groups)) for place in places])


# One group


@pytest.mark.parametrize("kind", sorted(FULL_ATTENTION))
def test_full_attention_is_hit_up_to_the_first_gap(kind: str) -> None:
    assert hit(200, (full(kind=kind), [0, 1, 2, 4, 5])) == 48
    assert hit(200, (full(kind=kind), [1, 2])) == 0


def test_the_last_token_is_always_computed() -> None:
    assert hit(65, (full(), range(9))) == 64
    assert hit(64, (full(), range(9))) == 48
    assert hit(1, (full(), range(9))) == 0
    assert hit(0, (full(), range(9))) == 0


def test_a_window_needs_only_the_blocks_that_it_sees() -> None:
    """Window 64: 63 tokens behind the next one, four blocks of 16."""
    assert hit(200, (sliding(0), [4, 5, 6, 7])) == 128
    assert hit(200, (sliding(0), [4, 5, 7, 8, 9])) == 0
    assert hit(200, (sliding(0, window=33), [4, 5, 9])) == 96
    assert hit(200, (sliding(0, window=34), [4, 5, 9])) == 0


def test_a_window_that_reaches_back_to_the_first_token_needs_no_more() -> None:
    assert hit(200, (sliding(0), [0, 1])) == 32
    assert hit(200, (sliding(0), [0, 1, 3])) == 32


def test_the_last_window_wins() -> None:
    assert hit(400, (sliding(0, window=32), [2, 3, 8, 9, 15])) == 160


def test_mamba_goes_on_from_its_last_state() -> None:
    assert hit(200, (mamba(0), [2, 5])) == 96
    assert hit(96, (mamba(0), [2, 5])) == 48


def test_chunked_attention_looks_at_its_present_chunk_alone() -> None:
    assert hit(100, (chunked(0), [])) == 64
    assert hit(100, (chunked(0), [4])) == 80
    assert hit(100, (chunked(0), [5])) == 64
    assert hit(65, (chunked(0), [])) == 64


def test_a_draft_model_has_the_last_block_computed_anew() -> None:
    """The contract's figures for blocks of 16: 17, 32, 33, 49, 97 tokens give 0, 0, 16, 32, 80."""
    lengths = (17, 32, 33, 49, 97)
    assert [hit(length, (full(eagle=True), range(9))) for length in lengths] == [0, 0, 16, 32, 80]
    assert hit(200, (sliding(0, window=32, eagle=True), [4, 5])) == 0
    assert hit(200, (sliding(0, window=32, eagle=True), [4, 5, 6])) == 96


# Several groups


def test_all_groups_must_allow_a_hit() -> None:
    window = (sliding(), [2, 3, 4, 5])
    assert hit(200, (full(), range(10)), window) == 96
    assert hit(200, (full(), range(5)), window) == 0
    assert hit(200, (full(), range(10)), (sliding(), [])) == 0


def test_another_tail_finds_nothing_where_only_the_end_of_the_first_prompt_is_kept() -> None:
    """vLLM's default (retention interval 0): full attention alone would promise nine tenths of the prompt."""
    assert hit(320, (full(), range(20)), (sliding(), range(15, 19))) == 304
    assert hit(150, (full(), range(9)), (sliding(), [])) == 0


def test_groups_alike_are_looked_up_jointly() -> None:
    one, other = (sliding(1, 32), [2, 3, 7, 8]), (sliding(2, 32), [2, 3, 8, 9])
    assert hit(200, (full(), range(11)), one, other) == 64


def test_windows_of_several_lengths_are_looked_up_until_they_agree() -> None:
    """The longer window allows 80 tokens, there the shorter one only 64, and there the longer one nothing."""
    assert hit(200, (full(), range(9)), (sliding(1, 64), [1, 2, 3, 4]), (sliding(2, 32), [2, 3, 7, 8])) == 0
    assert hit(200, (full(), range(9)), (sliding(1, 64), [0, 1, 2, 3, 4]), (sliding(2, 32), [2, 3, 7, 8])) == 64


def test_longer_blocks_use_every_second_hash_and_hits_end_where_both_do() -> None:
    groups = (full(size=32), [1, 3, 5, 7, 9]), (sliding(1, 32), [4, 5, 6])
    assert hit(200, *groups) == 96
    assert hit(200, (full(size=32), [1, 3, 5]), (sliding(1, 32), [5, 6])) == 0


def test_mamba_blocks_longer_than_hashes_are_hit_inside() -> None:
    """The end of a prompt is cached under the last hash in it, in every group."""
    groups = (full(size=64), [3, 5]), (mamba(size=64), [3, 5])
    assert hit(100, *groups) == 96
    assert hit(96, *groups) == 64
    assert hit(100, (full(size=64), [3]), groups[1]) == 64


def test_hits_end_at_whole_blocks_where_one_group_can_end_nowhere_else() -> None:
    groups = (full(size=64), [3, 5]), (mamba(size=64), [3, 5]), (sliding(2, 32, size=32), [1, 3, 5])
    assert hit(100, *groups) == 64


@given(st.lists(st.sets(st.integers(0, 12)), min_size=3, max_size=3), st.integers(0, 210), st.booleans())
def test_a_hit_is_bounded_and_grows_with_what_is_held(held: list[set[int]], tokens: int, eagle: bool) -> None:
    specs = full(eagle=eagle), sliding(1, 40, eagle=eagle), sliding(2, 64, eagle=eagle)
    some = hit(tokens, *zip(specs, held, strict=True))
    assert some % SIZE == 0
    assert some <= max(0, tokens - 1)
    if not eagle:  # with a draft model, several groups may be looked up one block further than one alone (vLLM 0.32)
        assert some <= hit(tokens, (specs[0], held[0]))
    assert hit(tokens, *((spec, range(13)) for spec in specs)) >= some


# What is kept


KEPT: dict[str, tuple[GroupSpec, ...]] = {
    "a window": (full(), sliding()),
    "longer blocks of full attention": (full(size=32), sliding(1, 40)),
    "longer blocks of the window": (full(), sliding(1, 70, size=32)),
    "mamba": (full(), mamba()),
    "mamba, hit inside blocks": (full(size=32), sliding(1, 40), mamba(2, size=64)),
    "chunks": (full(), chunked()),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_every_retention_keeps_is_what_a_repeat_looks_up(name: str) -> None:
    specs = KEPT[name]
    rule = hit_rule(specs, SIZE)
    for tokens in range(400):
        held = {group: set(places) for groups, places in rule.kept(tokens) for group in groups}
        assert all(place < tokens // SIZE for places in held.values() for place in places)
        repeat = rule.usable_tokens(tokens, [found(rule, held, at, tokens) for at in range(len(rule.parts))], 1)
        assert repeat == max(0, tokens - 1) // rule.alignment * rule.alignment


# What cannot be told


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([full(), sliding(), mamba(2)], ""),
        ([], ""),
        ([full(), GroupSpec(1, "unknown", SIZE)], "group 1 is of a kind"),
        ([full(), sliding(window=None)], "group 1 does not tell its sliding window"),
        ([full(), sliding(window=-5)], "group 1 does not tell its sliding window"),
        ([full(), chunked(chunk=None)], "chunk"),
        ([full(size=32), chunked()], "another size"),
        ([full(size=0)], "no block size"),
        ([sliding()], "group 0 tells nothing"),
        ([full(), mamba(2)], "group 1 tells nothing"),
        ([full(), sliding(10**18)], "group 1 tells nothing"),
    ],
)
def test_groups_whose_rule_is_not_known_say_why(groups: list[GroupSpec], reason: str) -> None:
    told = why_unknown(groups)
    assert reason in told
    assert bool(told) == bool(reason)


def test_the_step_of_hashes_divides_all_block_sizes() -> None:
    assert hash_sizes([32, 48], None) == [16, 8, 4, 2, 1]
    assert hash_sizes([32, 48], 4) == [16, 4, 8, 2, 1]
    assert hash_sizes([32, 48], 32)[0] == 16
    assert hash_sizes([16], 0)[0] == 16
    assert len(hash_sizes([2**62], None)) < 20
