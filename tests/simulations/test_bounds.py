import gzip
import hashlib
import importlib.util
import itertools
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulations.bounds import Bounds, Hit, Rule, bounds, spaced_sizes
from simulations.traces.trace import Trace, TraceBuilder

GOLDEN = Path(__file__).parent.parent / "golden"
OTHERS: dict[str, Any] = json.loads((GOLDEN / "bounds_kvcache_simulator_0.1.3.json").read_text())["hit tokens of"]


def trace_of(*requests: tuple[int, str], block_size: int = 4) -> Trace:
    """Requests of (tokens, blocks), a letter a block; letters name blocks alone, so that equal beginnings are shared."""
    builder = TraceBuilder("made up", block_size, is_chained=False)
    for at, (tokens, blocks) in enumerate(requests):
        builder.add(at, tokens, 1, [ord(each) for each in blocks])
    return builder.build()


def read(lines: list[str]) -> Trace:
    builder = TraceBuilder("golden", 512, is_chained=True)
    for record in map(json.loads, lines):
        builder.add(record["timestamp"] / 1000, record["input_length"], record["output_length"], record["hash_ids"])
    return builder.build()


def made_up() -> list[str]:
    spec = importlib.util.spec_from_file_location("record_bounds", GOLDEN / "record_bounds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [json.dumps(record) for record in module.made_up()]


def check_against_others(trace: Trace, golden: dict[str, Any]) -> None:
    tokens = golden["tokens"]
    sizes = {int(size): hits for size, hits in golden["lru and belady by blocks"].items()}
    found = bounds(trace, sizes, rule=Rule.AS_GIVEN, measured_from=len(trace) // 2)
    assert round(found.infinite.tokens * tokens, 3) == golden["ceiling"]
    got = {
        pool.blocks: [round(pool.lru.tokens * tokens, 3), round(pool.belady.tokens * tokens, 3)] for pool in found.pools
    }
    assert got == sizes
    assert len(got) >= 2


def test_another_program_finds_the_same_in_a_made_up_trace() -> None:
    check_against_others(read(made_up()), OTHERS["made up"])


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "made up"])
def test_another_program_finds_the_same_in_public_traces(name: str) -> None:
    data = (GOLDEN / "traces" / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == OTHERS[name]["sha256"], "these are not the requests that were recorded"
    check_against_others(read(gzip.decompress(data).decode().splitlines()), OTHERS[name])


# The same by definition, block by block.


def paths_of(trace: Trace, rule: Rule) -> list[tuple[list[int], int]]:
    """By request: the blocks that are kept, and how many of them may be hit."""
    size = trace.block_size
    if rule is Rule.AS_GIVEN:
        return [(list(blocks), len(blocks)) for blocks in trace.blocks]
    return [
        (list(blocks[: tokens // size]), min(len(blocks), (tokens - 1) // size))
        for blocks, tokens in zip(trace.blocks, trace.inputs, strict=True)
    ]


def hits_of_lru(trace: Trace, rule: Rule, size: int) -> list[int]:
    cache: list[int] = []  # the next to go first
    hits = []
    for path, limit in paths_of(trace, rule):
        hits.append(sum(1 for _ in itertools.takewhile(cache.__contains__, path[:limit])))
        for block in reversed(path):
            if block in cache:
                cache.remove(block)
            cache.append(block)
        del cache[: max(0, len(cache) - size)]
    return hits


def most_hits(trace: Trace, rule: Rule, size: int) -> int:
    """Of all ways to keep blocks: tries them all."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for path, limit in paths_of(trace, rule):
        after: dict[frozenset[int], int] = {}
        for cache, count in best.items():
            hit = sum(1 for _ in itertools.takewhile(cache.__contains__, path[:limit]))
            there = cache | set(path)
            for kept in itertools.combinations(sorted(there), min(size, len(there))):
                after[frozenset(kept)] = max(after.get(frozenset(kept), 0), count + hit)
        best = after
    return max(best.values())


def total(hit: Hit, trace: Trace, rule: Rule, first: int = 0) -> int:
    kept = sum(len(path) for path, _ in paths_of(trace, rule)[first:])
    return round(hit.blocks * kept)


requests = st.lists(
    st.tuples(st.text("ab", min_size=0, max_size=4), st.integers(0, 3)).map(
        lambda each: (4 * len(each[0]) - each[1] if each[0] else 1 + each[1], each[0])
    ),
    max_size=14,
)


@given(requests, st.sampled_from(Rule), st.integers(0, 12), st.integers(0, 3))
def test_lru_is_what_a_list_of_blocks_does(made: list[tuple[int, str]], rule: Rule, size: int, first: int) -> None:
    trace = trace_of(*made)
    first = min(first, len(trace))
    found = bounds(trace, [size], rule=rule, measured_from=first)
    hits = hits_of_lru(trace, rule, size)
    assert total(found.pools[0].lru, trace, rule, first) == sum(hits[first:])
    tokens = sum(min(4 * hit, trace.inputs[at]) for at, hit in enumerate(hits) if at >= first)
    assert round(found.pools[0].lru.tokens * sum(trace.inputs[first:])) == tokens


@settings(max_examples=400)
@example([(8, "aa"), (12, "aba"), (12, "aaa"), (8, "ab"), (16, "abaa")], Rule.FULL_BLOCKS, 3)
@given(requests.filter(lambda made: len(made) <= 7), st.sampled_from(Rule), st.integers(0, 3))
def test_no_way_to_keep_blocks_hits_more_than_belady(made: list[tuple[int, str]], rule: Rule, size: int) -> None:
    trace = trace_of(*made)
    assert total(bounds(trace, [size], rule=rule).pools[0].belady, trace, rule) == most_hits(trace, rule, size)


@given(requests, st.sampled_from(Rule))
def test_a_cache_that_forgets_nothing_is_one_into_which_everything_fits(
    made: list[tuple[int, str]], rule: Rule
) -> None:
    trace = trace_of(*made)
    found = bounds(trace, [0, 1000], rule=rule)
    assert found.pools[1].lru == found.pools[1].belady == found.infinite
    assert sum(found.infinite_by_request) == round(found.infinite.tokens * sum(trace.inputs))
    assert found.pools[0].lru == found.pools[0].belady == Hit(0.0, 0.0)
    assert found.curve_hits == sorted(found.curve_hits)
    assert found.curve_hits[-1] == found.infinite.tokens


def test_a_prompt_of_full_blocks_computes_its_last_one_again() -> None:
    trace = trace_of((8, "ab"), (8, "ab"), (9, "abc"))
    assert list(bounds(trace, []).infinite_by_request) == [0, 4, 8]
    assert list(bounds(trace, [], rule=Rule.AS_GIVEN).infinite_by_request) == [0, 8, 8]


def test_a_partial_block_counts_as_many_tokens_as_it_has() -> None:
    trace = trace_of((6, "ab"), (6, "ab"))
    found = bounds(trace, [1, 2], rule=Rule.AS_GIVEN)
    assert [pool.lru.tokens for pool in found.pools] == [4 / 12, 6 / 12]
    assert bounds(trace, [2]).infinite == Hit(4 / 12, 1 / 2)


def test_of_one_request_the_tail_goes_first() -> None:
    trace = trace_of((17, "abcde"), (17, "abcde"))
    assert [round(pool.lru.tokens * 34) for pool in bounds(trace, [1, 2, 3]).pools] == [4, 8, 12]


def test_nothing_is_known_of_prompts_without_blocks() -> None:
    trace = trace_of((100, ""), (100, ""))
    found = bounds(trace, [10])
    assert found.infinite == found.pools[0].lru == found.pools[0].belady == Hit(0.0, 0.0)


def test_a_trace_of_nothing_has_bounds_too() -> None:
    found = bounds(trace_of(), [10])
    assert found.infinite == Hit(0.0, 0.0)
    assert list(found.infinite_by_request) == []


def test_pools_come_in_order_of_size_and_once() -> None:
    found = bounds(trace_of((9, "abc")), [7, 3, 7], curve=[5, 2])
    assert [pool.blocks for pool in found.pools] == [3, 7]
    assert found.curve_blocks == [2, 5]


def test_sizes_are_spread_up_to_where_everything_fits() -> None:
    trace = trace_of((4 * 300, "".join(map(chr, range(300)))))
    assert spaced_sizes(trace) == [64, 76, 91, 108, 128, 152, 181, 215, 256, 304]
    assert spaced_sizes(trace, per_doubling=1) == [64, 128, 256, 512]


@pytest.mark.parametrize(
    ("sizes", "first", "message"), [([-1], 0, "0 blocks or more"), ([1], 3, "from 0 to 1, got 3"), ([1], -1, "got -1")]
)
def test_what_cannot_be_is_said(sizes: list[int], first: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bounds(trace_of((9, "abc")), sizes, measured_from=first)


def test_bounds_are_the_same_every_time() -> None:
    trace = read(made_up()[:500])
    assert bounds(trace, [50, 500]) == bounds(trace, [50, 500])
    assert isinstance(bounds(trace, []).infinite_by_request, array)
    assert isinstance(bounds(trace, []), Bounds)
