"""One vLLM replica: which requests it computes in each step, which blocks that takes, and what it announces.

Knows the scheduler and the cache of vLLM 0.32.0 (``vllm/v1/core/sched/{scheduler,async_scheduler}.py``,
``vllm/v1/core/kv_cache_manager.py``) for a text model whose layers all have full attention, served first come, first served,
without speculation. Never knows what a token means, how long a step or a load takes or how events travel: sampled tokens come
in as arguments, steps and events go out as values. Between calls a request is waiting (no blocks), waiting for blocks that a
connector brings (it holds them already), or running, and steps are completed in the order in which they were scheduled.

A caller without a pipeline alternates ``schedule()`` and ``complete()``, as vLLM does on CPU. With ``async_scheduling``, vLLM's
default on GPUs, it keeps two steps in flight: it schedules the second before it completes the first.
"""

from collections import Counter, deque
from collections.abc import Callable

from indexer.events import AllBlocksCleared
from simulations.engine_cache import EngineCache
from simulations.engine_live import Blocked, Draft, Live
from simulations.engine_loads import Loads
from simulations.engine_values import EngineConfig, EngineRequest, FinishReason, ScheduledStep, StepResult
from simulations.kv_connector import Connector
from simulations.latency import Workload


class Engine:
    """A replica; mutable, driven step by step."""

    def __init__(self, config: EngineConfig, connector: Connector | None = None) -> None:
        self.config = config
        self.num_preemptions = 0
        self.prefix_cache_queries = (
            0  # tokens looked up at first admissions, and those of them that hit: as vLLM counts
        )
        self.prefix_cache_hits = 0
        self.loaded_tokens = 0  # of prompts, brought by a connector
        self._kept: dict[str, list[int]] = {}
        self._block_size = config.recipe.block_size
        self._cache = EngineCache(config)
        self._loads = Loads(config, self._cache, connector)
        self._live: dict[str, Live] = {}
        self._waiting: deque[Live] = deque()
        self._is_stalled = False
        self._blocked: Blocked | None = None  # looked up at every step, it would take as long as all that is computed
        self._running: list[Live] = []
        self._must_flush = False

    # -- requests ------------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            ValueError: its id is in use, its prompt is empty or leaves no room for a token, or it asks for no token.
        """
        if request.id in self._live:
            raise ValueError(f"id: {request.id!r} is in use")
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {request.max_tokens}")
        live = Live(request, self.config.recipe, self.config.max_model_len)
        if not 0 < live.sequence.num_tokens < self.config.max_model_len:
            raise ValueError(
                f"prompt: {live.sequence.num_tokens} tokens; it must have at least 1 and fewer than max_model_len "
                f"{self.config.max_model_len}"
            )
        self._live[request.id] = live
        self._waiting.append(live)
        self._is_stalled = False

    def abort(self, request_id: str) -> bool:
        """End a request at once; steps in flight deliver nothing for it. Returns whether it was there."""
        live = self._live.get(request_id)
        if live is None:
            return False
        self._leave_queue(live)
        self._release(live)
        return True

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forget the whole cache, and say so with the next step.

        While requests run nothing is done, unless ``reset_running_requests``: then they are preempted first, and computed
        anew. Returns whether the cache was cleared.
        """
        if reset_running_requests:
            # From the back, so that the first comer is at the head of the waiting requests again. They may resume in the
            # next step, so tokens in flight for their old position must not be delivered after that.
            while self._running:
                self._preempt(self._running.pop(), drops_stale=True)
        if not self._cache.pool.reset():
            return False
        self._cache.events.append(AllBlocksCleared())
        return True

    def let_go(self, request_id: str) -> None:
        """The blocks that a request has kept are free; nothing happens if it has kept none."""
        self._cache.pool.free(reversed(self._kept.pop(request_id, [])))
        self._is_stalled = False

    def loaded(self, request_id: str) -> None:
        """What the connector was to load for this request is there; nothing happens if nothing was."""
        if self._loads.end(request_id):
            self._is_stalled = False

    # -- steps ---------------------------------------------------------------------------------------------------------

    def schedule(self) -> ScheduledStep:
        """Decide what the next step computes, and give it its blocks.

        Blocks that the step fills count as cached from here on, before they are computed, and those it takes are evicted from
        here on; both are announced by the next ``complete()``.
        """
        draft = Draft(self.config.max_num_batched_tokens)
        self._schedule_running(draft)
        if not draft.preempted:
            self._schedule_waiting(draft)
        self._must_flush = False
        holds = self._loads.loading or self._loads.given_up or self._kept  # whose end is not ours to bring about
        self._is_stalled = bool(holds) and not draft.scheduled and not draft.preempted
        return self._dispatch(draft)

    def complete(self, step: ScheduledStep, sample: Callable[[str], int]) -> StepResult:
        """Take in the result of the oldest step in flight.

        Args:
            step: what ``schedule()`` returned; each once, in order, empty ones too.
            sample: the new token of the request with this id; asked at most once for each of ``step.sampled``.
        """
        tokens: dict[str, int] = {}
        cached_tokens: dict[str, int] = {}
        finished: dict[str, FinishReason] = {}
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            live = self._live.get(request_id)
            if live is None or self._is_dropped(live, num_tokens) or request_id not in step.sampled:
                continue
            token = tokens[request_id] = sample(request_id)
            if live.is_unreported:
                cached_tokens[request_id] = live.cached_tokens
                live.is_unreported = False
            reason = self._deliver(live, token)
            if reason is not None:
                finished[request_id] = reason
        if not step.is_empty:
            self._is_stalled = False
        events, self._cache.events = self._cache.events, []
        return StepResult(events=events, tokens=tokens, cached_tokens=cached_tokens, finished=finished)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether the engine would take a step by itself.

        A step is also due after the last request has ended, with nothing to compute: it tells the workers. Events that are
        queued while this is false wait for the next request. While nobody can go on before something is loaded or let go, vLLM
        takes empty steps; here it is false then.
        """
        return (bool(self._live) and not self._is_stalled) or self._must_flush

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        return not self._live

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._loads.loading) + len(self._waiting)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that requests use, 0 to 1; blocks that are only cached count as free."""
        return self._cache.pool.usage

    def cached(self) -> Counter[int]:
        """The truth that events should convey: every cached key with its number of physical blocks."""
        return self._cache.pool.cached()

    def queues(self) -> tuple[list[str], list[str], list[int]]:
        """Ids of the running and of the waiting requests, and the free blocks; each in order, next one first."""
        waiting = [*self._loads.loading.values(), *self._waiting]
        return [live.id for live in self._running], [live.id for live in waiting], self._cache.pool.free_queue()

    def check(self) -> None:
        """Verify what must hold between calls.

        Raises:
            AssertionError: it does not hold.
        """
        self._cache.pool.check()
        queued = len(self._running) + len(self._waiting) + len(self._loads.loading)
        assert queued == len(self._live), "a request is in no queue, or in two"
        assert len(self._running) <= self.config.max_num_seqs, "too many requests run"
        assert all(not live.blocks for live in self._waiting), "a waiting request holds blocks"
        if self._waiting and self._is_still_blocked(self._waiting[0]):
            live = self._waiting[0]
            assert not self._cache.has_room(self._cache.find(live), live.sequence.num_tokens), f"{live.id} fits by now"
        holders = [*self._running, *self._loads.loading.values(), *self._loads.given_up.values()]
        held = {block for live in holders for block in live.blocks}
        held.update(block for blocks in self._kept.values() for block in blocks)
        assert len(held) + self._cache.pool.num_free == self._cache.pool.capacity, "a block is neither held nor free"
        for live in self._running:
            assert live.num_computed <= len(live.blocks) * self._block_size, f"{live.id} computed more than it can hold"
            keys = live.sequence.keys[: live.num_cached_blocks]
            assert all(self._cache.pool.holds(block, key) for block, key in zip(live.blocks, keys, strict=False)), (
                f"a block of {live.id} holds another key than its own"
            )

    # -- choosing ------------------------------------------------------------------------------------------------------

    def _schedule_running(self, draft: Draft) -> None:
        index = 0
        while index < len(self._running) and draft.budget > 0:
            live = self._running[index]
            num_tokens = self._num_schedulable(live, draft.budget)
            if num_tokens and not self._grow_or_preempt(live, num_tokens, draft):
                return
            if num_tokens:
                draft.add(live.id, num_tokens)
            index += 1

    def _num_schedulable(self, live: Live, budget: int) -> int:
        # Async: the token in flight is the last one by length, so a further step for this request would be wasted.
        if live.num_placeholders and live.sequence.num_tokens + 1 >= live.limit:
            return 0
        room = self.config.max_model_len - 1 - live.num_computed
        return min(live.num_missing, budget, room)

    def _grow_or_preempt(self, live: Live, num_tokens: int, draft: Draft) -> bool:
        """Give a running request its blocks, at the expense of those that came after it, or preempt it too."""
        needed = self._cache.num_blocks(live.num_computed + num_tokens) - len(live.blocks)
        while needed > self._cache.pool.num_free:
            victim = self._running.pop()
            self._preempt(victim)
            draft.preempted.append(victim.id)
            if victim is live:
                return False
        self._cache.grow(live, needed, live.num_computed + num_tokens)
        return True

    def _has_room(self, draft: Draft) -> bool:
        return draft.budget > 0 and len(self._running) < self.config.max_num_seqs

    def _schedule_waiting(self, draft: Draft) -> None:
        blocked: list[Live] = []
        if not self._schedule_loaded(draft):
            return
        while self._waiting and self._has_room(draft):
            live = self._waiting[0]
            # Async: a token in flight from before the preemption still counts, so resuming must wait until it is there.
            if live.num_stale and not live.drops_stale:
                blocked.append(self._waiting.popleft())
                continue
            if self._is_still_blocked(live):
                break
            hits = self._cache.find(live)
            loadable = self._loads.find(live, len(hits))
            if loadable is None:
                blocked.append(self._waiting.popleft())
                continue
            if loadable:
                if not self._begin_load(live, hits, loadable):
                    break
                draft.loads[live.id] = loadable
                continue
            num_tokens = self._admit(live, hits, draft.budget)
            if not num_tokens:
                break
            draft.add(live.id, num_tokens)
        self._waiting.extendleft(reversed(blocked))

    def _admit(self, live: Live, hits: list[int], budget: int) -> int:
        """Move the head of the waiting requests to the running ones. Returns the tokens to compute, 0 if it does not fit."""
        num_tokens = live.sequence.num_tokens
        num_hit = len(hits) * self._block_size
        if not live.was_preempted:
            live.cached_tokens = num_hit
        num_loaded = 0 if live.was_preempted else max(0, min(live.request.loaded_tokens, num_tokens - 1) - num_hit)
        num_ready = num_hit + num_loaded
        num_new = min(num_tokens - num_ready, budget)
        must_fit = num_tokens if self.config.reserve_full_prompt else num_ready + num_new
        if not self._fits(live, hits, must_fit):
            return 0
        self._cache.pool.reference(hits)
        live.blocks = hits
        live.num_cached_blocks = len(hits)
        live.num_computed = num_ready
        self.loaded_tokens += num_loaded
        self._cache.grow(live, self._cache.num_blocks(num_ready + num_new) - len(hits), num_ready + num_new)
        self._waiting.popleft()
        self._running.append(live)
        live.is_running = True
        self._count_lookup(live, num_hit)
        return num_new

    def _fits(self, live: Live, hits: list[int], must_fit: int) -> bool:
        """Whether there are blocks for so many tokens of the head of the waiting requests, which hits these."""
        if self._cache.has_room(hits, must_fit):
            return True
        if self.config.reserve_full_prompt:  # else it depends on the step, too
            keys = live.sequence.keys
            lacking = keys[len(hits)] if self._cache.reads(live) and len(hits) < self._cache.usable(live) else None
            self._blocked = Blocked(live, self._cache.pool.num_returns, lacking)
        return False

    def _is_still_blocked(self, live: Live) -> bool:
        """Whether nothing has happened since it did not fit by which it could; while others load, it may wait for them."""
        blocked = self._blocked
        return (
            blocked is not None
            and blocked.live is live
            and blocked.returns == self._cache.pool.num_returns
            and not self._loads.is_any_coming
            and (blocked.lacking is None or not self._cache.pool.has(blocked.lacking))
        )

    def _begin_load(self, live: Live, hits: list[int], tokens: int) -> bool:
        """Give the head of the waiting requests the blocks that are loaded for it. Returns whether they fit."""
        num_hit = len(hits) * self._block_size
        if not live.was_preempted:
            live.cached_tokens = num_hit + tokens
        must_fit = live.sequence.num_tokens if self.config.reserve_full_prompt else num_hit + tokens
        if not self._fits(live, hits, must_fit) or not self._loads.begin(live, hits, tokens, self._running):
            return False
        self.loaded_tokens += tokens
        self._waiting.popleft()
        self._count_lookup(live, num_hit)
        return True

    def _schedule_loaded(self, draft: Draft) -> bool:
        """Those whose blocks are there go on before all that wait. Returns whether these may be looked at."""
        for live in list(self._loads.loading.values()):
            if not self._has_room(draft):
                return False
            if live.is_loading:
                continue
            num_tokens = self._resume(live, draft.budget)
            if not num_tokens:
                return False
            draft.add(live.id, num_tokens)
        return True

    def _resume(self, live: Live, budget: int) -> int:
        """What was loaded is cached now, and the request runs. Returns the tokens to compute, 0 if it does not fit."""
        num_tokens = live.sequence.num_tokens
        self._cache.cache_full(live, live.num_computed)
        live.num_computed = min(live.num_computed, num_tokens - 1)  # the last one is always computed, for its logits
        num_new = min(num_tokens - live.num_computed, budget)
        must_fit = num_tokens if self.config.reserve_full_prompt else live.num_computed + num_new
        if self._cache.num_blocks(must_fit) - len(live.blocks) > self._cache.pool.num_free:
            return 0
        ready = live.num_computed + num_new
        self._cache.grow(live, self._cache.num_blocks(ready) - len(live.blocks), ready)
        del self._loads.loading[live.id]
        self._running.append(live)
        live.is_running = True
        return num_new

    def _count_lookup(self, live: Live, num_hit: int) -> None:
        if self._cache.reads(live) and not live.was_preempted:
            self.prefix_cache_queries += live.sequence.num_tokens
            self.prefix_cache_hits += num_hit

    def _dispatch(self, draft: Draft) -> ScheduledStep:
        sampled: list[str] = []
        prefill_tokens = prefill_pairs = decode_requests = decode_context = 0
        for request_id, num_tokens in draft.scheduled.items():
            live = self._live[request_id]
            if num_tokens == 1 and live.num_missing == 1:
                decode_requests += 1
                decode_context += live.num_computed + 1
            else:
                prefill_tokens += num_tokens
                prefill_pairs += num_tokens * live.num_computed + num_tokens * (num_tokens + 1) // 2
            live.num_computed += num_tokens
            live.num_in_flight += num_tokens
            if live.num_missing == 0:
                sampled.append(request_id)
                if self.config.async_scheduling:
                    live.num_placeholders += 1
        return ScheduledStep(
            num_scheduled_tokens=draft.scheduled,
            sampled=frozenset(sampled),
            preempted=tuple(draft.preempted),
            workload=Workload(prefill_tokens, prefill_pairs, decode_requests, decode_context),
            loads=draft.loads,
        )

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _is_dropped(self, live: Live, num_tokens: int) -> bool:
        """Settle the tokens of a completed step; whether its output belongs to a position that was computed anew."""
        live.num_in_flight -= num_tokens
        if not live.num_stale:
            return False
        live.num_stale -= num_tokens
        return live.drops_stale

    def _deliver(self, live: Live, token: int) -> FinishReason | None:
        live.sequence.append(token)
        if self.config.async_scheduling and live.is_running:
            # The step that filled the block was scheduled before its last token was known, so it is cached only now.
            live.num_placeholders -= 1
            self._cache.cache_full(live, live.num_computed - live.num_placeholders)
        reason: FinishReason | None = None
        if token in live.request.stop_token_ids:
            reason = "stop"
        elif live.sequence.num_tokens >= live.limit:
            reason = "length"
        if reason is not None:
            self._leave_queue(live)
            self._release(live, is_done=True)
        return reason

    def _preempt(self, live: Live, *, drops_stale: bool = False) -> None:
        self._cache.free(live)
        live.is_running = False
        live.was_preempted = True
        live.num_computed = 0
        live.num_placeholders = 0
        live.drops_stale = drops_stale or (live.drops_stale and live.num_stale > 0)
        live.num_stale = live.num_in_flight
        self._waiting.appendleft(live)
        self.num_preemptions += 1

    def _leave_queue(self, live: Live) -> None:
        if live.is_running:
            self._running.remove(live)
        elif not self._loads.leave(live):
            self._waiting.remove(live)
        self._is_stalled = False

    def _release(self, live: Live, *, is_done: bool = False) -> None:
        if is_done and live.request.keeps_blocks:
            self._kept[live.id], live.blocks = live.blocks, []
        if not live.is_loading:
            self._cache.free(live)
        del self._live[live.id]
        self._must_flush = True
