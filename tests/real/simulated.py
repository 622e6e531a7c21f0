"""The same chats through real engines behind ``kvlb serve``, and through the detailed model: what both say of each request.

The model is played with what a simulation cannot know: when each request came and which engine got it, as they were seen. All
else is its own: engines, caches, eviction, and time by the costs that it is given. Never judges what comes of it.
"""

import asyncio
import json
import random
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp
import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from simulations.detailed import play_detailed
from simulations.detailed_fleet import DetailedFleet
from simulations.latency import LatencyModel
from simulations.results import Run
from simulations.traces.trace import Trace
from tests.real.engines import BLOCK_SIZE, MODEL_NAME
from tests.real.gateway import Gateway, Session


class Seen(msgspec.Struct):
    """What came of one request, by the client's clock."""

    sent: float
    replica: str
    cached: int
    ttft: float
    seconds: float


class Recorded:
    """A policy that chooses what was chosen, in order; mutable."""

    def __init__(self, choices: Sequence[str]) -> None:
        self._choices: Iterator[str] = iter(choices)

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        wanted = next(self._choices)
        return next(each for each in candidates if each.replica == wanted)


class Conversations:
    """The trace's prompts as token ids; mutable: a conversation goes on with what the engine has really answered."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._said: dict[int, list[int]] = {}

    async def ask(self, http: aiohttp.ClientSession, url: str, request: int) -> Seen:
        """The conversation's next turn."""
        prompt = self._prompt(request)
        seen, answer = await ask(http, url, prompt, self._trace.outputs[request])
        assert len(answer) == self._trace.outputs[request]
        self._said[self._trace.sessions[request]] = prompt + answer
        return seen

    def _prompt(self, request: int) -> list[int]:
        trace = self._trace
        said = self._said.get(trace.sessions[request])
        if said is None:
            said = [token for block in trace.blocks[request] for token in _tokens(block)][: trace.inputs[request]]
        missing = trace.inputs[request] - len(said)
        assert missing >= 0
        return said + random.Random(f"question {request}").choices(range(5, 1000), k=missing)


def _tokens(block: int) -> list[int]:
    return random.Random(f"block {block}").choices(range(5, 1000), k=BLOCK_SIZE)


async def ask(http: aiohttp.ClientSession, url: str, prompt: list[int], answer: int) -> tuple[Seen, list[int]]:
    body = {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": answer,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    tokens: list[int] = []
    seen = Seen(time.monotonic(), "", -1, 0.0, 0.0)
    async with http.post(url + "/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        seen.replica = response.headers["x-kvlb-replica"]
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event: dict[str, Any] = json.loads(line[6:])
            for choice in event["choices"]:
                seen.ttft = seen.ttft or time.monotonic() - seen.sent
                tokens += choice["token_ids"] or []
            if event.get("usage"):
                seen.cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    seen.seconds = time.monotonic() - seen.sent
    return seen, tokens


async def play_in_turn(gateway: Gateway, trace: Trace) -> list[Seen]:
    """One request after the other, as soon as the answer to the one before it is there."""
    conversations = Conversations(trace)
    async with gateway.session() as session:
        return [await conversations.ask(session.http, gateway.url, request) for request in range(len(trace))]


async def play_together(gateway: Gateway, trace: Trace) -> list[Seen]:
    """Every conversation by somebody of its own, who waits for the answer, and then as long as the trace says."""
    turns: dict[int, list[int]] = {}
    for request, number in enumerate(trace.sessions):
        turns.setdefault(number, []).append(request)
    seen: dict[int, Seen] = {}
    conversations = Conversations(trace)

    async def talk(session: Session, requests: list[int]) -> None:
        await asyncio.sleep(trace.arrivals[requests[0]])
        for request in requests:
            await asyncio.sleep(max(0.0, trace.pauses[request]))
            seen[request] = await conversations.ask(session.http, gateway.url, request)

    async with gateway.session() as session:
        await asyncio.gather(*(talk(session, requests) for requests in turns.values()))
    return [seen[request] for request in range(len(trace))]


def as_it_came(trace: Trace, seen: Sequence[Seen]) -> tuple[Trace, list[int]]:
    """The trace at the times when its requests were really sent, and where each of them stands in the old one."""
    order = sorted(range(len(trace)), key=lambda request: seen[request].sent)
    first = seen[order[0]].sent
    return msgspec.structs.replace(
        trace,
        arrivals=array("d", [seen[at].sent - first for at in order]),
        inputs=array("q", [trace.inputs[at] for at in order]),
        outputs=array("q", [trace.outputs[at] for at in order]),
        blocks=[trace.blocks[at] for at in order],
        sessions=array("q", [trace.sessions[at] for at in order]),
        pauses=array("d", [trace.pauses[at] for at in order]),
    ), order


def play_simulated(
    trace: Trace,
    choices: Sequence[str],
    replicas: Sequence[str],
    blocks: int,
    chunk: int,
    latency: LatencyModel,
    per_core: int | None = None,
) -> Run:
    """Engines with so many blocks, vLLM's null block among them, and a budget of ``chunk`` tokens a step.

    ``per_core`` share one core, where they are kept on some.
    """
    named = {name: f"r{number:03}" for number, name in enumerate(replicas)}
    fleet = DetailedFleet(
        replicas=len(replicas),
        blocks=blocks - 1,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=chunk,
        latency=latency,
        replicas_per_device=per_core,
    )
    chosen = [named[each] for each in choices]
    return play_detailed(trace, fleet, lambda: Recorded(chosen), "recorded", trace.sessions)


class Compared(msgspec.Struct, frozen=True):
    """The same requests of both.

    Attributes:
        requests, prompt_tokens: how many there were.
        equal: share of requests that had as many tokens cached in the model as in vLLM.
        hit, simulated_hit: share of prompt tokens that were cached.
        evicted: prompt tokens that the model's caches had held, and did not any more.
        load: share of the time for which the busiest engine had prompts or answers to compute, by the model.
        ttfts, simulated_ttfts, seconds, simulated_seconds: to the first token and to the last one, by the client's clock, in
            order of arrival.
    """

    requests: int
    prompt_tokens: int
    equal: float
    hit: float
    simulated_hit: float
    evicted: int
    load: float
    ttfts: list[float]
    simulated_ttfts: list[float]
    seconds: list[float]
    simulated_seconds: list[float]


def compared(
    trace: Trace,
    seen: Sequence[Seen],
    replicas: Sequence[str],
    blocks: int,
    chunk: int,
    latency: LatencyModel,
    per_core: int | None = None,
) -> Compared:
    """What was seen of ``trace``, and what the model makes of the same; the engines as in ``play_simulated``."""
    came, order = as_it_came(trace, seen)
    real = [seen[at] for at in order]
    run = play_simulated(came, [each.replica for each in real], replicas, blocks, chunk, latency, per_core)
    tokens = came.input_tokens
    return Compared(
        len(real),
        tokens,
        sum(each.cached == hit for each, hit in zip(real, run.hits, strict=True)) / len(real),
        sum(each.cached for each in real) / tokens,
        sum(run.hits) / tokens,
        run.misses.evicted,
        max(run.busy) / run.seconds,
        [each.ttft for each in real],
        list(run.ttfts),
        [each.seconds for each in real],
        list(run.latencies),
    )
