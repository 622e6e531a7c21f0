"""``simulations/kv_connector.py``: an engine whose connector loads blocks between steps, as vLLM 0.32's scheduler has it."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashing.chain import Chain
from hashing.recipes import Recipe
from indexer.events import BlockRemoved, BlockStored, KVEvent
from simulations.engine import Engine
from simulations.engine_values import EngineConfig, EngineRequest, ScheduledStep, StepResult
from simulations.sequences import TokenPrompt

SIZE = 4
RECIPE = Recipe(block_size=SIZE)


class Shelf:
    """A connector that can load these blocks."""

    def __init__(self, *prompts: range) -> None:
        self.keys = {key for prompt in prompts for key in keys_of(prompt)}

    def reach(self, keys: Sequence[int], first: int, last: int) -> int:
        found = 0
        while first + found < last and keys[first + found] in self.keys:
            found += 1
        return found


def keys_of(tokens: range) -> list[int]:
    chain = Chain(RECIPE, tokens)
    return chain.keys(len(chain))


def make_engine(shelf: Shelf, num_blocks: int = 40, **options: Any) -> Engine:
    options.setdefault("max_model_len", num_blocks * SIZE)
    return Engine(EngineConfig(recipe=RECIPE, num_gpu_blocks=num_blocks + 1, **options), shelf)


def ask(name: str, tokens: range, max_tokens: int = 1, **options: Any) -> EngineRequest:
    return EngineRequest(name, TokenPrompt(tokens), max_tokens, **options)


def zero(_: str) -> int:
    return 0


def step(engine: Engine) -> tuple[ScheduledStep, StepResult]:
    scheduled = engine.schedule()
    engine.check()
    result = engine.complete(scheduled, zero)
    engine.check()
    return scheduled, result


def stored(events: Sequence[KVEvent]) -> list[int]:
    return [key for event in events if isinstance(event, BlockStored) for key in event.block_hashes]


def test_who_loads_holds_his_blocks_and_is_computed_when_they_are_there() -> None:
    prompt = range(22)
    engine = make_engine(Shelf(range(12)))
    engine.add(ask("a", prompt))
    scheduled, result = step(engine)
    assert (scheduled.loads, scheduled.num_scheduled_tokens) == ({"a": 12}, {})
    assert result.events == [], "blocks are told when they are there"
    assert engine.kv_cache_usage == pytest.approx(3 / 40)
    assert (engine.num_waiting, engine.num_running, engine.has_work) == (1, 0, False)
    engine.loaded("a")
    assert engine.has_work
    scheduled, result = step(engine)
    assert scheduled.num_scheduled_tokens == {"a": 10}
    assert result.cached_tokens == {"a": 12}
    assert stored(result.events) == keys_of(prompt)
    assert engine.loaded_tokens == 12


def test_what_it_holds_itself_is_not_loaded_and_counts_with_what_is() -> None:
    engine = make_engine(Shelf(range(20)))
    engine.add(ask("first", range(9), max_load_tokens=0))
    assert step(engine)[1].cached_tokens == {"first": 0}
    engine.add(ask("second", range(22)))
    assert step(engine)[0].loads == {"second": 12}
    engine.loaded("second")
    assert step(engine)[1].cached_tokens == {"second": 20}
    assert (engine.prefix_cache_hits, engine.loaded_tokens) == (8, 12)


@pytest.mark.parametrize(("most", "loaded"), [(None, 20), (20, 20), (19, 16), (4, 4), (3, 0), (0, 0)])
def test_a_request_loads_no_more_than_it_says_in_whole_blocks(most: int | None, loaded: int) -> None:
    engine = make_engine(Shelf(range(40)))
    engine.add(ask("a", range(22), max_load_tokens=most))
    assert step(engine)[0].loads.get("a", 0) == loaded
    engine.loaded("a")
    assert engine.is_idle or step(engine)[1].cached_tokens == {"a": loaded}


def test_of_a_prompt_that_is_there_to_its_end_the_last_token_is_computed() -> None:
    engine = make_engine(Shelf(range(16)))
    engine.add(ask("a", range(16)))
    assert step(engine)[0].loads == {"a": 16}
    engine.loaded("a")
    scheduled, result = step(engine)
    assert scheduled.num_scheduled_tokens == {"a": 1}
    assert result.cached_tokens == {"a": 16}, "vLLM counts all of it"
    assert stored(result.events) == keys_of(range(16))


def test_others_are_computed_while_one_loads() -> None:
    engine = make_engine(Shelf(range(20)))
    engine.add(ask("loads", range(22)))
    engine.add(ask("computes", range(100, 110), max_tokens=3))
    assert [list(step(engine)[1].tokens) for _ in range(2)] == [["computes"], ["computes"]]
    engine.loaded("loads")
    assert set(step(engine)[1].tokens) == {"computes", "loads"}


def test_who_has_loaded_goes_before_who_waits() -> None:
    engine = make_engine(Shelf(range(20)), max_num_seqs=1)
    engine.add(ask("loads", range(22)))
    engine.add(ask("computes", range(100, 110), max_tokens=2))
    engine.add(ask("waits", range(200, 210)))
    step(engine)
    engine.loaded("loads")
    assert list(step(engine)[1].tokens) == ["computes"], "it runs"
    assert list(step(engine)[1].tokens) == ["loads"]
    assert list(step(engine)[1].tokens) == ["waits"]


def test_blocks_that_are_on_their_way_are_waited_for_and_loaded_once() -> None:
    engine = make_engine(Shelf(range(20)))
    for name in ("a", "b"):
        engine.add(ask(name, range(22)))
    scheduled, _ = step(engine)
    assert scheduled.loads == {"a": 20}
    assert not engine.has_work
    engine.loaded("a")
    scheduled, result = step(engine)
    assert scheduled.loads == {}
    assert result.cached_tokens == {"a": 20, "b": 20}
    assert engine.prefix_cache_hits == 20, "the second one's"


def test_a_load_leaves_room_for_those_that_have_begun() -> None:
    """Of 12 blocks one computes 6 in chunks, having 2: only 6 of the other 10 are nobody's, and a load holds what it takes."""
    engine = make_engine(Shelf(range(100, 128)), num_blocks=12, max_num_batched_tokens=8)
    engine.add(ask("begun", range(24)))
    step(engine)
    engine.add(ask("loads", range(100, 129)))
    scheduled, _ = step(engine)
    assert (scheduled.loads, list(scheduled.num_scheduled_tokens)) == ({}, ["begun"])
    step(engine)
    assert step(engine)[0].loads == {"loads": 28}


def test_a_request_that_ends_while_it_loads_leaves_nothing_behind_when_that_is_done() -> None:
    engine = make_engine(Shelf(range(20)))
    for name in ("a", "b"):
        engine.add(ask(name, range(22)))
    step(engine)
    assert engine.abort("a")
    assert step(engine)[0].loads == {}, "somebody still writes into its blocks"
    assert engine.kv_cache_usage == pytest.approx(5 / 40)
    assert not engine.has_work
    engine.loaded("a")
    assert step(engine)[0].loads == {"b": 20}
    engine.loaded("a")
    assert not engine.has_work, "that was the other one's"
    engine.loaded("b")
    step(engine)
    assert engine.is_idle
    assert engine.kv_cache_usage == 0


def test_what_another_engine_has_computed_is_loaded_to_its_last_token() -> None:
    engine = make_engine(Shelf())
    engine.add(ask("first", range(9)))
    step(engine)
    engine.add(ask("a", range(22), remote_tokens=22))
    assert step(engine)[0].loads == {"a": 14}, "all but what it holds"
    assert engine.kv_cache_usage == pytest.approx(6 / 40)
    engine.loaded("a")
    scheduled, result = step(engine)
    assert scheduled.num_scheduled_tokens == {"a": 1}
    assert stored(result.events) == keys_of(range(20))[2:]


def test_what_another_engine_has_computed_is_loaded_once() -> None:
    """Of 10 blocks the two need 12: the second one is preempted, and computes anew what is no longer kept for it."""
    engine = make_engine(Shelf(), num_blocks=10)
    engine.add(ask("a", range(16), 20))
    engine.add(ask("b", range(100, 116), 8, remote_tokens=16))
    assert step(engine)[0].loads == {"b": 16}
    engine.loaded("b")
    loads, preempted = list[str](), list[str]()
    for _ in range(40):
        scheduled, _ = step(engine)
        loads += scheduled.loads
        preempted += scheduled.preempted
    assert (loads, preempted, engine.is_idle) == ([], ["b"], True)


def test_while_blocks_are_kept_nobody_waits_for_them_in_vain() -> None:
    engine = make_engine(Shelf(), num_blocks=6)
    engine.add(ask("kept", range(20), keeps_blocks=True))
    step(engine)
    engine.add(ask("waits", range(100, 120)))
    step(engine)
    before = engine.has_work
    engine.let_go("kept")
    assert (before, engine.has_work) == (False, True)
    assert list(step(engine)[1].tokens) == ["waits"]


def test_who_skips_the_cache_loads_nothing() -> None:
    engine = make_engine(Shelf(range(20)))
    engine.add(ask("a", range(22), skip_cache=True))
    assert step(engine)[0].num_scheduled_tokens == {"a": 22}


@settings(max_examples=150)
@given(seed=st.integers(0, 10**6), budget=st.sampled_from([3, 7, 100]), reserve=st.booleans(), seqs=st.integers(1, 4))
def test_everybody_is_served_whatever_is_loaded_when(seed: int, budget: int, reserve: bool, seqs: int) -> None:
    dice = Random(seed)
    shelf = Shelf(*[range(100 * at, 100 * at + dice.randrange(20)) for at in range(3)])
    engine = make_engine(
        shelf, num_blocks=8, max_num_batched_tokens=budget, reserve_full_prompt=reserve, max_num_seqs=seqs
    )
    asked, told, copies, loading = dict[str, int](), Counter[str](), Counter[int](), list[str]()
    for turn in range(400):
        if turn < 30 and dice.random() < 0.5:
            first = 100 * dice.randrange(3)
            asked[f"r{turn}"] = dice.randrange(1, 9)
            engine.add(ask(f"r{turn}", range(first, first + dice.randrange(1, 19)), asked[f"r{turn}"]))
        if loading and (dice.random() < 0.3 or not engine.has_work):
            engine.loaded(loading.pop(dice.randrange(len(loading))))
        if not engine.has_work:
            assert loading or engine.is_idle, "somebody waits for nothing"
            continue
        scheduled, result = step(engine)
        loading += scheduled.loads
        told.update(result.tokens.keys())
        for event in result.events:
            if isinstance(event, BlockStored):
                copies.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                copies.subtract(event.block_hashes)
        assert +copies == engine.cached()
    assert told == asked
    assert engine.is_idle
