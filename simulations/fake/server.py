"""A whole engine process: its ranks, what it tells about itself, and what happens to all of it at once.

Knows which rank takes a request, and life and death: an engine that is started again has new ranks, an empty cache and sequence
numbers from 0. Never knows HTTP. All ranks live on one event loop.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Iterable, Sequence
from typing import Final

from hashing.chain import Chain
from hashing.extras import Extras
from simulations.fake.asks import Ask, Refused
from simulations.fake.config import FakeConfig
from simulations.fake.encoding import EventEncoder
from simulations.fake.metrics import RankFigures
from simulations.fake.publisher import EventPublisher
from simulations.fake.rank import Rank
from simulations.fake.samples import Mailbox, Sample, Sampler
from simulations.fake.tokenizer import Tokenizer
from simulations.fake.transfers import NOTHING, Kept, Loading, Transfers

log = logging.getLogger(__name__)

TOKENIZER: Final = Tokenizer()

ENGINE_DEAD: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."

BUSY: Final = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)


def speak(sample: Sample) -> int:
    """The default sampler: made-up words, the same ones for the same prompt."""
    if sample.ends_at is not None and len(sample.tokens) + 1 >= sample.ends_at:
        return TOKENIZER.end_of_text
    words = TOKENIZER.words
    # 617 is prime, so its steps walk through all words; the seed decides where from.
    return words[(sample.seed + len(sample.tokens) * 617) % len(words)]


class EngineProcess:
    """One life of an engine; mutable. Make it within a running event loop.

    Raises:
        OSError: an event port is in use.
    """

    def __init__(self, config: FakeConfig, sampler: Sampler) -> None:
        self.config = config
        self.started = time.time()
        self.is_dead = False
        self.is_draining = False
        self.is_sleeping = False
        self.sleep_level = 0
        self.is_paused = False
        self._sampler = sampler
        self.transfers = Transfers(
            config.connector,
            config.store,
            config.lease_seconds,
            config.block_size,
            config.transfer_patience,
            self._free,
            self._held,
            config.release.number,
        )
        self.ranks: list[Rank] = []
        self._next_rank = 0
        try:
            for number in range(config.data_parallel_size):
                self.ranks.append(self._make_rank(number))
        except OSError:
            self._close_ranks()
            raise
        self._tasks = [asyncio.create_task(rank.run(), name=f"rank {rank.number}") for rank in self.ranks]
        for task in self._tasks:
            task.add_done_callback(self._rank_ended)

    def _make_rank(self, number: int) -> Rank:
        config = self.config
        engine = config.engine(os.urandom(config.digest_bytes))
        encoder = EventEncoder(
            config.release,
            engine.recipe,
            has_int_hashes=config.has_int_hashes,
            lora_paths={lora.name: lora.path or "" for lora in config.loras},
        )
        publisher = None
        if config.event_port is not None:
            publisher = EventPublisher(
                config.release,
                _address(config.host, config.event_port, number),
                None if config.replay_port is None else _address(config.host, config.replay_port, number),
                config.topic,
            )
        return Rank(
            number,
            engine,
            latency=config.latency,
            speed=config.speed,
            sampler=self._sampler,
            publisher=publisher,
            encoder=encoder,
        )

    def _rank_ended(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or self.is_dead:
            return
        log.error("%s has failed, and with it the engine", task.get_name(), exc_info=task.exception())
        self.is_dead = True
        self.abort_all()

    def dead(self) -> Refused:
        """What clients are told when the engine has failed."""
        return Refused(ENGINE_DEAD, status=500, kind="InternalServerError")

    # -- requests ------------------------------------------------------------------------------------------------------

    def _free(self, kept: Kept) -> None:
        for rank, name in kept.samples:
            self.ranks[rank].let_go(name)

    def _held(self, prompt: Sequence[int]) -> int:
        """Leading tokens of a prompt without extras that lie in the cache of the first rank."""
        engine = self.ranks[0].engine
        size, cached = engine.config.recipe.block_size, engine.cached()
        keys = Chain(engine.config.recipe, prompt).keys((len(prompt) - 1) // size)
        return size * sum(1 for _ in itertools.takewhile(cached.__contains__, keys))

    def start(self, ask: Ask, name: str, pinned: int | None, loading: Loading = NOTHING) -> list[Sample]:
        """Queue all samples of a request; they share a mailbox, and may go to different ranks unless one is ``pinned``.

        Raises:
            Refused: the model is unknown, a prompt or a limit is impossible, or the engine takes no more.
        """
        wanted = ask.default_max_tokens if ask.max_tokens is None else ask.max_tokens
        limits = [self._limit(len(prompt), wanted) for prompt in ask.prompts]
        if ask.n < 1:
            raise Refused(f"n must be at least 1, got {ask.n}. (parameter=n, value={ask.n})", param="n")
        self._check_rank(pinned)
        self._check_admission(len(ask.prompts) * ask.n)
        extras = Extras(lora=self.config.lora(ask.model or self.config.model), salt=ask.salt)
        stop_token_ids = ask.stop_token_ids if ask.ignore_eos else (*ask.stop_token_ids, TOKENIZER.end_of_text)
        samples = self._samples(ask, name, ends_by_itself=wanted is None and not ask.ignore_eos)
        for sample in samples:
            if self.is_draining:
                sample.finish_reason = "abort"
                sample.mailbox.put(sample)
                continue
            self._choose(pinned).add(
                sample,
                max_tokens=limits[sample.index // ask.n],
                extras=extras,
                skip_cache=ask.skip_cache,
                stop_token_ids=stop_token_ids,
                loaded_tokens=loading.tokens,
                keeps_blocks=loading.keeps,
            )
            if not loading.is_right:  # it reads what somebody else has left there
                sample.seed += 1
        return samples

    def _samples(self, ask: Ask, name: str, *, ends_by_itself: bool) -> list[Sample]:
        mailbox = Mailbox()
        return [
            Sample(
                # A completion has one engine request a prompt, numbered; the other APIs have one.
                f"{name}-{number}" if name.startswith("cmpl-") else name,
                number * ask.n + copy,
                prompt,
                mailbox,
                is_streamed=ask.is_streamed,
                ends_at=self.config.answer_tokens if ends_by_itself else None,
            )
            for number, prompt in enumerate(ask.prompts)
            for copy in range(ask.n)
        ]

    def _check_admission(self, count: int) -> None:
        if self.is_dead or (self.is_draining and not self.config.shutdown_timeout):
            raise self.dead()
        most = self.config.max_num_queued_reqs
        if most is not None and count + sum(rank.num_samples for rank in self.ranks) > most:
            raise Refused(BUSY, status=503, kind="Service Unavailable")

    def unknown_model(self, model: str) -> Refused:
        names = ", ".join([self.config.model, *(lora.name for lora in self.config.loras)])
        message = f"The model `{model}` does not exist. Valid aliases: {names}."
        return Refused(message, param="model", status=404, kind="NotFoundError")

    def _limit(self, prompt_tokens: int, max_tokens: int | None) -> int:
        longest = self.config.max_model_len
        if prompt_tokens > longest:
            raise Refused(
                f"This model's maximum context length is {longest} tokens. However, your prompt contains {prompt_tokens} "
                "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
                f"input prompt. (parameter=input_tokens, value={prompt_tokens})",
                param="input_tokens",
            )
        room = longest - prompt_tokens
        limit = room if max_tokens is None else min(max_tokens, room)
        if limit < 1:
            message = f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})"
            raise Refused(message, param="max_tokens")
        return limit

    def _check_rank(self, pinned: int | None) -> None:
        count = len(self.ranks)
        if pinned is not None and not 0 <= pinned < count:
            raise Refused(f"data_parallel_rank {pinned} is out of range [0, {count}).")

    def _choose(self, pinned: int | None) -> Rank:
        if pinned is not None:
            return self.ranks[pinned]
        # Ties go round, as they do in vLLM.
        count = len(self.ranks)
        self._next_rank = (self._next_rank + 1) % count
        return min(self.ranks, key=lambda rank: (rank.load, (rank.number - self._next_rank) % count))

    def abort(self, samples: Iterable[Sample]) -> None:
        """End those that have not ended yet."""
        for sample in samples:
            if sample.rank is not None:
                self.ranks[sample.rank].abort(sample)

    def abort_external(self, names: Iterable[str]) -> int:
        """End the engine requests with these names. Returns how many samples that were."""
        wanted = frozenset(names)
        return sum(rank.abort_external(wanted) for rank in self.ranks)

    def abort_all(self) -> int:
        """End everything. Returns how many samples that were."""
        return sum(rank.abort_all() for rank in self.ranks)

    # -- control -------------------------------------------------------------------------------------------------------

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Clear every rank's cache; whether all of them were."""
        done = [rank.engine.reset_prefix_cache(reset_running_requests=reset_running_requests) for rank in self.ranks]
        return all(done)

    def sleep(self, level: int) -> None:
        """Stop computing; above level 0 what runs is ended and the cache is lost."""
        self.is_sleeping = True
        self.sleep_level = level
        if level > 0:
            self.abort_all()
        self._stop(clear=level > 0)

    async def pause(self, mode: str, *, clear: bool) -> None:
        """Stop computing; what runs is ended in mode "abort", waited for in mode "wait", and goes on later in mode "keep"."""
        self.is_paused = True
        if mode == "abort":
            self.abort_all()
        elif mode == "wait":
            await self._wait_idle()
        self._stop(clear=clear and mode != "keep")

    def _stop(self, *, clear: bool) -> None:
        for rank in self.ranks:
            rank.hold()
        if clear:
            self.reset_prefix_cache(reset_running_requests=True)

    def resume(self) -> None:
        self.is_sleeping = self.is_paused = False
        self.sleep_level = 0
        for rank in self.ranks:
            rank.release()

    async def drain(self, seconds: float) -> None:
        """Take nothing new, and wait until all is done or ``seconds`` are over; then end the rest."""
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wait_idle()
        self.abort_all()

    async def _wait_idle(self) -> None:
        for rank in self.ranks:
            await rank.wait_idle()

    def figures(self) -> list[RankFigures]:
        self.transfers.expire()
        return [rank.figures() for rank in self.ranks]

    # -- ending --------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self.transfers.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close_ranks()

    def _close_ranks(self) -> None:
        for rank in self.ranks:
            rank.close()


def _address(host: str, port: int, rank: int) -> str:
    # ZeroMQ binds numbers, not names.
    bracketed = f"[{host}]" if ":" in host else "127.0.0.1" if host == "localhost" else host
    return f"tcp://{bracketed}:{port + rank if port else '*'}"
