from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
import pytest

from simulations.traces.sessions import WIDE_FAN, WIDE_USES, derived_sessions, wide_blocks
from simulations.traces.trace import NO_SESSION, Trace, TraceBuilder


def trace_of(prompts: Sequence[Sequence[int]], sessions: Sequence[int | None] = ()) -> Trace:
    builder = TraceBuilder("made", 16, is_chained=True)
    for at, ids in enumerate(prompts):
        builder.add(at, max(1, 16 * len(ids)), 1, ids, session=sessions[at] if sessions else None)
    return builder.build()


def test_a_conversation_goes_on_from_its_own_first_block() -> None:
    assert list(derived_sessions(trace_of([[1], [5], [1, 2], [5, 6], [1, 2, 3], [1, 9]]))) == [0, 1, 0, 1, 0, 0]


def test_a_system_prompt_makes_no_conversation() -> None:
    users = WIDE_USES + 1
    first = [[1, 2, 100 + user] for user in range(users)]
    second = [[1, 2, 100 + user, 1000 + user] for user in range(users)]
    trace = trace_of(first + second)
    assert list(derived_sessions(trace)) == [*range(users), *range(users)]
    assert sum(wide_blocks(trace)) == 2


def test_a_long_conversation_in_a_small_trace_is_one() -> None:
    assert set(derived_sessions(trace_of([list(range(1, turn + 2)) for turn in range(WIDE_USES)]))) == {0}


def test_what_branches_widely_is_shared_however_rare_it_is() -> None:
    alone = [[number] for number in range(10_000, 10_000 + 60 * WIDE_FAN)]
    document = [[1, 2, 100 + question] for question in range(WIDE_FAN)]
    assert len(set(derived_sessions(trace_of(alone + document)))) == len(alone) + WIDE_FAN
    assert sum(wide_blocks(trace_of(alone + document))) == 2  # what comes before it, too
    assert len(set(derived_sessions(trace_of(alone + document[1:])))) == len(alone) + 1


def test_prompts_without_blocks_of_their_own_are_alone() -> None:
    trace = trace_of([[], [], *([[1]] * (WIDE_USES + 1))])
    assert list(derived_sessions(trace)) == list(range(len(trace)))


def test_what_the_trace_says_is_kept() -> None:
    assert list(derived_sessions(trace_of([[1], [1, 2], [1, 3], [7], [1, 4]], [4, 4, None, 8, None]))) == [
        0,
        0,
        1,
        2,
        1,
    ]


def test_nothing_has_no_conversations() -> None:
    assert list(derived_sessions(trace_of([]))) == []


@pytest.mark.parametrize(
    ("name", "count", "singles", "most"),
    [("mooncake_conversation", 7373, 0.425, 43), ("toolagent_like", 20227, 0.785, 34)],
)
def test_golden(golden_trace: Callable[[str], Trace], name: str, count: int, singles: float, most: int) -> None:
    trace = golden_trace(name)
    turns = Counter(derived_sessions(trace))
    assert len(turns) == count
    assert sum(each == 1 for each in turns.values()) / len(trace) == pytest.approx(singles, abs=5e-4)
    assert max(turns.values()) == most


def test_derived_ones_are_nearly_those_that_the_agents_had(golden_trace: Callable[[str], Trace]) -> None:
    trace = golden_trace("agentic_a")
    unsaid = msgspec.structs.replace(trace, sessions=array("q", [NO_SESSION] * len(trace)))
    found = derived_sessions(unsaid)
    last: dict[int, int] = {}
    same = Counter[bool]()
    for at, session in enumerate(trace.sessions):  # does the next turn of a session find itself in the same one?
        if session in last:
            same[found[last[session]] == found[at]] += 1
        last[session] = at
    assert same[True] / same.total() > 0.95
    assert all(a <= b for a, b in pairwise(trace.arrivals))
