"""One data-parallel rank in real time: its engine is stepped by a task, its tokens go to whoever waits for them.

Knows the clock, through the event loop, and the model of the engine; a step takes as long as the latency model says. Never
knows HTTP or text. Between two turns of the loop at most one step is in flight. While it is held, only ``step()`` moves it.
"""

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import xxhash

from hashing.extras import NO_EXTRAS, Extras
from simulations.engine import Engine, EngineConfig, EngineRequest, ScheduledStep
from simulations.fake.encoding import EventEncoder
from simulations.fake.publisher import EventPublisher
from simulations.latency import LatencyModel
from simulations.sequences import TokenPrompt

FinishReason: TypeAlias = Literal["stop", "length", "abort"]

Sampler: TypeAlias = Callable[["Sample"], int]
"""The next token of a sample, of which ``tokens`` are there already."""


class Mailbox:
    """Samples with news for one HTTP request; mutable. One task reads it."""

    def __init__(self) -> None:
        self._news: dict[Sample, None] = {}
        self._has_news = asyncio.Event()

    def put(self, sample: "Sample") -> None:
        self._news[sample] = None
        self._has_news.set()

    async def get(self) -> list["Sample"]:
        """The samples that have changed since the last call; waits for the first."""
        await self._has_news.wait()
        self._has_news.clear()
        news, self._news = list(self._news), {}
        return news


class Sample:
    """One sequence that an engine generates, from request to end; mutable.

    ``external_id`` is the name under which clients can abort it. ``ends_at`` is how many tokens the model has to say where
    the client sets no limit.
    """

    __slots__ = (
        "cached_tokens",
        "ends_at",
        "external_id",
        "finish_reason",
        "id",
        "index",
        "is_streamed",
        "mailbox",
        "num_read",
        "prompt",
        "seed",
        "tokens",
    )

    def __init__(
        self,
        external_id: str,
        index: int,
        prompt: Sequence[int],
        mailbox: Mailbox,
        *,
        is_streamed: bool,
        ends_at: int | None,
    ) -> None:
        self.id = ""
        self.external_id = external_id
        self.index = index
        self.prompt = prompt
        self.mailbox = mailbox
        self.is_streamed = is_streamed
        self.ends_at = ends_at
        self.seed = 0
        self.tokens: list[int] = []
        self.num_read = 0
        self.cached_tokens: int | None = None
        self.finish_reason: FinishReason | None = None

    def read(self) -> list[int]:
        """The tokens since the last call."""
        new = self.tokens[self.num_read :]
        self.num_read = len(self.tokens)
        return new


class Figures:
    """What a rank exports as metrics; mutable. Gauges are as of the last step: vLLM's freeze while it is idle, too."""

    __slots__ = ("finished", "generation_tokens", "kv_cache_usage", "num_running", "num_waiting", "prompt_tokens")

    def __init__(self) -> None:
        self.num_running = 0
        self.num_waiting = 0
        self.kv_cache_usage = 0.0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = {"stop": 0, "length": 0, "abort": 0}


class Rank:
    """An engine, its clock and its publisher; mutable. ``run()`` is its task."""

    def __init__(
        self,
        number: int,
        config: EngineConfig,
        *,
        latency: LatencyModel,
        speed: float,
        sampler: Sampler,
        publisher: EventPublisher | None,
        encoder: EventEncoder,
    ) -> None:
        self.number = number
        self.engine = Engine(config)
        self.publisher = publisher
        self.figures = Figures()
        self._latency = latency
        self._speed = speed
        self._sampler = sampler
        self._encoder = encoder
        self._samples: dict[str, Sample] = {}
        self._in_flight: ScheduledStep | None = None
        self._num_added = 0
        self._is_held = False
        self._has_work = asyncio.Event()
        self._has_no_samples = asyncio.Event()
        self._has_no_samples.set()

    # -- requests ------------------------------------------------------------------------------------------------------

    def add(
        self,
        sample: Sample,
        *,
        max_tokens: int,
        extras: Extras = NO_EXTRAS,
        skip_cache: bool = False,
        stop_token_ids: tuple[int, ...] = (),
    ) -> None:
        """Queue a sample.

        Raises:
            ValueError: the engine cannot take it (see ``Engine.add``).
        """
        self._num_added += 1
        sample.id = f"{sample.external_id}-{self._num_added}"
        sample.seed = xxhash.xxh3_64_intdigest(array("Q", sample.prompt).tobytes(), sample.index)
        self.engine.add(
            EngineRequest(
                id=sample.id,
                prompt=TokenPrompt(sample.prompt, extras),
                max_tokens=max_tokens,
                skip_cache=skip_cache,
                stop_token_ids=stop_token_ids,
            )
        )
        self._samples[sample.id] = sample
        self._has_no_samples.clear()
        self._has_work.set()

    def abort(self, sample: Sample) -> None:
        """End a sample early, and tell its reader; nothing happens if it has ended."""
        if self._samples.pop(sample.id, None) is None:
            return
        self.engine.abort(sample.id)
        self._finish(sample, "abort")
        self._has_work.set()

    def abort_external(self, external_ids: frozenset[str]) -> int:
        """End all samples of these names. Returns how many there were."""
        found = [sample for sample in self._samples.values() if sample.external_id in external_ids]
        for sample in found:
            self.abort(sample)
        return len(found)

    def abort_all(self) -> int:
        """End all samples. Returns how many there were."""
        samples = list(self._samples.values())
        for sample in samples:
            self.abort(sample)
        return len(samples)

    async def wait_idle(self) -> None:
        """Return once no request waits or runs."""
        await self._has_no_samples.wait()

    @property
    def load(self) -> int:
        """What vLLM balances its ranks by: a waiting request weighs four times a running one."""
        return 4 * self.engine.num_waiting + self.engine.num_running

    # -- time ----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Step for ever, whenever there is something to do."""
        while True:
            await self._has_work.wait()
            if self._is_held or not self.engine.has_work:
                self._has_work.clear()
                continue
            step = self._schedule()
            await asyncio.sleep(self._latency.seconds(step.workload) / self._speed)
            if self._in_flight is step:
                self._complete(step)

    def hold(self) -> None:
        """Stop the clock. A step in flight still arrives, unless ``step()`` is called before."""
        self._is_held = True

    def release(self) -> None:
        """Let the clock run again."""
        self._is_held = False
        self._has_work.set()

    def step(self) -> bool:
        """One step in no time: the one in flight, or else a new one. Returns whether there was anything to do."""
        if self._in_flight is None and not self.engine.has_work:
            return False
        self._complete(self._in_flight or self._schedule())
        return True

    def _schedule(self) -> ScheduledStep:
        self._in_flight = self.engine.schedule()
        return self._in_flight

    def _complete(self, step: ScheduledStep) -> None:
        self._in_flight = None
        result = self.engine.complete(step, self._sample)
        if result.events and self.publisher is not None:
            self.publisher.publish(self._encoder.encode(time.time(), result.events, self.number))
        for name, cached_tokens in result.cached_tokens.items():
            sample = self._samples[name]
            sample.cached_tokens = cached_tokens
            self.figures.prompt_tokens += len(sample.prompt)
        for name, token in result.tokens.items():
            sample = self._samples[name]
            sample.tokens.append(token)
            if name in result.finished:
                del self._samples[name]
                self._finish(sample, result.finished[name])
            elif sample.is_streamed:
                sample.mailbox.put(sample)
        self._measure(len(result.tokens))

    def _sample(self, name: str) -> int:
        return self._sampler(self._samples[name])

    def _finish(self, sample: Sample, reason: FinishReason) -> None:
        sample.finish_reason = reason
        self.figures.finished[reason] += 1
        sample.mailbox.put(sample)
        if not self._samples:
            self._has_no_samples.set()

    def _measure(self, num_tokens: int) -> None:
        figures, engine = self.figures, self.engine
        figures.generation_tokens += num_tokens
        figures.num_running = engine.num_running
        figures.num_waiting = engine.num_waiting
        figures.kv_cache_usage = engine.kv_cache_usage

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the ports back; what has not left yet is lost."""
        if self.publisher is not None:
            self.publisher.close()
