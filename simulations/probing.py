"""Requests to a running engine that are there to be timed, and its own account of what it has computed.

Knows ``POST /v1/completions``, ``GET /v1/models`` and ``GET /metrics`` of vLLM, and the client's clock. Never knows what is
made of the times. No prompt finds anything in the cache: each is drawn anew, and has a salt of its own.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from balancer.errors import ConfigError, Unreachable
from balancer.facts import read_cache_config
from balancer.http.reasons import reason
from balancer.upstream import whole
from simulations.fitting import Sample, prompt_steps
from simulations.latency import LatencyModel, Workload

FIRST_TOKEN: Final = 10
"""Ids below are special tokens in most vocabularies."""

SIDE_BY_SIDE: Final = 0.5
"""Share of each answer of a batch that must have come while all were under way, or its time says little."""

COMPUTED: Final = "vllm:prompt_tokens_by_source_total"
PREFILL: Final = "vllm:request_prefill_time_seconds"
BETWEEN: Final = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


class Limits(msgspec.Struct, frozen=True):
    """What an engine takes: its model's name, the longest sequence, and tokens of its cache; None where it does not say."""

    model: str
    max_model_len: int | None
    cache_tokens: int | None


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Event(msgspec.Struct):
    """One event of a stream."""

    usage: _Usage | None = None
    choices: list[msgspec.Raw] = []


class _Heard(msgspec.Struct, frozen=True):
    """``tokens`` of an answer were there ``at`` this time: several come in one event where anybody was slow."""

    at: float
    tokens: int


class Engine:
    """One engine as its client sees it; mutable: ``requests`` counts those that were timed."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, *, vocabulary: int, seed: int, api_key: str | None
    ) -> None:
        self.requests = 0
        self._session = session
        self._url = url
        self._vocabulary = vocabulary
        self._random = random.Random(seed)
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    async def limits(self, model: str | None) -> Limits:
        """What it serves, and how long a prompt may be; ``model`` is the one that is wanted, None is the first.

        Raises:
            ConfigError: it serves no such model, or refuses to say.
            Unreachable: it does not answer, or not as an engine does.
        """
        try:
            cards = msgspec.json.decode(await self._get("/v1/models"), type=_Cards).data
        except msgspec.MsgspecError as error:
            raise Unreachable(f"{self._url} is no vLLM: /v1/models: {error}") from None
        card = next((each for each in cards if model in {None, each.id}), None)
        if card is None:
            served = ", ".join(each.id for each in cards) or "none"
            raise ConfigError(f"--model: {self._url} serves no {model or 'model'}; it serves {served}")
        cache = read_cache_config(await self._get("/metrics"))
        sizes = [each.block_size * each.num_gpu_blocks for each in cache if each.block_size and each.num_gpu_blocks]
        return Limits(card.id, card.max_model_len, min(sizes, default=None))

    async def prompt(self, model: str, tokens: int, chunk: int) -> Sample:
        """A prompt of so many tokens, from when it is sent to the first byte of its answer; in steps of ``chunk`` tokens."""
        began, events = await self._ask(model, tokens, 1)
        return Sample(f"a prompt of {tokens}", prompt_steps(tokens, chunk), events[0].at - began, requests=1)

    async def decoding(self, model: str, batch: int, context: int, tokens: int) -> Sample | None:
        """Seconds of a token of ``batch`` answers of ``tokens`` each that are made together, behind prompts of ``context``.

        None where too few came while all of them were under way: the engine does not take so many at once.
        """
        answers = [
            events for _, events in await asyncio.gather(*(self._ask(model, context, tokens) for _ in range(batch)))
        ]
        begin, end = max(events[0].at for events in answers), min(events[-1].at for events in answers)
        took, middles = [], []
        for events in answers:
            inside = [event for event in events if begin <= event.at <= end]
            count = inside[-1].tokens - inside[0].tokens if inside else 0
            if count < SIDE_BY_SIDE * tokens:
                return None
            took.append((inside[-1].at - inside[0].at) / count)
            middles.append(context + (inside[0].tokens + inside[-1].tokens) / 2)
        step = Workload(decode_requests=batch, decode_context=round(sum(middles)))
        return Sample(f"a token of {batch} behind {context}", (step,), sum(took) / batch)

    async def metrics(self) -> bytes:
        """Its metrics page."""
        return await self._get("/metrics")

    async def _ask(self, model: str, tokens: int, answer: int) -> tuple[float, list[_Heard]]:
        """When a prompt was sent, and what of its answer was there when, by the client's clock."""
        body = {
            "model": model,
            "prompt": self._random.choices(range(min(FIRST_TOKEN, self._vocabulary - 1), self._vocabulary), k=tokens),
            "max_tokens": answer,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "cache_salt": uuid.UUID(int=self._random.getrandbits(128)).hex,
        }
        data = msgspec.json.encode(body)
        headers = {**self._headers, "Content-Type": "application/json"}
        heard: list[_Heard] = []
        self.requests += 1
        try:
            began = time.monotonic()
            async with self._session.post(self._url + "/v1/completions", data=data, headers=headers) as response:
                if response.status != 200:
                    self._refuse("/v1/completions", response.status, await whole(response))
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        now = time.monotonic()
                        event = msgspec.json.decode(line[6:], type=_Event)
                        if event.choices and event.usage is not None:
                            heard.append(_Heard(now, event.usage.completion_tokens))
                        elif not event.choices and event.usage is None:
                            raise Unreachable(f"{self._url}: {_message(line[6:]) or 'an error in its answer'}")
        except TimeoutError:
            raise Unreachable(
                f"{self._url} has not answered a prompt of {tokens} tokens in time; see --timeout"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{self._url}: {reason(error)}") from error
        except msgspec.MsgspecError as error:
            raise Unreachable(f"{self._url} is no vLLM: an event of its answer: {error}") from None
        if not heard:
            raise Unreachable(
                f"{self._url} has answered a prompt of {tokens} tokens with nothing that counts its tokens"
            )
        return began, heard

    async def _get(self, path: str) -> bytes:
        try:
            async with self._session.get(self._url + path, headers=self._headers) as response:
                answer = await whole(response)
        except TimeoutError:
            raise Unreachable(f"{self._url} has not answered {path} in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"no engine at {self._url}: {reason(error)}; start it, or name another one") from error
        if response.status != 200:
            self._refuse(path, response.status, answer)
        return answer

    def _refuse(self, path: str, status: int, answer: bytes) -> None:
        told = _message(answer) or f"{path} is answered with {status}"
        if status in {401, 403}:
            raise ConfigError(f"{self._url}: {told}; give --api-key")
        if status in {400, 422}:
            raise ConfigError(f"{self._url}: {told}; see --lengths, --vocabulary and --decode-tokens")
        raise Unreachable(f"{self._url}: {told}")


class Rates(msgspec.Struct, frozen=True):
    """What an engine says that it has computed since it began.

    Attributes:
        prompt_tokens, prefill_seconds: computed, cached ones left out; from scheduled to first token, over all prompts.
        answer_tokens, between_seconds: tokens but the first of each answer; from one to the next, over all of them.
    """

    prompt_tokens: float
    prefill_seconds: float
    answer_tokens: float
    between_seconds: float

    def latency(self) -> LatencyModel:
        """The model that has these rates.

        Raises:
            ConfigError: too little was computed.
        """
        if not min(self.prompt_tokens, self.prefill_seconds, self.answer_tokens, self.between_seconds) > 0:
            raise ConfigError(
                "--metrics: the engine has not computed prompts and answers yet; use it, or measure it without --metrics"
            )
        return LatencyModel.from_rates(
            prefill_tokens_per_second=self.prompt_tokens / self.prefill_seconds,
            decode_seconds_per_token=self.between_seconds / self.answer_tokens,
        )


def read_rates(page: bytes) -> Rates:
    """The rates on a metrics page, all ranks together.

    Raises:
        ConfigError: a metric is missing; the message names it.
    """
    sums = _sums(page)
    between = next((name for name in BETWEEN if name + "_sum" in sums), BETWEEN[0])
    if COMPUTED in sums:
        computed = sums[COMPUTED]
    else:  # before vLLM 0.18
        computed = _of(sums, "vllm:prompt_tokens_total") - sums.get("vllm:prefix_cache_hits_total", 0.0)
    return Rates(computed, _of(sums, PREFILL + "_sum"), _of(sums, between + "_count"), _of(sums, between + "_sum"))


def _sums(page: bytes) -> Mapping[str, float]:
    """Each series of vLLM's, over all its labels; of prompt tokens by source, only those that were computed."""
    lines = [line for line in page.decode(errors="replace").splitlines() if line.startswith("vllm:")]
    sums: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if sample.labels.get("source", "local_compute") == "local_compute":
                    sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    except ValueError:
        return {}
    return sums


def _of(sums: Mapping[str, float], name: str) -> float:
    if name not in sums:
        raise ConfigError(f"--metrics: the engine has no {name}; measure it without --metrics")
    return sums[name]


def _message(answer: bytes) -> str | None:
    """The words of an OpenAI error, if it is one."""
    try:
        told: Any = msgspec.json.decode(answer)
        return str(told["error"]["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None
