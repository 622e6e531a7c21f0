from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashing.chain import Chain
from hashing.extras import NO_EXTRAS, Extras, Lora
from hashing.recipes import Recipe
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from simulations.block_pool import BlockPool
from simulations.engine import Engine
from simulations.engine_values import EngineConfig, EngineRequest, ScheduledStep, StepResult
from simulations.latency import Workload
from simulations.sequences import KeyPrompt, TokenPrompt

SIZE = 4
RECIPE = Recipe(block_size=SIZE)


def make_engine(num_blocks: int = 40, **options: Any) -> Engine:
    options.setdefault("max_model_len", num_blocks * SIZE)
    return Engine(EngineConfig(recipe=RECIPE, num_gpu_blocks=num_blocks + 1, **options))


def ask(
    name: str,
    tokens: range,
    max_tokens: int = 1,
    extras: Extras = NO_EXTRAS,
    **options: Any,
) -> EngineRequest:
    return EngineRequest(name, TokenPrompt(tokens, extras), max_tokens, **options)


def keys_of(tokens: range) -> list[int]:
    chain = Chain(RECIPE, tokens)
    return chain.keys(len(chain))


def zero(request_id: str) -> int:
    return 0


def step(engine: Engine, sample: Callable[[str], int] = zero) -> StepResult:
    result = engine.complete(engine.schedule(), sample)
    engine.check()
    return result


def finish(engine: Engine) -> list[StepResult]:
    results: list[StepResult] = []
    while not engine.is_idle:
        assert len(results) < 1000, "requests were never finished"
        results.append(step(engine))
    return results


def serve(engine: Engine, request: EngineRequest) -> StepResult:
    """Run one request to its end; the result of the step with its first token."""
    engine.add(request)
    return next(result for result in finish(engine) if result.cached_tokens)


def gist(events: list[KVEvent]) -> list[tuple[str, list[Any]]]:
    return [
        (type(event).__name__, [] if isinstance(event, AllBlocksCleared) else list(event.block_hashes))
        for event in events
    ]


class Mirror:
    """What an index would hold that applies every event; mutable."""

    def __init__(self) -> None:
        self.copies: Counter[Any] = Counter()

    def apply(self, events: list[KVEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    self.copies.update(event.block_hashes)
                case BlockRemoved():
                    self.copies.subtract(event.block_hashes)
                    assert min(self.copies.values()) >= 0, "a block was removed that was not stored"
                case AllBlocksCleared():
                    self.copies.clear()
        self.copies += Counter()


# -- what is a hit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "cached"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8)])
def test_a_repeat_hits_whole_blocks_and_never_its_last_token(length: int, cached: int) -> None:
    engine = make_engine()
    assert serve(engine, ask("a", range(length))).cached_tokens == {"a": 0}
    assert serve(engine, ask("b", range(length))).cached_tokens == {"b": cached}


def test_a_repeat_of_whole_blocks_stores_its_last_block_again() -> None:
    engine = make_engine()
    serve(engine, ask("a", range(8)))
    first, second = keys_of(range(8))
    again = serve(engine, ask("b", range(8)))
    assert gist(again.events) == [("BlockStored", [second])]
    assert isinstance(again.events[0], BlockStored)
    assert again.events[0].parent_block_hash == first
    assert engine.cached() == Counter({first: 1, second: 2})


def test_equal_prompts_in_one_step_are_stored_once() -> None:
    engine = make_engine()
    for name in ("a", "b", "c"):
        engine.add(ask(name, range(9)))
    result = step(engine)
    assert gist(result.events) == [("BlockStored", keys_of(range(9)))]
    assert result.cached_tokens == {"a": 0, "b": 8, "c": 8}


def test_a_request_that_skips_the_cache_hits_nothing_and_stores_copies() -> None:
    engine = make_engine()
    serve(engine, ask("a", range(9)))
    assert serve(engine, ask("b", range(9), skip_cache=True)).cached_tokens == {"b": 0}
    assert set(engine.cached().values()) == {2}


def test_without_prefix_caching_nothing_is_found_kept_or_announced() -> None:
    engine = make_engine(has_prefix_caching=False)
    serve(engine, ask("a", range(9)))
    again = serve(engine, ask("b", range(9)))
    assert (again.cached_tokens, again.events, engine.cached()) == ({"b": 0}, [], {})
    assert engine.prefix_cache_queries == 0


@pytest.mark.parametrize("extras", [Extras(salt="theirs"), Extras(lora=Lora("ad", "/ad", 1))])
def test_salt_and_adapter_keep_requests_apart(extras: Extras) -> None:
    engine = make_engine()
    serve(engine, ask("a", range(9)))
    assert serve(engine, ask("b", range(9), extras=extras)).cached_tokens == {"b": 0}
    assert serve(engine, ask("c", range(9), extras=extras)).cached_tokens == {"c": 8}


def test_ready_made_keys_hit_where_they_are_equal() -> None:
    engine = make_engine()
    serve(engine, EngineRequest("a", KeyPrompt(13, [1, 2, 3]), max_tokens=1))
    again = serve(engine, EngineRequest("b", KeyPrompt(13, [1, 2, 9]), max_tokens=1))
    assert again.cached_tokens == {"b": 8}
    assert engine.cached() == Counter([1, 2, 3, 9])


def test_lookups_are_counted_at_first_admissions() -> None:
    engine = make_engine()
    serve(engine, ask("a", range(9)))
    serve(engine, ask("b", range(9)))
    serve(engine, ask("c", range(9), skip_cache=True))
    assert (engine.prefix_cache_queries, engine.prefix_cache_hits) == (18, 8)


# -- steps -----------------------------------------------------------------------------------------------------------------


def test_a_long_prompt_is_computed_in_chunks_and_sampled_after_the_last() -> None:
    engine = make_engine(max_num_batched_tokens=6)
    engine.add(ask("a", range(15)))
    engine.add(ask("b", range(100, 104)))
    steps = [engine.schedule()]
    results = [engine.complete(steps[0], zero)]
    while not engine.is_idle:
        steps.append(engine.schedule())
        results.append(engine.complete(steps[-1], zero))
    assert [taken.num_scheduled_tokens for taken in steps] == [{"a": 6}, {"a": 6}, {"a": 3, "b": 3}, {"b": 1}]
    assert [taken.sampled for taken in steps] == [set(), set(), {"a"}, {"b"}]
    stored = [len(keys) for result in results for _, keys in gist(result.events)]
    assert stored == [1, 2, 1]  # the middle chunk fills two blocks, the last fills none of "a", then "b" fills its own
    assert [result.tokens for result in results] == [{}, {}, {"a": 0}, {"b": 0}]


def test_running_requests_are_served_before_waiting_ones() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    engine.add(ask("a", range(4), max_tokens=5))
    step(engine)
    engine.add(ask("b", range(100, 120)))
    assert list(engine.schedule().num_scheduled_tokens.items()) == [("a", 1), ("b", 7)]


def test_no_more_requests_run_than_allowed() -> None:
    engine = make_engine(max_num_seqs=2)
    for name in ("a", "b", "c"):
        engine.add(ask(name, range(4), max_tokens=3))
    step(engine)
    assert (engine.num_running, engine.num_waiting) == (2, 1)


def test_the_workload_tells_prefill_from_decode() -> None:
    engine = make_engine()
    engine.add(ask("a", range(9), max_tokens=3))
    assert engine.schedule().workload == Workload(prefill_tokens=9, prefill_pairs=45)
    engine = make_engine()
    serve(engine, ask("a", range(9)))
    engine.add(ask("b", range(9), max_tokens=3))
    engine.add(ask("c", range(12), max_tokens=3))
    # "b" needs its last token only, which costs what a decode costs; "c" computes 4 tokens on top of 8
    assert engine.schedule().workload == Workload(4, 4 * 8 + 10, decode_requests=1, decode_context=9)


def test_generated_tokens_fill_blocks_that_the_next_turn_hits() -> None:
    engine = make_engine()
    engine.add(ask("a", range(6), max_tokens=7))
    answers = iter(range(6, 13))
    while not engine.is_idle:
        step(engine, lambda name: next(answers))
    assert serve(engine, ask("b", range(20))).cached_tokens == {"b": 12}


def test_the_last_generated_token_is_never_computed_so_its_block_is_not_cached() -> None:
    engine = make_engine()
    engine.add(ask("a", range(6), max_tokens=2))
    finish(engine)
    assert engine.cached() == Counter(keys_of(range(4)))


@pytest.mark.parametrize(("stop", "reason", "length"), [((), "length", 4), ((3,), "stop", 3)])
def test_a_request_ends_by_length_or_by_a_stop_token(stop: tuple[int, ...], reason: str, length: int) -> None:
    engine = make_engine()
    engine.add(ask("a", range(6), max_tokens=4, stop_token_ids=stop))
    answers = iter((1, 2, 3, 4))
    results = []
    while not engine.is_idle:
        results.append(step(engine, lambda name: next(answers)))
    assert len(results) == length
    assert results[-1].finished == {"a": reason}


def test_no_sequence_grows_beyond_max_model_len() -> None:
    engine = make_engine(max_model_len=10)
    engine.add(ask("a", range(7), max_tokens=100))
    assert sum(len(result.tokens) for result in finish(engine)) == 3


# -- eviction and preemption -----------------------------------------------------------------------------------------------


def test_the_least_recently_used_sequence_loses_its_tail_first_and_removals_come_before_stores() -> None:
    engine = make_engine(num_blocks=9)
    for name, start in (("a", 0), ("b", 100), ("c", 200)):  # two full blocks each, and a third that is not full
        serve(engine, ask(name, range(start, start + 9)))
    serve(engine, ask("a2", range(9)))  # touches "a"
    evicting = serve(engine, ask("d", range(300, 318)))  # needs 5 blocks; 3 are empty
    b_first, b_second = keys_of(range(100, 108))
    assert gist(evicting.events) == [
        ("BlockRemoved", [b_second]),
        ("BlockRemoved", [b_first]),
        ("BlockStored", keys_of(range(300, 316))),
    ]
    assert serve(engine, ask("a3", range(9))).cached_tokens == {"a3": 8}


def test_who_came_last_is_preempted_and_finds_its_blocks_again() -> None:
    engine = make_engine(num_blocks=5)
    engine.add(ask("a", range(7), max_tokens=8))
    engine.add(ask("b", range(100, 108), max_tokens=3))
    step(engine)  # a: 2 blocks, b: 2 blocks
    step(engine)  # a fills its second block, b takes the fifth
    lost = engine.schedule()
    assert lost.preempted == ("b",)
    assert list(lost.num_scheduled_tokens) == ["a"]
    engine.complete(lost, zero)
    assert engine.queues()[:2] == (["a"], ["b"])
    assert engine.num_preemptions == 1
    results = finish(engine)
    assert all(result.cached_tokens == {} for result in results), "cached tokens were reported twice"
    assert sum("b" in result.tokens for result in results) == 1


def test_a_preempted_request_goes_before_those_that_wait() -> None:
    engine = make_engine(num_blocks=5)
    engine.add(ask("a", range(7), max_tokens=8))
    engine.add(ask("b", range(100, 108), max_tokens=3))
    step(engine)
    engine.add(ask("c", range(200, 204)))
    step(engine)
    step(engine)
    assert engine.queues()[1] == ["b", "c"]


def test_a_request_that_does_not_fit_holds_up_those_behind_it() -> None:
    engine = make_engine(num_blocks=5)
    engine.add(ask("a", range(12), max_tokens=4))
    engine.add(ask("b", range(100, 112)))
    engine.add(ask("c", range(200, 204)))
    step(engine)
    assert engine.queues()[:2] == (["a"], ["b", "c"])


def test_who_does_not_fit_is_looked_up_again_only_when_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 tokens are 4 of 5 blocks: while somebody else answers in two of them, its 3 blocks that are cached help nobody."""
    looked_up: list[int] = []
    find = BlockPool.find

    def noted(self: BlockPool, keys: Iterable[int]) -> list[int]:
        found = find(self, keys)
        looked_up.append(len(found))
        return found

    engine = make_engine(num_blocks=5)
    serve(engine, ask("before", range(13)))
    engine.add(ask("a", range(100, 104), max_tokens=5))
    step(engine)
    engine.add(ask("b", range(16)))
    monkeypatch.setattr(BlockPool, "find", noted)
    while "a" in engine.queues()[0]:
        engine.complete(engine.schedule(), zero)
    assert looked_up == [3], "once, in four steps"
    engine.complete(engine.schedule(), zero)
    assert looked_up[1:] == [3]


def test_who_does_not_fit_comes_as_soon_as_another_computes_what_it_lacks() -> None:
    """15 tokens are 4 blocks of 4: one that answers has the first of them, half full, and then full."""
    engine = make_engine(num_blocks=4)
    engine.add(EngineRequest("a", KeyPrompt(3, [1]), 3))
    engine.add(EngineRequest("b", KeyPrompt(15, [1, 2, 3]), 1))
    step(engine)
    assert engine.queues()[:2] == (["a"], ["b"])
    step(engine)
    assert engine.queues()[:2] == (["a"], [])
    assert not engine.num_waiting


@pytest.mark.parametrize(("reserve", "running"), [(True, 1), (False, 2)])
def test_a_prompt_is_admitted_when_all_of_it_fits_or_only_its_first_chunk(reserve: bool, running: int) -> None:
    engine = make_engine(num_blocks=5, max_num_batched_tokens=8, reserve_full_prompt=reserve)
    engine.add(ask("a", range(4), max_tokens=2))
    engine.add(ask("b", range(100, 118)))
    step(engine)
    assert engine.num_running == running


def preempt_in_prefill(**options: Any) -> Engine:
    """An engine that has just taken its two blocks from "b", which had computed 8 tokens of its prompt of 18."""
    engine = make_engine(num_blocks=5, max_num_batched_tokens=8, reserve_full_prompt=False)
    engine.add(ask("a", range(7), max_tokens=4))
    engine.add(ask("b", range(100, 118), **options))
    step(engine)
    step(engine)
    assert engine.schedule().preempted == ("b",)
    return engine


def test_nothing_is_admitted_in_a_step_that_preempts() -> None:
    # "b" skips the cache and has two blocks to itself: its first chunk would fit at once.
    assert preempt_in_prefill(skip_cache=True).queues()[:2] == (["a"], ["b"])


def test_cached_tokens_are_those_of_the_first_admission() -> None:
    engine = preempt_in_prefill()
    engine.abort("a")
    resumed = engine.schedule()
    assert resumed.num_scheduled_tokens == {"b": 8}  # on top of the 8 that it finds again
    assert engine.complete(resumed, zero).cached_tokens == {}
    assert step(engine).cached_tokens == {"b": 0}


# -- control ---------------------------------------------------------------------------------------------------------------


def test_an_aborted_request_delivers_nothing_and_leaves_its_blocks_cached() -> None:
    engine = make_engine()
    engine.add(ask("a", range(9), max_tokens=5))
    taken = engine.schedule()
    assert engine.abort("a")
    assert not engine.abort("a")
    result = engine.complete(taken, zero)
    assert (result.tokens, result.finished) == ({}, {})
    assert gist(result.events) == [("BlockStored", keys_of(range(9)))]
    assert engine.is_idle
    assert engine.kv_cache_usage == 0.0


def test_a_waiting_request_can_be_aborted() -> None:
    engine = make_engine(max_num_seqs=1)
    engine.add(ask("a", range(9), max_tokens=5))
    engine.add(ask("b", range(9), max_tokens=5))
    step(engine)
    assert engine.abort("b")
    assert engine.queues()[:2] == (["a"], [])


def test_a_reset_while_idle_is_announced_by_the_next_step_only() -> None:
    engine = make_engine()
    serve(engine, ask("a", range(9)))
    step(engine)
    assert engine.reset_prefix_cache()
    assert engine.reset_prefix_cache()
    assert not engine.has_work
    assert engine.cached() == Counter()
    assert gist(serve(engine, ask("b", range(9))).events) == [
        ("AllBlocksCleared", []),
        ("AllBlocksCleared", []),
        ("BlockStored", keys_of(range(9))),
    ]


def test_a_reset_is_refused_while_requests_run() -> None:
    engine = make_engine()
    engine.add(ask("a", range(9), max_tokens=5))
    step(engine)
    assert not engine.reset_prefix_cache()
    assert engine.cached() == Counter(keys_of(range(9)))
    assert step(engine).events == []


def test_a_reset_of_running_requests_computes_them_anew_and_keeps_their_order() -> None:
    engine = make_engine()
    engine.add(ask("a", range(9), max_tokens=5))
    engine.add(ask("b", range(100, 109), max_tokens=5))
    step(engine)
    assert engine.reset_prefix_cache(reset_running_requests=True)
    result = step(engine)
    assert gist(result.events) == [
        ("AllBlocksCleared", []),
        ("BlockStored", keys_of(range(9))),
        ("BlockStored", keys_of(range(100, 109))),
    ]
    assert list(result.tokens) == ["a", "b"]
    assert result.cached_tokens == {}


def test_one_empty_step_is_due_after_the_last_request() -> None:
    engine = make_engine()
    has_work = [engine.has_work]
    serve(engine, ask("a", range(9)))
    has_work.append(engine.has_work)
    taken = engine.schedule()
    assert taken.is_empty
    assert taken.workload.is_empty
    assert engine.complete(taken, zero).events == []
    has_work.append(engine.has_work)
    assert has_work == [False, True, False]


# -- two steps in flight ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_async", "cached"), [(False, 2), (True, 1)])
def test_async_a_block_filled_by_a_generated_token_is_cached_when_its_step_is_done(is_async: bool, cached: int) -> None:
    engine = make_engine(async_scheduling=is_async)
    engine.add(ask("a", range(7), max_tokens=5))
    first = engine.schedule()
    if is_async:  # the second step is scheduled before the token that it computes is known
        second = engine.schedule()
        engine.complete(first, zero)
    else:
        engine.complete(first, zero)
        second = engine.schedule()
    assert len(engine.cached()) == cached
    assert len(gist(engine.complete(second, zero).events)) == 1
    assert len(engine.cached()) == 2


def test_async_no_step_is_wasted_on_a_token_beyond_the_last() -> None:
    engine = make_engine(async_scheduling=True)
    engine.add(ask("a", range(7), max_tokens=2))
    steps = [engine.schedule(), engine.schedule()]
    assert not steps[1].is_empty
    engine.complete(steps[0], zero)
    assert engine.schedule().is_empty
    assert engine.complete(steps[1], zero).finished == {"a": "length"}


def test_async_a_step_in_flight_for_a_stopped_request_delivers_nothing() -> None:
    engine = make_engine(async_scheduling=True)
    engine.add(ask("a", range(7), max_tokens=9, stop_token_ids=(5,)))
    first, second = engine.schedule(), engine.schedule()
    assert engine.complete(first, lambda name: 5).finished == {"a": "stop"}
    assert engine.complete(second, zero).tokens == {}


def test_async_a_reset_drops_tokens_in_flight_and_samples_them_again() -> None:
    engine = make_engine(async_scheduling=True)
    engine.add(ask("a", range(7), max_tokens=9))
    first = engine.schedule()
    engine.reset_prefix_cache(reset_running_requests=True)
    second = engine.schedule()
    assert second.num_scheduled_tokens == {"a": 7}
    assert engine.complete(first, zero).tokens == {}
    assert engine.complete(second, lambda name: 8).tokens == {"a": 8}


def test_async_a_preempted_request_gets_its_token_in_flight_before_it_resumes() -> None:
    engine = make_engine(num_blocks=4, async_scheduling=True)
    engine.add(ask("a", range(8), max_tokens=4))
    engine.add(ask("b", range(100, 108), max_tokens=4))
    first = engine.schedule()
    assert engine.schedule().preempted == ("b",)
    engine.abort("a")
    assert engine.schedule().is_empty
    assert engine.complete(first, lambda name: 7).tokens == {"b": 7}
    assert engine.schedule().num_scheduled_tokens == {"b": 5}  # "a" took its second block


def test_async_requests_that_cannot_resume_yet_keep_their_order() -> None:
    engine = make_engine(num_blocks=5, async_scheduling=True)
    for name, length in (("a", 8), ("b", 8), ("c", 4)):
        start = 100 * ord(name)
        engine.add(ask(name, range(start, start + length), max_tokens=4))
    engine.schedule()
    assert engine.schedule().preempted == ("c", "b")
    engine.schedule()
    assert engine.queues()[1] == ["b", "c"]


def test_three_in_flight_no_step_goes_beyond_max_model_len() -> None:
    engine = make_engine(max_model_len=10, async_scheduling=True)
    engine.add(ask("a", range(7), max_tokens=100))
    assert [list(engine.schedule().num_scheduled_tokens.values()) for _ in range(4)] == [[7], [1], [1], []]


def test_three_in_flight_tokens_dropped_by_a_reset_stay_dropped_when_preempted_after_it() -> None:
    engine = make_engine(num_blocks=4, async_scheduling=True)
    engine.add(ask("a", range(7), max_tokens=4))
    engine.add(ask("b", range(100, 108), max_tokens=4))
    first = engine.schedule()
    engine.reset_prefix_cache(reset_running_requests=True)
    second, third = engine.schedule(), engine.schedule()
    assert third.preempted == ("b",)
    assert engine.complete(first, zero).tokens == {}
    assert engine.complete(second, zero).tokens == {"a": 0}


# -- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ask("a", range(3)), "id: 'a' is in use"),
        (ask("b", range(0)), "at least 1"),
        (ask("b", range(160)), "fewer than max_model_len 160"),
        (ask("b", range(3), max_tokens=0), "max_tokens must be at least 1"),
    ],
)
def test_requests_that_could_never_be_served_are_refused(request_: EngineRequest, words: str) -> None:
    engine = make_engine()
    engine.add(ask("a", range(3)))
    with pytest.raises(ValueError, match=words):
        engine.add(request_)
    assert (engine.num_waiting, len(finish(engine))) == (1, 1)


@pytest.mark.parametrize("field", ["max_num_batched_tokens", "max_num_seqs", "max_model_len"])
def test_limits_below_one_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least 1"):
        make_engine(**{field: 0})


def test_a_pool_too_small_for_one_sequence_is_refused() -> None:
    assert make_engine(num_blocks=5, max_model_len=20).is_idle
    with pytest.raises(ValueError, match="num_gpu_blocks must be at least 7"):
        make_engine(num_blocks=5, max_model_len=21)


# -- any order of things ---------------------------------------------------------------------------------------------------

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.integers(1, 18), st.integers(1, 9)),
        st.tuples(st.sampled_from(["schedule", "schedule", "complete"])),
        st.tuples(st.just("abort"), st.integers(0, 12)),
        st.tuples(st.just("reset"), st.booleans()),
    ),
    max_size=60,
)


class Driver:
    """Applies operations to an engine, and its events to a mirror; mutable."""

    def __init__(self, engine: Engine, max_in_flight: int) -> None:
        self.engine = engine
        self.mirror = Mirror()
        self.steps: deque[ScheduledStep] = deque()
        self.generated: Counter[str] = Counter()
        self.finished: dict[str, str] = {}
        self.events: list[KVEvent] = []
        self.asked: dict[str, int] = {}
        self._num_added = 0
        self._max_in_flight = max_in_flight

    def apply(self, operation: tuple[Any, ...]) -> None:
        match operation:
            case ("add", document, length, max_tokens):
                name = f"r{self._num_added}"
                self._num_added += 1
                tokens = range(100 * document, 100 * document + length)
                self.asked[name] = max_tokens
                self.engine.add(ask(name, tokens, max_tokens))
            case ("abort", index):
                if self.engine.abort(f"r{index}"):
                    del self.asked[f"r{index}"]
            case ("reset", running):
                self.engine.reset_prefix_cache(reset_running_requests=running)
            case ("schedule",) if len(self.steps) < self._max_in_flight:
                self.steps.append(self.engine.schedule())
            case _:
                self.complete()
        self.engine.check()

    def complete(self) -> None:
        if not self.steps:
            return
        result = self.engine.complete(self.steps.popleft(), zero)
        self.mirror.apply(result.events)
        assert self.mirror.copies == self.engine.cached()
        assert not set(result.tokens) & set(self.finished)
        assert set(result.cached_tokens) == {name for name in result.tokens if not self.generated[name]}
        self.generated.update(result.tokens.keys())
        self.finished.update(result.finished)
        self.events += result.events

    def finish(self) -> None:
        for _ in range(2000):
            if self.engine.is_idle:
                break
            self.apply(("schedule",))
            self.complete()
        assert self.engine.is_idle, "requests were never finished"
        while self.steps:
            self.complete()


@settings(max_examples=150)
@given(OPERATIONS, st.booleans(), st.booleans(), st.sampled_from([3, 7, 100]))
def test_events_always_add_up_to_the_cache_and_every_request_gets_its_tokens(
    operations: list[tuple[Any, ...]], is_async: bool, reserve: bool, budget: int
) -> None:
    engine = make_engine(
        num_blocks=8,
        max_num_seqs=4,
        async_scheduling=is_async,
        reserve_full_prompt=reserve,
        max_num_batched_tokens=budget,
    )
    driver = Driver(engine, max_in_flight=2 if is_async else 1)
    for operation in operations:
        driver.apply(operation)
    driver.finish()
    assert {name: driver.generated[name] for name in driver.asked} == driver.asked
    assert set(driver.finished) == set(driver.asked)
    assert engine.kv_cache_usage == 0.0


@settings(max_examples=50)
@given(OPERATIONS)
def test_leaving_tokens_out_of_events_changes_nothing_else(operations: list[tuple[Any, ...]]) -> None:
    drivers = [Driver(make_engine(num_blocks=8, announce_tokens=flag), max_in_flight=1) for flag in (True, False)]
    for driver in drivers:
        for operation in operations:
            driver.apply(operation)
        driver.finish()
    assert gist(drivers[0].events) == gist(drivers[1].events)
    assert all(event.tokens() == [] for event in drivers[1].events if isinstance(event, BlockStored))
