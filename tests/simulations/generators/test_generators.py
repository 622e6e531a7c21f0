from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.errors import ConfigError
from simulations.generators.agents import Agents
from simulations.generators.base import Text, Workshop, generators
from simulations.generators.chat import Chat, Diurnal
from simulations.generators.single import BestOf, Rag, Rollouts, SharedPrompts
from simulations.traces.trace import NO_PAUSE, NO_SESSION, Trace
from tests.support.traces import check_chained, hit

ALL = ["agents", "best_of", "chat", "diurnal", "rag", "rollouts", "shared_prompts"]
SHORT: dict[str, dict[str, Any]] = {"diurnal": {"seconds": 600.0}, "rollouts": {"seconds": 100.0}}


def full(trace: Trace, at: int) -> list[int]:
    return list(trace.blocks[at][: trace.inputs[at] // trace.block_size])


def by_session(trace: Trace) -> dict[int, list[int]]:
    found = defaultdict(list)
    for at, session in enumerate(trace.sessions):
        found[session].append(at)
    return found


def test_all_are_known_by_name() -> None:
    assert generators.names() == ALL


@pytest.mark.parametrize("name", ALL)
def test_the_same_seed_gives_the_same_trace(name: str) -> None:
    generator = generators.make(name, SHORT.get(name, {}))
    first = generator.generate(3)
    assert first == generator.generate(3)
    assert first != generator.generate(4)
    assert first.name == name
    assert all(before <= after for before, after in pairwise(first.arrivals))
    assert all(
        len(ids) == -(-length // first.block_size) for ids, length in zip(first.blocks, first.inputs, strict=True)
    )
    check_chained(first)


@pytest.mark.parametrize("generator", [Chat(), Diurnal(seconds=600), Agents()])
def test_each_turn_begins_with_all_that_was_said(generator: Chat | Agents) -> None:
    trace = generator.generate(1)
    turns = 0
    for places in by_session(trace).values():
        assert trace.pauses[places[0]] == NO_PAUSE
        for before, after in pairwise(places):
            turns += 1
            said = trace.inputs[before] + trace.outputs[before]
            assert trace.inputs[after] > said
            assert full(trace, after)[: trace.inputs[before] // 16] == full(trace, before)
            assert trace.pauses[after] >= 0
            waited = trace.arrivals[after] - trace.arrivals[before]
            assert waited == pytest.approx(trace.outputs[before] * 0.02 + trace.pauses[after])
    assert turns > 100


def test_settings_are_what_comes_out() -> None:
    trace = Chat(rate=2, seconds=2000, turns=3, spread=0, systems=1).generate(5)
    sessions = by_session(trace)
    assert len(sessions) == pytest.approx(4000, rel=0.1)
    assert len(trace) / len(sessions) == pytest.approx(3, rel=0.05)
    assert set(trace.outputs) == {200}
    assert {trace.inputs[places[0]] for places in sessions.values()} == {460}
    assert {tuple(trace.blocks[places[0]][:25]) for places in sessions.values()} == {tuple(range(25))}


def test_a_day_has_a_noon_and_a_night() -> None:
    trace = Diurnal(seconds=4000, day=4000, swing=0.9, rate=2, turns=1).generate(1)
    quarters = Counter(int(arrival // 1000) for arrival in trace.arrivals)
    assert quarters[0] + quarters[1] > 3 * (quarters[2] + quarters[3])
    assert len(trace) == pytest.approx(8000, rel=0.05)


def test_documents_are_shared_in_their_order() -> None:
    trace = Rag(documents=3, found=2, spread=0, seconds=300, question_tokens=8).generate(1)
    pairs = {tuple(full(trace, at)[: 2300 // 16]) for at in range(len(trace))}
    assert len(pairs) == 6
    assert hit(trace) > 0.9
    assert hit(Rag(documents=5000, seconds=100).generate(1)) < 0.5
    assert len(Rag(documents=1, found=3, seconds=30).generate(1)) > 0


def test_shared_prompts_are_popular_by_rank() -> None:
    trace = SharedPrompts(prompts=4, seconds=2000, spread=0).generate(2)
    uses = [count for _, count in Counter(ids[0] for ids in trace.blocks).most_common()]
    assert [round(uses[0] / each) for each in uses] == [1, 2, 3, 4]


def test_samples_come_at_once_and_are_the_same() -> None:
    trace = BestOf(samples=5, seconds=60).generate(1)
    for at in range(0, len(trace), 5):
        assert len({tuple(ids) for ids in trace.blocks[at : at + 5]}) == 1
        assert len(set(trace.arrivals[at : at + 5])) == 1
    assert set(trace.sessions) == {NO_SESSION}


def test_rollouts_come_in_steps_through_the_whole_set() -> None:
    trace = Rollouts(prompts=8, batch=4, group=3, seconds=50, training=10, spread=0).generate(1)
    steps = sorted(set(trace.arrivals))
    assert [after - before for before, after in pairwise(steps)] == pytest.approx([30] * (len(steps) - 1))
    assert set(Counter(trace.arrivals).values()) == {12}
    assert len({tuple(ids) for ids in trace.blocks[:24]}) == 8


def test_agents_hand_work_on() -> None:
    alone, shared = (Agents(sub_share=share, seconds=3000, spread=0).generate(1) for share in (0, 0.5))
    assert len(by_session(shared)) > 2 * len(by_session(alone))
    assert max(shared.pauses) > 10 > max(alone.pauses)


@pytest.mark.parametrize("name", ALL)
def test_settings_that_cannot_be_are_told(name: str) -> None:
    for field in msgspec.structs.fields(type(generators.make(name, {}))):  # type: ignore[arg-type]
        for value in (-1, float("nan")):
            with pytest.raises(ConfigError, match=f"generator.*{field.name}"):
                generators.make(name, {field.name: value})
    with pytest.raises(ConfigError, match="has no such setting"):
        generators.make(name, {"nosuch": 1})
    with pytest.raises(ConfigError, match=r"rate.*lower one"):
        generators.make(name, {"rate": 1e6, "seconds": 1e6})


def test_no_request_is_told() -> None:
    with pytest.raises(ConfigError, match="seconds"):
        Chat(rate=0.001, seconds=0.001).generate(1)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=8),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=8),
)
def test_texts_are_the_same_as_far_as_they_were_made_alike(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    blank = Workshop("x", Chat(), 0).blank

    def made(parts: list[tuple[int, int]]) -> Text:
        text = blank
        for tokens, key in parts:
            text = text.then(tokens, (tokens, key))
        return text

    first, second = made(one), made(other)
    alike = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        alike += mine[0]
    same = sum(1 for mine, theirs in zip(first.ids(), second.ids(), strict=False) if mine == theirs)
    if one == other:
        assert first.ids() == second.ids()
    else:
        assert alike // 16 <= same <= -(-alike // 16)
    assert len(first.ids()) == -(-first.tokens // 16)
