from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.traces.trace import NO_PARENT, NO_PAUSE, NO_SESSION, Trace, TraceBuilder, TraceError

prompts = st.lists(st.lists(st.integers(0, 4), max_size=12), max_size=30)


def trace_of(listed: list[list[int]], *, is_chained: bool) -> Trace:
    builder = TraceBuilder("made", 16, is_chained=is_chained)
    for ids in listed:
        builder.add(0.0, max(1, 16 * len(ids)), 1, ids)
    return builder.build()


def path_of(trace: Trace, at: int) -> list[int]:
    found: list[int] = []
    while at != NO_PARENT:
        found.insert(0, at)
        assert trace.parents[at] < at
        at = trace.parents[at]
    return found


@given(prompts, st.booleans())
def test_two_prompts_share_ids_as_far_as_they_begin_alike(listed: list[list[int]], is_chained: bool) -> None:
    trace = trace_of(listed, is_chained=is_chained)
    for prompt, ids in zip(listed, trace.blocks, strict=True):
        assert len(ids) == len(prompt)
        assert path_of(trace, ids[-1] if ids else NO_PARENT) == list(ids)
        for other, others in zip(listed, trace.blocks, strict=True):
            alike = sum(accumulate(map(int.__eq__, prompt, other), bool.__and__))
            assert list(ids[:alike]) == list(others[:alike])
            assert not set(ids[alike:]) & set(others[alike:])
    distinct = {tuple(prompt[:end]) for prompt in listed for end in range(1, len(prompt) + 1)}
    assert len(trace.parents) == len(distinct)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(1, 99)), max_size=40))
def test_requests_are_in_order_of_arrival(requests: list[tuple[float, int]]) -> None:
    builder = TraceBuilder("made", 16, is_chained=True)
    for at, (arrival, length) in enumerate(requests):
        builder.add(arrival, length, at + 1)
    trace = builder.build()
    wanted = sorted(range(len(requests)), key=lambda at: requests[at][0])
    assert [each - 1 for each in trace.outputs] == wanted
    assert list(trace.inputs) == [requests[at][1] for at in wanted]
    assert list(trace.arrivals) == [requests[at][0] - requests[wanted[0]][0] for at in wanted]
    assert builder.is_sorted == (wanted == list(range(len(requests))))


def test_ids_of_any_width() -> None:
    large = [2**63, 2**64 - 1, -1, 2**64 + 5, -(2**63)]
    trace = trace_of([large, large[:2], [2**63, -1, -1]], is_chained=False)
    assert [list(ids) for ids in trace.blocks] == [[0, 1, 2, 3, 4], [0, 1], [0, 1, 2]]


def test_chains_that_are_none_are_seen() -> None:
    builder = TraceBuilder("made", 16, is_chained=True)
    for ids in ([1, 2], [1, 2, 3], [4, 2], [5, 5]):
        builder.add(0, 16 * len(ids), 1, ids)
    assert builder.rechained == 2
    assert [list(ids) for ids in builder.build().blocks] == [[0, 1], [0, 1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("arrival", (float("nan"), 1, 1)),
        ("arrival", (float("inf"), 1, 1)),
        ("input_length", (0, 0, 1)),
        ("input_length", (0, -1, 1)),
        ("input_length", (0, 2**31, 1)),
        ("output_length", (0, 1, -1)),
        ("hash_ids", (0, 33, 1, [1])),
        ("hash_ids", (0, 33, 1, [1, 2, 3, 4])),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(field: str, request_: tuple[float, int, int]) -> None:
    builder = TraceBuilder("made", 16, is_chained=True)
    with pytest.raises(TraceError) as refused:
        builder.add(*request_)
    assert refused.value.field == field
    with pytest.raises(TraceError):
        builder.add(0, 1, 1, pause=-1)
    assert len(builder) == 0
    assert len(builder.build()) == 0


def test_sessions_are_numbered_and_pauses_kept() -> None:
    builder = TraceBuilder("made", 16, is_chained=True)
    builder.add(0, 1, 0, session="a")
    builder.add(1, 1, 1)
    builder.add(2, 1, 1, session="a", pause=2.5)
    trace = builder.build()
    assert list(trace.sessions) == [0, NO_SESSION, 0]
    assert list(trace.pauses) == [NO_PAUSE, NO_PAUSE, 2.5]
    assert list(trace.outputs) == [1, 1, 1]
    assert trace.has_pauses
    assert not trace.has_blocks
