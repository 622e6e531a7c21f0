"""``indexer/groups.py``: what events tell of a replica's cache groups, and when that is enough."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.events import EMPTY, AllBlocksCleared, BlockRemoved, BlockStored
from indexer.groups import MAX_GROUPS, NOTHING, CacheGroups, Untold
from indexer.hybrid import GroupSpec

FULL: dict[str, Any] = {"kv_cache_spec_kind": "full_attention"}
WINDOW: dict[str, Any] = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 64}
MAMBA: dict[str, Any] = {"group_idx": 1, "kv_cache_spec_kind": "mamba"}


def stored(blocks: int = 2, size: int = 16, tokens: int | None = None, **fields: Any) -> BlockStored:
    count = blocks * size if tokens is None else tokens
    return BlockStored(list(range(blocks)), None, msgspec.Raw(msgspec.msgpack.encode([7] * count)), size, **fields)


def seen(*events: BlockStored, untold: Untold = NOTHING) -> CacheGroups:
    groups = CacheGroups(untold)
    groups.read(events)
    return groups


@pytest.mark.parametrize("kind", [None, "full_attention", "mla_attention", "sink_full_attention"])
def test_one_cache_of_full_attention_needs_no_rule(kind: str | None) -> None:
    groups = seen(stored(kv_cache_spec_kind=kind))
    assert not groups.is_hybrid
    assert groups.rule(16) is None


def test_groups_are_learned_from_what_they_store() -> None:
    groups = seen(stored(**FULL), stored(**WINDOW))
    assert groups.specs == {0: GroupSpec(0, "full_attention", 16), 1: GroupSpec(1, "sliding_window", 16, 64)}
    assert groups.doubt(16) == ""
    rule = groups.rule(16)
    assert rule is not None
    assert [part.groups for part in rule.parts] == [(0,), (1,)]


def test_only_news_is_told() -> None:
    groups = CacheGroups()
    assert groups.read([stored(**FULL)])
    assert not groups.read([stored(**FULL), BlockRemoved([1]), AllBlocksCleared()])
    assert groups.read([stored(**WINDOW)])
    assert not groups.read([stored(**FULL), stored(**WINDOW)])
    assert groups.read([stored(**{**WINDOW, "kv_cache_spec_sliding_window": 32})])


def test_events_of_other_tiers_tell_nothing() -> None:
    groups = seen(
        stored(**FULL), stored(**WINDOW, medium="CPU"), BlockStored([1], None, EMPTY, 0, medium="cpu", group_idx=3)
    )
    assert not groups.is_hybrid


def test_a_window_that_stores_no_block_is_a_group_all_the_same() -> None:
    """vLLM 0.32 announces the range with no hash when nothing of it is retained."""
    assert seen(stored(**FULL), stored(blocks=0, tokens=64, **WINDOW)).doubt(16) == ""


def test_the_end_of_a_prompt_is_no_block_size() -> None:
    groups = seen(stored(size=64, **FULL), stored(blocks=1, size=16, **FULL), stored(size=64, **MAMBA))
    assert [spec.block_size for spec in groups.specs.values()] == [64, 64]


def test_what_may_be_the_end_of_a_prompt_leaves_the_block_size_in_doubt() -> None:
    groups = seen(stored(blocks=1, **FULL), stored(blocks=1, **MAMBA))
    assert "no whole block yet" in groups.doubt(16)
    assert groups.read([stored(blocks=1, tokens=32, **MAMBA), stored(**FULL)])
    assert groups.doubt(16) == ""
    groups.read([stored(blocks=1, size=64, **FULL)])
    assert groups.doubt(16) == ""


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([stored(**FULL), stored(group_idx=1, kv_cache_spec_kind="rings")], "'rings'"),
        ([stored(**FULL), stored(group_idx=1, kv_cache_spec_kind="sliding_window")], "window"),
        ([stored(**WINDOW)], "group 0 tells nothing"),
        ([stored(**FULL), stored(size=24, **WINDOW)], "no multiple"),
        ([stored(**FULL), stored(size=-16, **WINDOW)], "no block size"),
    ],
)
def test_what_is_not_known_is_said_and_the_rest_still_counts(events: list[BlockStored], reason: str) -> None:
    groups = seen(*events)
    assert reason in groups.doubt(16)
    rule = groups.rule(16)
    assert rule is not None
    assert len(rule.parts) == 1


def test_a_draft_model_beside_several_groups_leaves_a_doubt() -> None:
    groups = seen(stored(**FULL), stored(**WINDOW), untold=Untold(has_eagle=True))
    assert "draft" in groups.doubt(16)
    rule = groups.rule(16)
    assert rule is not None
    assert all(part.is_eagle for part in rule.parts)
    alone = seen(stored(**{**WINDOW, "group_idx": 0}), untold=Untold(has_eagle=True))
    assert alone.doubt(16) == ""


def test_a_chunk_that_is_told_by_the_settings_is_enough() -> None:
    chunked = stored(group_idx=1, kv_cache_spec_kind="chunked_local_attention")
    assert "replicas.attention_chunk" in seen(stored(**FULL), chunked).doubt(16)
    groups = seen(stored(**FULL), chunked, untold=Untold(attention_chunk=8192))
    assert groups.doubt(16) == ""
    rule = groups.rule(16)
    assert rule is not None
    assert [part.window for part in rule.parts] == [0, 8192]


def test_a_flood_of_groups_is_bounded() -> None:
    groups = seen(*(stored(**{**WINDOW, "group_idx": at}) for at in range(3 * MAX_GROUPS)))
    assert len(groups.specs) == MAX_GROUPS
    assert str(MAX_GROUPS) in groups.doubt(16)


@given(
    st.lists(
        st.builds(
            BlockStored,
            st.lists(st.integers(0, 9), max_size=3),
            st.none(),
            st.sampled_from([EMPTY, msgspec.Raw(b"\x9f"), msgspec.Raw(msgspec.msgpack.encode(["a"]))]),
            st.integers(-5, 70),
            group_idx=st.none() | st.integers(-3, 1 << 70),
            kv_cache_spec_kind=st.none() | st.sampled_from(["full_attention", "sliding_window", "mamba", "rings"]),
            kv_cache_spec_sliding_window=st.none() | st.integers(-9, 99),
        )
    ),
    st.integers(1, 40),
    st.builds(Untold, st.booleans(), st.none() | st.integers(1, 99)),
)
def test_no_event_raises(events: list[BlockStored], hash_size: int, untold: Untold) -> None:
    groups = seen(*events, untold=untold)
    rule = groups.rule(hash_size)
    assert not (groups.is_hybrid and rule is None and not groups.doubt(hash_size))
