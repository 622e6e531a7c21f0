"""One data-parallel rank in real time: its engine is stepped by a task, its tokens go to whoever waits for them.

Knows the clock, through the event loop, and the model of the engine; a step takes as long as the latency model says. Never
knows HTTP or text. Between two turns of the loop at most one step is in flight. While it is held, only ``step()`` moves it.
"""

import asyncio
import time
from array import array

import xxhash

from hashing.extras import NO_EXTRAS, Extras
from simulations.engine import Engine
from simulations.engine_values import EngineConfig, EngineRequest, ScheduledStep
from simulations.fake.encoding import EventEncoder
from simulations.fake.metrics import RankFigures
from simulations.fake.pace import Pace
from simulations.fake.publisher import EventPublisher
from simulations.fake.samples import FinishReason, Sample, Sampler
from simulations.latency import LatencyModel
from simulations.sequences import TokenPrompt


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
        self._latency = latency
        self._speed = speed
        self._sampler = sampler
        self._encoder = encoder
        self._samples: dict[str, Sample] = {}
        self._in_flight: ScheduledStep | None = None
        self._num_added = 0
        self._is_held = False
        self._has_work = asyncio.Event()
        self._pace = Pace()
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._finished: dict[str, int] = {"stop": 0, "length": 0, "abort": 0}
        self._measured = (0, 0, 0.0)
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
        loaded_tokens: int = 0,
        keeps_blocks: bool = False,
    ) -> None:
        """Queue a sample.

        Raises:
            ValueError: the engine cannot take it (see ``Engine.add``).
        """
        self._num_added += 1
        sample.id = f"{sample.external_id}-{self._num_added}"
        sample.rank = self.number
        sample.seed = xxhash.xxh3_64_intdigest(array("Q", sample.prompt).tobytes(), sample.index)
        self.engine.add(
            EngineRequest(
                id=sample.id,
                prompt=TokenPrompt(sample.prompt, extras),
                max_tokens=max_tokens,
                skip_cache=skip_cache,
                stop_token_ids=stop_token_ids,
                loaded_tokens=loaded_tokens,
                keeps_blocks=keeps_blocks,
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

    def let_go(self, name: str) -> None:
        """The blocks that a sample has kept are free; somebody may have waited for them."""
        self.engine.let_go(name)
        self._has_work.set()

    @property
    def num_samples(self) -> int:
        """How many wait or run."""
        return len(self._samples)

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
                self._pace.rest()
                continue
            step = self._schedule()
            seconds = self._latency.seconds(step.workload) / self._speed
            await asyncio.sleep(self._pace.wait(seconds, asyncio.get_running_loop().time()))
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
            self._prompt_tokens += len(sample.prompt)
        for name, token in result.tokens.items():
            sample = self._samples[name]
            sample.tokens.append(token)
            if name in result.finished:
                del self._samples[name]
                self._finish(sample, result.finished[name])
            elif sample.is_streamed:
                sample.mailbox.put(sample)
        self._generation_tokens += len(result.tokens)
        self._measured = (self.engine.num_running, self.engine.num_waiting, self.engine.kv_cache_usage)

    def _sample(self, name: str) -> int:
        return self._sampler(self._samples[name])

    def _finish(self, sample: Sample, reason: FinishReason) -> None:
        sample.finish_reason = reason
        if reason != "abort":  # vLLM 0.32 has the series and does not count them
            self._finished[reason] += 1
        sample.mailbox.put(sample)
        if not self._samples:
            self._has_no_samples.set()

    # -- what it tells -------------------------------------------------------------------------------------------------

    def figures(self) -> RankFigures:
        """Its metrics. Gauges are as of the last step: vLLM's freeze while it is idle, too."""
        num_running, num_waiting, kv_cache_usage = self._measured
        return RankFigures(
            rank=self.number,
            num_running=num_running,
            num_waiting=num_waiting,
            kv_cache_usage=kv_cache_usage,
            prefix_cache_queries=self.engine.prefix_cache_queries,
            prefix_cache_hits=self.engine.prefix_cache_hits,
            num_preemptions=self.engine.num_preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            finished=dict(self._finished),
            loaded_tokens=self.engine.loaded_tokens,
        )

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the ports back; what has not left yet is lost."""
        if self.publisher is not None:
            self.publisher.close()
