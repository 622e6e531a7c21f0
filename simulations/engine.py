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
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from hashing.recipes import Recipe
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from simulations.block_pool import BlockPool
from simulations.kv_connector import Connector
from simulations.latency import Workload
from simulations.sequences import GROUP, MEDIUM, Prompt

FinishReason: TypeAlias = Literal["stop", "length"]


class EngineConfig(msgspec.Struct, frozen=True):
    """How one replica is set up. The defaults are those of ``vllm serve`` on an accelerator with less than 70 GB.

    Attributes:
        recipe: how it hashes; also gives the block size.
        num_gpu_blocks: physical blocks, the null block included.
        max_num_batched_tokens: tokens that one step may compute.
        max_num_seqs: requests that may run at once.
        max_model_len: longest sequence, prompt and output together, in tokens.
        async_scheduling: a step is scheduled while the one before it is computed (see the head of the file).
        reserve_full_prompt: admit a request only when its whole prompt fits, not just its first chunk
            (``scheduler_reserve_full_isl``).
        has_prefix_caching: look for cached blocks, keep them and announce them.
        announce_tokens: put token ids and extra keys into the events; without them the events keep their order and hashes.
    """

    recipe: Recipe
    num_gpu_blocks: int
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_model_len: int = 8192
    async_scheduling: bool = False
    reserve_full_prompt: bool = True
    has_prefix_caching: bool = True
    announce_tokens: bool = True

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        # vLLM refuses to start otherwise: one request could wait for ever.
        needed = -(-self.max_model_len // self.recipe.block_size) + 1
        if self.num_gpu_blocks < needed:
            raise ValueError(
                f"num_gpu_blocks must be at least {needed} to hold one sequence of max_model_len "
                f"{self.max_model_len} and the null block, got {self.num_gpu_blocks}"
            )


class EngineRequest(msgspec.Struct, frozen=True):
    """What a replica is asked to do.

    Attributes:
        id: unique over the life of the engine (vLLM appends a random suffix to make it so).
        prompt: tokens or keys.
        max_tokens: tokens to generate at most.
        skip_cache: compute the whole prompt although it may be cached; vLLM does so for ``prompt_logprobs``.
        stop_token_ids: tokens that end the request when they are sampled.
        loaded_tokens: so many of the prompt's first tokens need not be computed: a connector has brought them.
        remote_tokens: so many of the prompt's first tokens another engine has computed; a connector brings what is not hit.
        max_load_tokens: tokens behind its own hit that the engine's connector may load at most; None for all that it finds.
        keeps_blocks: when it has ended, its blocks are held until ``let_go`` is called for it.
    """

    id: str
    prompt: Prompt
    max_tokens: int
    skip_cache: bool = False
    stop_token_ids: tuple[int, ...] = ()
    loaded_tokens: int = 0
    remote_tokens: int = 0
    max_load_tokens: int | None = None
    keeps_blocks: bool = False


class ScheduledStep(msgspec.Struct, frozen=True):
    """One step: what is computed for whom.

    Attributes:
        num_scheduled_tokens: request id to number of tokens, in the order in which they were scheduled.
        sampled: ids of the requests that get a token: all but those whose prompt is not finished by this step.
        preempted: ids of the requests that lost their blocks and wait again, first loser first.
        workload: the same in figures, for a latency model.
        loads: request id to the tokens that its connector begins to load with this step; ``Engine.loaded`` is called for each
            when they are there.
    """

    num_scheduled_tokens: dict[str, int]
    sampled: frozenset[str]
    preempted: tuple[str, ...]
    workload: Workload
    loads: dict[str, int] = {}

    @property
    def is_empty(self) -> bool:
        return not self.num_scheduled_tokens


class StepResult(msgspec.Struct, frozen=True):
    """What a completed step brought.

    Attributes:
        events: everything that happened to the cache until now, as one batch; empty means that nothing is published.
        tokens: request id to its new token.
        cached_tokens: for requests with their first token in ``tokens``, how many tokens of the prompt came from the cache:
            what the API reports as ``usage.prompt_tokens_details.cached_tokens``.
        finished: request id to reason, for those that ended with this step.
    """

    events: list[KVEvent]
    tokens: dict[str, int]
    cached_tokens: dict[str, int]
    finished: dict[str, FinishReason]


class _Live:
    """A request from ``add`` to its end; mutable."""

    __slots__ = (
        "blocks",
        "cached_tokens",
        "coming",
        "drops_stale",
        "id",
        "is_loading",
        "is_running",
        "is_unreported",
        "limit",
        "num_cached_blocks",
        "num_computed",
        "num_in_flight",
        "num_placeholders",
        "num_stale",
        "request",
        "sequence",
        "was_preempted",
    )

    def __init__(self, request: EngineRequest, recipe: Recipe, max_model_len: int) -> None:
        self.id = request.id
        self.request = request
        self.sequence = request.prompt.start(recipe, request.id)
        self.limit = min(self.sequence.num_tokens + request.max_tokens, max_model_len)
        self.blocks: list[int] = []
        self.num_cached_blocks = 0  # how many of `blocks` hold their key
        self.num_computed = 0  # tokens whose keys and values exist once all steps in flight are done
        self.num_in_flight = 0  # tokens of scheduled, not yet completed steps
        self.num_placeholders = 0  # async: tokens that are being sampled by steps in flight
        self.num_stale = 0  # in flight when the request was preempted
        self.drops_stale = False
        self.is_running = False
        self.was_preempted = False
        self.cached_tokens = 0
        self.is_loading = False  # something is on its way into its blocks
        self.coming: Sequence[int] = ()  # keys of those that others wait for, too
        self.is_unreported = True

    @property
    def num_missing(self) -> int:
        """Tokens that are known, or will be when the steps in flight are done, and not yet scheduled."""
        return self.sequence.num_tokens + self.num_placeholders - self.num_computed


class _Blocked(NamedTuple):
    """Who does not fit, as long as ``returns`` stays (``BlockPool.num_returns``) and nobody holds the key behind its hit.

    Blocks that are taken by others make no room for it, and what is evicted makes its hit no longer.
    """

    live: _Live
    returns: int
    lacking: int | None


class _Draft:
    """A step while it is being put together; mutable."""

    __slots__ = ("budget", "loads", "preempted", "scheduled")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.scheduled: dict[str, int] = {}
        self.loads: dict[str, int] = {}
        self.preempted: list[str] = []

    def add(self, request_id: str, num_tokens: int) -> None:
        self.scheduled[request_id] = num_tokens
        self.budget -= num_tokens


class Engine:
    """A replica; mutable, driven step by step."""

    def __init__(self, config: EngineConfig, connector: Connector | None = None) -> None:
        self.config = config
        self._connector = connector
        self.num_preemptions = 0
        self.prefix_cache_queries = (
            0  # tokens looked up at first admissions, and those of them that hit: as vLLM counts
        )
        self.prefix_cache_hits = 0
        self.loaded_tokens = 0  # of prompts, brought by a connector
        self._kept: dict[str, list[int]] = {}
        self._block_size = config.recipe.block_size
        self._pool = BlockPool(config.num_gpu_blocks)
        self._live: dict[str, _Live] = {}
        self._waiting: deque[_Live] = deque()
        self._loading: dict[str, _Live] = {}  # those that a connector loads blocks for, or has, until they run
        self._coming: set[int] = set()  # keys of blocks that are being loaded
        self._given_up: dict[str, _Live] = {}  # they have ended, and what is being loaded for them has not come yet
        self._is_stalled = False
        self._blocked: _Blocked | None = None  # looked up at every step, it would take as long as all that is computed
        self._running: list[_Live] = []
        self._events: list[KVEvent] = []
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
        live = _Live(request, self.config.recipe, self.config.max_model_len)
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
        if not self._pool.reset():
            return False
        self._events.append(AllBlocksCleared())
        return True

    def let_go(self, request_id: str) -> None:
        """The blocks that a request has kept are free; nothing happens if it has kept none."""
        self._pool.free(reversed(self._kept.pop(request_id, [])))
        self._is_stalled = False

    def loaded(self, request_id: str) -> None:
        """What the connector was to load for this request is there; nothing happens if nothing was."""
        if (live := self._loading.get(request_id)) is not None:
            self._has_come(live)
        elif (live := self._given_up.pop(request_id, None)) is not None:
            self._has_come(live)
            self._free_blocks(live)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def schedule(self) -> ScheduledStep:
        """Decide what the next step computes, and give it its blocks.

        Blocks that the step fills count as cached from here on, before they are computed, and those it takes are evicted from
        here on; both are announced by the next ``complete()``.
        """
        draft = _Draft(self.config.max_num_batched_tokens)
        self._schedule_running(draft)
        if not draft.preempted:
            self._schedule_waiting(draft)
        self._must_flush = False
        holds = self._loading or self._given_up or self._kept  # whose end is not ours to bring about
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
        events, self._events = self._events, []
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
        return len(self._loading) + len(self._waiting)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that requests use, 0 to 1; blocks that are only cached count as free."""
        return self._pool.usage

    def cached(self) -> Counter[int]:
        """The truth that events should convey: every cached key with its number of physical blocks."""
        return self._pool.cached()

    def queues(self) -> tuple[list[str], list[str], list[int]]:
        """Ids of the running and of the waiting requests, and the free blocks; each in order, next one first."""
        waiting = [*self._loading.values(), *self._waiting]
        return [live.id for live in self._running], [live.id for live in waiting], self._pool.free_queue()

    def check(self) -> None:
        """Verify what must hold between calls.

        Raises:
            AssertionError: it does not hold.
        """
        self._pool.check()
        queued = len(self._running) + len(self._waiting) + len(self._loading)
        assert queued == len(self._live), "a request is in no queue, or in two"
        assert len(self._running) <= self.config.max_num_seqs, "too many requests run"
        assert all(not live.blocks for live in self._waiting), "a waiting request holds blocks"
        if self._waiting and self._is_still_blocked(self._waiting[0]):
            live = self._waiting[0]
            assert not self._has_blocks(self._find_hits(live), live.sequence.num_tokens), f"{live.id} fits by now"
        holders = [*self._running, *self._loading.values(), *self._given_up.values()]
        held = {block for live in holders for block in live.blocks}
        held.update(block for blocks in self._kept.values() for block in blocks)
        assert len(held) + self._pool.num_free == self._pool.capacity, "a block is neither held nor free"
        for live in self._running:
            assert live.num_computed <= len(live.blocks) * self._block_size, f"{live.id} computed more than it can hold"
            keys = live.sequence.keys[: live.num_cached_blocks]
            assert all(self._pool.holds(block, key) for block, key in zip(live.blocks, keys, strict=False)), (
                f"a block of {live.id} holds another key than its own"
            )

    # -- choosing ------------------------------------------------------------------------------------------------------

    def _schedule_running(self, draft: _Draft) -> None:
        index = 0
        while index < len(self._running) and draft.budget > 0:
            live = self._running[index]
            num_tokens = self._num_schedulable(live, draft.budget)
            if num_tokens and not self._grow_or_preempt(live, num_tokens, draft):
                return
            if num_tokens:
                draft.add(live.id, num_tokens)
            index += 1

    def _num_schedulable(self, live: _Live, budget: int) -> int:
        # Async: the token in flight is the last one by length, so a further step for this request would be wasted.
        if live.num_placeholders and live.sequence.num_tokens + 1 >= live.limit:
            return 0
        room = self.config.max_model_len - 1 - live.num_computed
        return min(live.num_missing, budget, room)

    def _grow_or_preempt(self, live: _Live, num_tokens: int, draft: _Draft) -> bool:
        """Give a running request its blocks, at the expense of those that came after it, or preempt it too."""
        needed = self._num_blocks(live.num_computed + num_tokens) - len(live.blocks)
        while needed > self._pool.num_free:
            victim = self._running.pop()
            self._preempt(victim)
            draft.preempted.append(victim.id)
            if victim is live:
                return False
        self._grow(live, needed, live.num_computed + num_tokens)
        return True

    def _has_room(self, draft: _Draft) -> bool:
        return draft.budget > 0 and len(self._running) < self.config.max_num_seqs

    def _schedule_waiting(self, draft: _Draft) -> None:
        blocked: list[_Live] = []
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
            hits = self._find_hits(live)
            loadable = self._find_loads(live, len(hits))
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

    def _admit(self, live: _Live, hits: list[int], budget: int) -> int:
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
        self._pool.reference(hits)
        live.blocks = hits
        live.num_cached_blocks = len(hits)
        live.num_computed = num_ready
        self.loaded_tokens += num_loaded
        self._grow(live, self._num_blocks(num_ready + num_new) - len(hits), num_ready + num_new)
        self._waiting.popleft()
        self._running.append(live)
        live.is_running = True
        self._count_lookup(live, num_hit)
        return num_new

    def _fits(self, live: _Live, hits: list[int], must_fit: int) -> bool:
        """Whether there are blocks for so many tokens of the head of the waiting requests, which hits these."""
        if self._has_blocks(hits, must_fit):
            return True
        if self.config.reserve_full_prompt:  # else it depends on the step, too
            keys = live.sequence.keys
            lacking = keys[len(hits)] if self._reads_cache(live) and len(hits) < self._usable(live) else None
            self._blocked = _Blocked(live, self._pool.num_returns, lacking)
        return False

    def _has_blocks(self, hits: list[int], num_tokens: int) -> bool:
        # A hit on a free block takes it from the free queue, so it costs as much as a new one.
        return self._num_blocks(num_tokens) - len(hits) + self._pool.count_free(hits) <= self._pool.num_free

    def _is_still_blocked(self, live: _Live) -> bool:
        """Whether nothing has happened since it did not fit by which it could; while others load, it may wait for them."""
        blocked = self._blocked
        return (
            blocked is not None
            and blocked.live is live
            and blocked.returns == self._pool.num_returns
            and not self._coming
            and (blocked.lacking is None or not self._pool.has(blocked.lacking))
        )

    def _find_loads(self, live: _Live, num_hits: int) -> int | None:
        """Tokens behind its hit that a connector can load: of another engine, once, all; else full blocks.

        vLLM's NixlConnector and OffloadingConnector count them so. None while some of these blocks are being loaded for
        another request: it waits for them, and hits them then.
        """
        if live.request.remote_tokens and not live.was_preempted:
            return max(0, min(live.request.remote_tokens, live.sequence.num_tokens) - num_hits * self._block_size)
        live.coming = ()
        if self._connector is None or not self._reads_cache(live):
            return 0
        last = live.sequence.num_tokens // self._block_size
        if live.request.max_load_tokens is not None:
            last = min(last, num_hits + live.request.max_load_tokens // self._block_size)
        if last <= num_hits:
            return 0
        found = self._connector.reach(live.sequence.keys, num_hits, last)
        if found and not self._coming.isdisjoint(live.sequence.keys[num_hits : num_hits + found]):
            return None
        live.coming = live.sequence.keys[num_hits : num_hits + found]
        return found * self._block_size

    def _begin_load(self, live: _Live, hits: list[int], tokens: int) -> bool:
        """Give the head of the waiting requests the blocks that are loaded for it. Returns whether they fit.

        It makes no headway while it holds them, and is not preempted: so it must leave enough for those that have begun.
        """
        num_hits, num_tokens = len(hits), live.sequence.num_tokens
        num_ready = num_hits * self._block_size + tokens
        count = self._num_blocks(num_ready) - num_hits
        if not live.was_preempted:
            live.cached_tokens = num_ready
        free = self._pool.num_free - self._pool.count_free(hits)
        must_fit = num_tokens if self.config.reserve_full_prompt else num_ready
        if not self._fits(live, hits, must_fit) or count > free - self._reserved():
            return False
        self._pool.reference(hits)
        blocks, evicted = self._pool.allocate(count)
        self._events.extend(_removed(evicted))
        live.blocks = hits + blocks
        live.num_cached_blocks = num_hits
        live.num_computed = num_ready
        live.is_loading = True
        self._coming.update(live.coming)
        self.loaded_tokens += tokens
        self._waiting.popleft()
        self._loading[live.id] = live
        self._count_lookup(live, num_hits * self._block_size)
        return True

    def _reserved(self) -> int:
        """Blocks that those still need who have begun and have more than their newest token to compute."""
        begun = [*self._loading.values(), *[live for live in self._running if live.num_missing > 1]]
        return sum([self._num_blocks(live.sequence.num_tokens) - len(live.blocks) for live in begun])

    def _has_come(self, live: _Live) -> None:
        self._coming.difference_update(live.coming)
        live.is_loading, live.coming = False, ()
        self._is_stalled = False

    def _schedule_loaded(self, draft: _Draft) -> bool:
        """Those whose blocks are there go on before all that wait. Returns whether these may be looked at."""
        for live in list(self._loading.values()):
            if not self._has_room(draft):
                return False
            if live.is_loading:
                continue
            num_tokens = self._resume(live, draft.budget)
            if not num_tokens:
                return False
            draft.add(live.id, num_tokens)
        return True

    def _resume(self, live: _Live, budget: int) -> int:
        """What was loaded is cached now, and the request runs. Returns the tokens to compute, 0 if it does not fit."""
        num_tokens = live.sequence.num_tokens
        self._cache_full_blocks(live, live.num_computed)
        live.num_computed = min(live.num_computed, num_tokens - 1)  # the last one is always computed, for its logits
        num_new = min(num_tokens - live.num_computed, budget)
        must_fit = num_tokens if self.config.reserve_full_prompt else live.num_computed + num_new
        if self._num_blocks(must_fit) - len(live.blocks) > self._pool.num_free:
            return 0
        ready = live.num_computed + num_new
        self._grow(live, self._num_blocks(ready) - len(live.blocks), ready)
        del self._loading[live.id]
        self._running.append(live)
        live.is_running = True
        return num_new

    def _reads_cache(self, live: _Live) -> bool:
        return self.config.has_prefix_caching and not live.request.skip_cache

    def _find_hits(self, live: _Live) -> list[int]:
        if not self._reads_cache(live):
            return []
        return self._pool.find(live.sequence.keys[: self._usable(live)])

    def _usable(self, live: _Live) -> int:
        """Blocks that can be hit: the last token is always computed, for its logits, and hits end on a block boundary."""
        return (live.sequence.num_tokens - 1) // self._block_size

    def _count_lookup(self, live: _Live, num_hit: int) -> None:
        if self._reads_cache(live) and not live.was_preempted:
            self.prefix_cache_queries += live.sequence.num_tokens
            self.prefix_cache_hits += num_hit

    def _dispatch(self, draft: _Draft) -> ScheduledStep:
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

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _grow(self, live: _Live, num_blocks: int, num_tokens: int) -> None:
        if num_blocks > 0:
            blocks, evicted = self._pool.allocate(num_blocks)
            live.blocks += blocks
            self._events.extend(_removed(evicted))
        self._cache_full_blocks(live, min(num_tokens, live.sequence.num_tokens))

    def _cache_full_blocks(self, live: _Live, num_tokens: int) -> None:
        first, last = live.num_cached_blocks, num_tokens // self._block_size
        if first < last and self.config.has_prefix_caching:
            self._pool.cache(live.blocks[first:last], live.sequence.keys[first:last])
            live.num_cached_blocks = last
            self._events.append(self._stored(live, first, last))

    def _stored(self, live: _Live, first: int, last: int) -> BlockStored:
        return live.sequence.stored(first, last, with_tokens=self.config.announce_tokens)

    def _free_blocks(self, live: _Live) -> None:
        self._pool.free(reversed(live.blocks))
        live.blocks = []
        live.num_cached_blocks = 0

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _is_dropped(self, live: _Live, num_tokens: int) -> bool:
        """Settle the tokens of a completed step; whether its output belongs to a position that was computed anew."""
        live.num_in_flight -= num_tokens
        if not live.num_stale:
            return False
        live.num_stale -= num_tokens
        return live.drops_stale

    def _deliver(self, live: _Live, token: int) -> FinishReason | None:
        live.sequence.append(token)
        if self.config.async_scheduling and live.is_running:
            # The step that filled the block was scheduled before its last token was known, so it is cached only now.
            live.num_placeholders -= 1
            self._cache_full_blocks(live, live.num_computed - live.num_placeholders)
        reason: FinishReason | None = None
        if token in live.request.stop_token_ids:
            reason = "stop"
        elif live.sequence.num_tokens >= live.limit:
            reason = "length"
        if reason is not None:
            self._leave_queue(live)
            self._release(live, is_done=True)
        return reason

    def _preempt(self, live: _Live, *, drops_stale: bool = False) -> None:
        self._free_blocks(live)
        live.is_running = False
        live.was_preempted = True
        live.num_computed = 0
        live.num_placeholders = 0
        live.drops_stale = drops_stale or (live.drops_stale and live.num_stale > 0)
        live.num_stale = live.num_in_flight
        self._waiting.appendleft(live)
        self.num_preemptions += 1

    def _leave_queue(self, live: _Live) -> None:
        if live.is_running:
            self._running.remove(live)
        elif self._loading.pop(live.id, None) is not None:
            if live.is_loading:  # somebody writes into its blocks
                self._given_up[live.id] = live
        else:
            self._waiting.remove(live)
        self._is_stalled = False

    def _release(self, live: _Live, *, is_done: bool = False) -> None:
        if is_done and live.request.keeps_blocks:
            self._kept[live.id], live.blocks = live.blocks, []
        if not live.is_loading:
            self._free_blocks(live)
        del self._live[live.id]
        self._must_flush = True


def _removed(keys: Iterable[int]) -> list[KVEvent]:
    return [BlockRemoved(block_hashes=[key], medium=MEDIUM, group_idx=GROUP) for key in keys]
