"""``simulations/traces/stretches.py``: prompts end and branch between stretches, never within one."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.traces.stretches import NO_STRETCH, Stretches
from simulations.traces.trace import Trace, TraceBuilder


def trace_of(prompts: Sequence[Sequence[int]]) -> Trace:
    builder = TraceBuilder("made", 16, is_chained=False)
    for at, ids in enumerate(prompts):
        builder.add(at, max(1, 16 * len(ids)), 1, ids)
    return builder.build()


def test_a_prompt_is_one_stretch_and_its_last_id_another() -> None:
    found = Stretches(trace_of([range(10), range(10)]))
    assert (list(found.begins), list(found.parents), list(found.depths)) == ([0, 9, 10], [NO_STRETCH, 0], [0, 9])
    assert list(found.lasts) == [1, 1]


def test_where_a_prompt_branches_off_a_stretch_ends() -> None:
    found = Stretches(trace_of([[1, 2, 3, 4], [1, 2, 5, 6, 7], [8]]))
    assert list(found.begins) == [0, 2, 3, 4, 6, 7, 8]
    assert list(found.parents) == [NO_STRETCH, 0, 1, 0, 3, NO_STRETCH]
    assert list(found.lasts) == [2, 4, 5]


def test_nothing_has_no_stretches() -> None:
    found = Stretches(trace_of([[], []]))
    assert (len(found), list(found.begins), list(found.lasts)) == (0, [0], [NO_STRETCH, NO_STRETCH])


@settings(max_examples=200)
@given(st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=12))
def test_the_stretches_up_to_the_last_id_are_the_prompt(prompts: list[list[int]]) -> None:
    trace = trace_of(prompts)
    found = Stretches(trace)
    for ids, last in zip(trace.blocks, found.lasts, strict=True):
        path: list[int] = []
        at = last
        while at != NO_STRETCH:
            assert at < len(found)
            path[:0] = range(found.begins[at], found.begins[at + 1])
            assert len(ids) - len(path) == found.depths[at]
            assert found.parents[at] < at
            at = found.parents[at]
        assert path == list(ids)
        assert last == NO_STRETCH or found.begins[last + 1] - found.begins[last] == 1
