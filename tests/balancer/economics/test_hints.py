"""``balancer/economics/hints.py``: what vLLM's OffloadingConnector is told, and what it makes of it."""

import pytest

from balancer.economics.hints import Tier, control_of, forbids, guarded, hint, offloads
from balancer.economics.links import Link
from balancer.economics.mix import Control, Load, Mix, Source, cheapest
from balancer.economics.prefill import Prefill
from balancer.economics.shape import CacheShape

SHAPE, PREFILL = CacheShape.uniform(1000.0), Prefill.from_speed(1000)
FAST, SLOW = Link(1e8), Link(1e5)
TIERS = {"cpu": Tier("CPU"), "disk": Tier("STORAGE", "LOCAL"), "store": Tier("STORAGE", "REMOTE")}


def told(*sources: Source, hit: int = 0, control: Control = Control.LENGTH) -> tuple[Mix, dict[str, object]]:
    mix = cheapest(1000, hit, sources, PREFILL, SHAPE, control)
    return mix, hint(mix, sources, TIERS, control)


def source(name: str, link: Link, tokens: int) -> Source:
    return Source(name, link, tokens, 16, optional=TIERS[name].is_optional)


def test_what_the_engine_does_by_itself_needs_no_word() -> None:
    assert told(source("cpu", FAST, 320), source("store", FAST, 960))[1] == {}
    assert told()[1] == {}
    assert told(source("cpu", SLOW, 320), hit=320)[1] == {}, "there is nothing beyond its own hit"


def test_no_load_at_all_is_a_length_of_0() -> None:
    assert told(source("cpu", SLOW, 320), source("store", SLOW, 960))[1] == {"max_load_tokens": 0}


def test_a_tier_that_is_too_slow_is_left_out() -> None:
    mix, fields = told(source("cpu", FAST, 320), source("store", SLOW, 960), hit=64)
    assert mix.loaded_tokens == 256
    assert fields == {"kv_load_tiers": []}, "the CPU tier is always read"


def test_of_two_tiers_of_one_medium_the_place_decides() -> None:
    fields = told(source("disk", SLOW, 640), source("store", FAST, 960))[1]
    assert fields == {"kv_load_tiers": [{"medium": "STORAGE", "locality": "REMOTE"}]}


def test_a_slow_cpu_tier_before_a_fast_store_is_read_or_nothing_is() -> None:
    """Blocks that lie in the CPU tier come from there, whatever else has them."""
    mix, fields = told(source("cpu", SLOW, 480), source("store", FAST, 960))
    assert (mix.loaded_tokens, fields) == (0, {"max_load_tokens": 0})


def test_a_length_is_told_where_some_tokens_are_better_computed() -> None:
    mix = Mix(64, (), 936 - 320, 0.0)
    free = Prefill(token=1e-3, least=0.3)  # 300 tokens cost no more than one
    sources = [source("cpu", FAST, 960)]
    mix = cheapest(1000, 64, sources, free, SHAPE)
    assert mix.loaded_tokens == 640
    assert hint(mix, sources, TIERS, Control.LENGTH) == {"max_load_tokens": 640}


def test_older_engines_are_told_what_they_understand() -> None:
    sources = (source("cpu", FAST, 320), source("store", SLOW, 960))
    assert told(*sources, control=Control.SOURCES)[1] == {"kv_load_tiers": []}
    mix, fields = told(*sources, control=Control.NOTHING)
    assert (mix.loaded_tokens, fields) == (960, {})


@pytest.mark.parametrize(
    ("release", "offloads", "expected"),
    [
        ((0, 32, 0), True, Control.LENGTH),
        ((0, 31, 0), True, Control.LENGTH),
        ((0, 30, 2), True, Control.SOURCES),
        ((0, 28, 0), True, Control.SOURCES),
        ((0, 27, 0), True, Control.NOTHING),
        ((1, 0, 0), True, Control.LENGTH),
        ((0, 32, 0), False, Control.NOTHING),
        (None, True, Control.NOTHING),
    ],
)
def test_releases_and_connectors_differ(release: tuple[int, ...] | None, offloads: bool, expected: Control) -> None:
    assert control_of(release, offloads=offloads) is expected


def test_tiers_that_a_filter_cannot_tell_apart_are_refused() -> None:
    vague = TIERS | {"disk": Tier("STORAGE")}
    sources = [source("disk", SLOW, 640), source("store", FAST, 960)]
    mix = cheapest(1000, 0, sources, PREFILL, SHAPE)
    with pytest.raises(ValueError, match="disk: an engine cannot tell it from another tier"):
        hint(mix, sources, vague, Control.LENGTH)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"OffloadingConnector"}, True),
        ({"OffloadingConnector", "NixlConnector"}, True),
        ({"OffloadingConnector", "MooncakeConnector"}, True),
        ({"OffloadingConnector", "MooncakeStoreConnector"}, False),
        ({"NixlConnector"}, False),
        (set(), False),
    ],
)
def test_beside_another_that_loads_what_it_finds_a_word_is_of_no_use(names: set[str], expected: bool) -> None:
    assert offloads(names) is expected


NOTHING_FOUND, FROM_STORE = Mix(64, (), 936, 0.0), Mix(64, (Load("store", 64, 384, 0.0, 0.0),), 616, 0.0)
SOME = {"max_load_tokens": 16}


@pytest.mark.parametrize(
    ("fields", "mix", "poor", "control", "expected"),
    [
        ({}, None, set(), Control.LENGTH, {}),
        ({}, None, {"store"}, Control.NOTHING, {}),
        (SOME, None, {"store"}, Control.LENGTH, SOME),  # what is told already says it
        ({}, None, {"store"}, Control.LENGTH, {"kv_load_tiers": [{"medium": "STORAGE", "locality": "LOCAL"}]}),
        ({}, NOTHING_FOUND, {"store", "disk"}, Control.SOURCES, {"kv_load_tiers": []}),  # the CPU tier is worth it
        ({}, None, {"cpu", "disk", "store"}, Control.LENGTH, {"max_load_tokens": 0}),
        ({}, None, {"cpu", "disk", "store"}, Control.SOURCES, {}),  # it reads its CPU tier in any case
        ({}, FROM_STORE, {"cpu", "disk", "store"}, Control.LENGTH, {"max_load_tokens": 320}),
        ({}, FROM_STORE, {"store"}, Control.LENGTH, {}),  # a length would hold for the others, too
        ({}, None, {"cpu", "store"}, Control.LENGTH, {}),
    ],
)
def test_what_is_not_worth_loading_is_not_loaded_should_the_engine_find_it(
    fields: dict[str, object], mix: Mix | None, poor: set[str], control: Control, expected: dict[str, object]
) -> None:
    assert guarded(fields, mix, TIERS, poor, control) == expected


def test_a_poor_tier_that_no_filter_tells_from_a_good_one_is_read() -> None:
    two = {"store": TIERS["store"], "other": TIERS["store"]}
    assert guarded({}, None, two, {"other"}, Control.LENGTH) == {}
    assert guarded({}, None, two, {"other", "store"}, Control.LENGTH) == {"kv_load_tiers": []}


@pytest.mark.parametrize(
    ("fields", "tiers", "expected"),
    [
        ({}, ["store"], False),
        ({"max_load_tokens": 0}, ["cpu", "store"], True),
        ({"max_load_tokens": 16}, ["store"], False),
        ({"kv_load_tiers": []}, ["store"], True),
        ({"kv_load_tiers": []}, ["cpu", "store"], False),
        ({"kv_load_tiers": [{"medium": "STORAGE"}]}, ["store"], False),
    ],
)
def test_who_is_told_to_load_nothing_loads_nothing(fields: dict[str, object], tiers: list[str], expected: bool) -> None:
    assert forbids(fields, [TIERS[name] for name in tiers]) is expected
