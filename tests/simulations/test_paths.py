"""``simulations/paths.py``: segments tell what prompts have in common, as their keys do block by block."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulations.keys import TraceKeys
from simulations.paths import Paths
from simulations.traces.trace import Trace, TraceBuilder

Asks = list[tuple[int, list[int]]]
"""Prompts: tokens, and ids of their blocks."""


def trace_of(whole: int, asks: Asks) -> Trace:
    builder = TraceBuilder("made", whole, is_chained=False)
    for at, (tokens, ids) in enumerate(asks):
        builder.add(float(at), tokens, 1, ids)
    return builder.build()


@st.composite
def workloads(draw: st.DrawFn) -> tuple[int, Asks]:
    """Prompts over a small tree; some end within a block that others have whole, some tell nothing, some not their last one."""
    whole = draw(st.integers(1, 9))
    asks = []
    for _ in range(draw(st.integers(1, 12))):
        depth = draw(st.integers(0, 5))
        rest = draw(st.integers(0 if depth else 1, whole))
        tokens = depth * whole + rest
        ids = [draw(st.integers(0, 1)) for _ in range(-(-tokens // whole))]
        if tokens % whole and draw(st.booleans()):
            ids.pop()
        asks.append((tokens, ids if draw(st.integers(0, 9)) else []))
    return whole, asks


def common(one: list[int], two: list[int]) -> int:
    """Leading things that are the same."""
    for at, (mine, other) in enumerate(zip(one, two, strict=False)):
        if mine != other:
            return at
    return min(len(one), len(two))


@settings(max_examples=300)
@given(workloads(), st.integers(1, 20))
@example((4, [(7, [0, 1]), (8, [0, 1]), (6, [0, 1])]), 1)
@example((2, [(7, [0, 0, 0, 1]), (8, [0, 0, 0, 0])]), 3)
def test_what_prompts_have_in_common_is_what_their_keys_have(workload: tuple[int, Asks], size: int) -> None:
    trace = trace_of(*workload)
    paths, keys = Paths(trace, size), TraceKeys(trace, size)
    blocks = [keys.of(request) for request in range(len(trace))]
    assert [len(each) for each in blocks] == [tokens // size for tokens in trace.inputs]
    for one, mine in enumerate(paths.paths):
        assert sum([paths.lengths[segment] for segment in mine]) + paths.own[one] == trace.inputs[one] // size
        for two in range(one):
            shared = common(list(mine), list(paths.paths[two]))
            assert sum([paths.lengths[segment] for segment in mine[:shared]]) == common(blocks[one], blocks[two])


@settings(max_examples=100)
@given(workloads(), st.integers(1, 20))
def test_every_prompt_has_a_segment_whole_or_not_at_all(workload: tuple[int, Asks], size: int) -> None:
    paths = Paths(trace_of(*workload), size)
    assert all(length > 0 for length in paths.lengths)
    before: dict[int, int | None] = {}
    for path in paths.paths:
        assert len(set(path)) == len(path)
        for at, segment in enumerate(path):
            parent = path[at - 1] if at else None
            assert before.setdefault(segment, parent) == parent, "a segment comes behind one other, or none"


def test_a_prompt_that_nobody_shares_is_one_segment() -> None:
    paths = Paths(trace_of(4, [(400, list(range(100)))]), 4)
    assert (list(paths.lengths), [list(path) for path in paths.paths], list(paths.own)) == ([100], [[0]], [0])


def test_a_prompt_that_tells_nothing_is_all_its_own() -> None:
    paths = Paths(trace_of(4, [(40, []), (40, [])]), 4)
    assert ([list(path) for path in paths.paths], list(paths.own)) == ([[], []], [10, 10])


def test_equal_prompts_are_the_same_object() -> None:
    paths = Paths(trace_of(4, [(40, list(range(10)))] * 2), 4)
    assert paths.paths[0] is paths.paths[1]
