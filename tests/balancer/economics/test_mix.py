"""``balancer/economics/mix.py``: the cheapest mix, against every mix that there is."""

from collections.abc import Iterator
from itertools import combinations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from balancer.economics.links import LINKS, Link
from balancer.economics.mix import Control, Mix, Source, cheapest, load_weight
from balancer.economics.prefill import Prefill
from balancer.economics.shape import CacheShape, Layers

SHAPE = CacheShape.uniform(131_072)
PREFILL = Prefill.from_speed(10_000)


def gigabits(rate: float, fixed: float = 0.0) -> Link:
    return Link(rate * 1e9 / 8, fixed)


def every_mix(
    prompt: int, hit: int, sources: list[Source], prefill: Prefill, shape: CacheShape, control: Control
) -> Iterator[float]:
    """Seconds of all that the engine can be made to do, block by block and in no clever way."""
    optional = [source for source in sources if source.optional]
    subsets = [set(each) for count in range(len(optional) + 1) for each in combinations(optional, count)]
    for subset in [set(optional)] if control is Control.NOTHING else subsets:
        usable = [source for source in sources if not source.optional or source in subset]
        holder: list[Source | None] = [None] * prompt
        at = hit
        for source in usable:
            end = min(source.reach, prompt // source.chunk * source.chunk)
            if source.start <= at < end:
                holder[at:end] = [source] * (end - at)
                at = end
        lengths = []
        for end in range(hit, prompt + 1):
            last = holder[end - 1] if end > hit else None
            if end == hit or (all(holder[hit:end]) and last is not None and end % last.chunk == 0):
                lengths.append(end)
        for end in lengths if control is Control.LENGTH else lengths[-1:]:
            seconds, start = 0.0, hit
            while start < end:
                here, stop = holder[start], start
                assert here is not None
                while stop < end and holder[stop] is here:
                    stop += 1
                seconds += here.weight * here.link.seconds(shape.moved(start, stop, end))
                start = stop
            rest = max(1, prompt - end)
            yield seconds + prefill.seconds(rest, prompt - rest)


chunks = st.sampled_from([1, 2, 4, 6])
links = st.builds(Link, st.sampled_from([1.0, 3.0, 10.0, 50.0, 1000.0]), st.sampled_from([0.0, 0.5, 3.0]))
shapes = st.builds(
    CacheShape,
    st.lists(
        st.one_of(
            st.builds(Layers, st.sampled_from([0.0, 1.0, 5.0]), st.sampled_from([None, 1, 3, 7, 20])),
            st.builds(Layers, st.just(0.0), st.none(), st.sampled_from([2.0, 30.0])),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
)
prefills = st.builds(
    Prefill,
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.01, 0.1, 0.5, 2.0]),
    st.sampled_from([0.0, 0.003, 0.1]),
    st.sampled_from([0.0, 0.4, 1.7, 8.0]),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, list[Source]]:
    prompt = draw(st.integers(1, 40))
    hit = draw(st.integers(0, prompt - 1))
    sources = [
        Source(
            f"s{at}",
            draw(links),
            draw(st.integers(0, prompt)),
            draw(chunks),
            draw(st.booleans()),
            draw(st.sampled_from([0, 0, 0, 9, 20])),
            draw(st.sampled_from([1.0, 1.0, 0.5])),
        )
        for at in range(draw(st.integers(0, 3)))
    ]
    return prompt, hit, sources


@settings(max_examples=1500)
@given(cases(), prefills, shapes, st.sampled_from(Control))
@example(
    (40, 0, [Source("s0", Link(3.0), 40, 4)]), Prefill(0.0, 0.5, 0.0, 8.0), CacheShape.uniform(1.0), Control.LENGTH
)
@example(
    (40, 0, [Source("slow", Link(1.0), 20, 1, optional=False), Source("store", Link(5.0), 40)]),
    Prefill(token=2.2, least=44.0),
    CacheShape((Layers(1.0), Layers(10.0, 7))),
    Control.LENGTH,
)
@example((40, 0, [Source("store", Link(1.0), 40)]), Prefill(token=1.5), CacheShape.uniform(1.0), Control.LENGTH)
def test_no_mix_is_quicker_than_the_cheapest(
    case: tuple[int, int, list[Source]], prefill: Prefill, shape: CacheShape, control: Control
) -> None:
    prompt, hit, sources = case
    found = cheapest(prompt, hit, sources, prefill, shape, control)
    assert weighted(found, sources) == pytest.approx(min(every_mix(prompt, hit, sources, prefill, shape, control)))
    is_consistent(found, prompt, hit, sources, prefill)


def weighted(mix: Mix, sources: list[Source]) -> float:
    weights = {source.name: source.weight for source in sources}
    return mix.compute_seconds + sum(load.seconds * weights[load.source] for load in mix.loads)


def is_consistent(found: Mix, prompt: int, hit: int, sources: list[Source], prefill: Prefill) -> None:
    """Its parts are in the order of the prompt, and each is what it says."""
    at = hit
    reach = {source.name: source.reach for source in sources}
    for load in found.loads:
        assert load.start == at < load.end <= reach[load.source]
        at = load.end
    assert found.hit_tokens == hit
    assert found.loaded_tokens == at - hit
    assert found.computed_tokens == max(1, prompt - at)
    assert found.compute_seconds == prefill.seconds(found.computed_tokens, prompt - found.computed_tokens)
    assert found.seconds == found.load_seconds + found.compute_seconds


@settings(max_examples=300)
@given(cases(), prefills, shapes)
def test_it_is_never_worse_than_a_plain_rule(
    case: tuple[int, int, list[Source]], prefill: Prefill, shape: CacheShape
) -> None:
    prompt, hit, sources = case
    best = weighted(cheapest(prompt, hit, sources, prefill, shape), sources)
    tiny = 1e-9
    assert best <= prefill.seconds(prompt - hit, hit) + tiny, "never fetch"
    assert best <= weighted(cheapest(prompt, hit, sources, prefill, shape, Control.NOTHING), sources) + tiny, (
        "always fetch"
    )
    assert best <= weighted(cheapest(prompt, hit, sources, prefill, shape, Control.SOURCES), sources) + tiny, (
        "tiers alone"
    )
    assert best <= prefill.seconds(prompt, 0) + tiny, "compute it all"


@settings(max_examples=300)
@given(cases(), prefills, shapes, st.sampled_from([1.0, 1.5, 10.0]), st.sampled_from([0.0, 0.2]))
def test_a_better_link_never_makes_it_slower(
    case: tuple[int, int, list[Source]], prefill: Prefill, shape: CacheShape, faster: float, sooner: float
) -> None:
    prompt, hit, sources = case
    better = [
        msgspec.structs.replace(
            each, link=Link(each.link.bandwidth * faster, max(0.0, each.link.latency - sooner), each.link.setup)
        )
        for each in sources
    ]
    before = weighted(cheapest(prompt, hit, sources, prefill, shape), sources)
    assert weighted(cheapest(prompt, hit, better, prefill, shape), better) <= before + 1e-9


@settings(max_examples=300)
@given(cases(), prefills, shapes)
def test_more_that_lies_somewhere_never_makes_it_slower(
    case: tuple[int, int, list[Source]], prefill: Prefill, shape: CacheShape
) -> None:
    prompt, hit, sources = case
    fewer = weighted(cheapest(prompt, hit, [each for each in sources if not each.optional], prefill, shape), sources)
    assert weighted(cheapest(prompt, hit, sources, prefill, shape), sources) <= fewer + 1e-9


def test_a_link_that_is_slower_than_computing_is_left_alone_but_for_what_it_is_told_to_load() -> None:
    slow = Source("store", gigabits(1), 8000, 16)
    assert cheapest(8000, 1600, [slow], PREFILL, SHAPE).loads == ()
    (load,) = cheapest(8000, 1600, [slow], PREFILL, SHAPE, Control.NOTHING).loads
    assert (load.start, load.end, load.size) == (1600, 8000, 6400 * 131_072)
    assert load.seconds == pytest.approx(6400 * 131_072 * 8 / 1e9)


def test_a_setup_keeps_short_stretches_from_being_loaded() -> None:
    def loaded(held: int) -> int:
        return cheapest(8000, 0, [Source("store", gigabits(100, 0.05), held, 16)], PREFILL, SHAPE).loaded_tokens

    worth = 0.05 / (1e-4 - 131_072 * 8 / 100e9)  # tokens whose computing takes as long as the setup and their loading
    assert (loaded(int(worth) // 16 * 16), loaded((int(worth) // 16 + 1) * 16)) == (0, (int(worth) // 16 + 1) * 16)


def test_a_fast_tier_is_loaded_and_a_slow_store_behind_it_is_not() -> None:
    sources = [Source("cpu", LINKS["ram-pcie5"], 4000, 16, optional=False), Source("store", gigabits(5), 8000, 16)]
    found = cheapest(8000, 1600, sources, PREFILL, SHAPE)
    assert [(load.source, load.start, load.end) for load in found.loads] == [("cpu", 1600, 4000)]
    assert found.computed_tokens == 4000
    assert found.allowed == ()


def test_a_step_reads_the_weights_in_any_case_so_some_tokens_are_left_to_it() -> None:
    """10 ms for the weights are 100 tokens: to load them would take time, and to compute them takes none."""
    prefill = Prefill(token=1e-4, least=0.01)
    found = cheapest(8000, 0, [Source("store", gigabits(100), 8000, 16)], prefill, SHAPE)
    assert found.computed_tokens == 96
    assert found.compute_seconds == 0.01


def test_what_an_engine_cannot_be_told_is_what_it_does() -> None:
    cpu = Source("cpu", gigabits(1), 4000, 16, optional=False)
    store = Source("store", gigabits(1), 8000, 16)
    assert cheapest(8000, 0, [cpu, store], PREFILL, SHAPE, Control.NOTHING).loaded_tokens == 8000
    assert cheapest(8000, 0, [cpu, store], PREFILL, SHAPE, Control.SOURCES).loaded_tokens == 4000
    assert cheapest(8000, 0, [cpu, store], PREFILL, SHAPE, Control.LENGTH).loaded_tokens == 0


def test_a_source_is_asked_only_for_what_it_is_known_to_hold() -> None:
    slow, fast = Source("cpu", gigabits(1), 4000, 16), Source("store", gigabits(100), 8000, 16, start=4000)
    assert cheapest(8000, 0, [slow, fast], PREFILL, SHAPE).loads == (), "the store goes on where the other one ends"
    assert cheapest(8000, 4000, [slow, fast], PREFILL, SHAPE).loaded_tokens == 4000


def test_a_load_may_wait_for_a_fast_link_while_others_wait_for_the_replica() -> None:
    fast, slow = gigabits(50), gigabits(5)  # 21 and 210 microseconds a token, computed in 100
    assert load_weight(3.0, fast, SHAPE, PREFILL, 8000) == pytest.approx(1 / 3)
    assert load_weight(50.0, fast, SHAPE, PREFILL, 8000) == pytest.approx(131_072 * 8 / 50e9 / 1e-4), (
        "no more than it is faster"
    )
    assert load_weight(50.0, slow, SHAPE, PREFILL, 8000) == load_weight(1.0, fast, SHAPE, PREFILL, 8000) == 1
    assert load_weight(50.0, fast, SHAPE, PREFILL, 0) == pytest.approx(1 / 50), "nothing takes no time"
    waiting = Source("store", gigabits(50, 1.0), 8000, 16)  # 1.17 s to load, 0.8 s to compute
    assert cheapest(8000, 0, [waiting], PREFILL, SHAPE).loaded_tokens == 0
    dear = msgspec.structs.replace(waiting, weight=load_weight(2.0, fast, SHAPE, PREFILL, 8000))
    assert cheapest(8000, 0, [dear], PREFILL, SHAPE).loaded_tokens == 8000


def test_a_link_is_as_fast_as_a_load_over_it_with_its_delay_and_as_what_it_saves() -> None:
    late = gigabits(50, 1.0)  # 8,000 tokens take 1.17 s, and 0.8 s to compute; twice as many 1.34 s, and 1.6 s
    assert load_weight(50.0, late, SHAPE, PREFILL, 8000) == 1
    assert load_weight(50.0, late, SHAPE, PREFILL, 16_000) == pytest.approx(late.seconds(16_000 * 131_072) / 1.6)
    attention = msgspec.structs.replace(PREFILL, pair=1e-8)  # behind 100,000 others a token takes 1.1 ms
    assert load_weight(50.0, gigabits(5), SHAPE, attention, 8000) == 1
    assert load_weight(50.0, gigabits(5), SHAPE, attention, 8000, 100_000) < 0.25


def test_a_whole_hit_has_its_last_token_to_compute() -> None:
    found = cheapest(8000, 8000, [Source("store", gigabits(100), 8000)], PREFILL, SHAPE)
    assert (found.hit_tokens, found.loads, found.computed_tokens) == (7999, (), 1)
