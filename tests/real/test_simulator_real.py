"""The simulator against real vLLM: the same chats through two engines behind ``kvlb serve``, and through the detailed model.

The engines' small caches overflow. The model is played with what a simulation cannot know: when each request came and which
engine got it, as they were seen. All else is its own: engines, caches, eviction, and time by ``kvlb calibrate`` of one of them.
What it says that each request had cached is held against what vLLM said. In turn, when nothing depends on time, they agree;
side by side they do as far as requests end in the same order.

Times are printed and not asserted: engines, gateway and client share the cores of the machine that tests run on.
"""

import asyncio
import contextlib
import io
import json
import random
import time
from array import array
from collections.abc import Callable, Coroutine, Iterator, Sequence
from statistics import fmean, quantiles
from typing import Any

import aiohttp
import msgspec
import pytest

from balancer import cli
from balancer.core import NOTHING_ASKED, Asked, Candidate
from simulations.detailed import play_detailed
from simulations.detailed_fleet import DetailedFleet
from simulations.generators.chat import Chat
from simulations.latency import LatencyModel
from simulations.results import Run
from simulations.traces.trace import Trace
from tests.real.engines import BLOCK_SIZE, MODEL_NAME
from tests.real.gateway import NUM_BLOCKS, Engines, Gateway, Session

pytestmark = pytest.mark.real

CHUNK = 512  # as in ``tests.real.gateway.ENGINE_ARGS``
WORKLOAD = Chat(
    seconds=18,
    rate=2.2,
    block_size=BLOCK_SIZE,
    spread=0.4,
    turns=4,
    systems=4,
    system_tokens=150,
    question_tokens=60,
    answer_tokens=24,
    pause=2.5,
)
SEED = 1


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


def play_simulated(trace: Trace, choices: Sequence[str], replicas: Sequence[str], latency: LatencyModel) -> Run:
    named = {name: f"r{number:03}" for number, name in enumerate(replicas)}
    fleet = DetailedFleet(
        replicas=len(replicas),
        blocks=NUM_BLOCKS - 1,  # vLLM counts its null block
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=CHUNK,
        latency=latency,
    )
    chosen = [named[each] for each in choices]
    return play_detailed(trace, fleet, lambda: Recorded(chosen), "recorded", trace.sessions)


@pytest.fixture(scope="module")
def latency(engines: Engines) -> LatencyModel:
    """By ``kvlb calibrate`` of the first engine, while nothing else is asked."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        words = ["calibrate", engines.running[0].url, "--max-num-batched-tokens", str(CHUNK), "--json"]
        assert cli.main(words) == 0
    return LatencyModel(**json.loads(told.getvalue())["latency"])


class Compared(msgspec.Struct, frozen=True):
    """The same requests of both; shares of requests and of prompt tokens."""

    equal: float
    hit: float
    simulated_hit: float
    evicted: int


def compare(
    play: Callable[[Gateway, Trace], Coroutine[Any, Any, list[Seen]]],
    engines: Engines,
    gateway: Gateway,
    latency: LatencyModel,
    capsys: pytest.CaptureFixture[str],
) -> Compared:
    for engine in engines.running:
        engine.post("/reset_prefix_cache")
    trace = WORKLOAD.generate(SEED)
    seen = asyncio.run(play(gateway, trace))
    assert {each.replica for each in seen} == set(gateway.replicas)
    came, order = as_it_came(trace, seen)
    run = play_simulated(came, [seen[at].replica for at in order], gateway.replicas, latency)
    cached = [seen[at].cached for at in order]
    tokens = came.input_tokens
    equal = sum(real == simulated for real, simulated in zip(cached, run.hits, strict=True))
    found = Compared(equal / len(cached), sum(cached) / tokens, sum(run.hits) / tokens, run.misses.evicted)
    with capsys.disabled():
        print(f"\n{play.__name__}: {len(cached)} requests, {tokens:,} prompt tokens, {found.evicted:,} of them evicted")
        print(
            f"cached tokens equal: {found.equal:.1%}; hit rate: vLLM {found.hit:.2%}, model {found.simulated_hit:.2%}"
        )
        print(f"TTFT, vLLM and model: {told([each.ttft for each in seen], run.ttfts)}")
        print(f"latency, vLLM and model: {told([each.seconds for each in seen], run.latencies)}")
        print(latency)
    return found


def told(real: Sequence[float], simulated: Sequence[float]) -> str:
    (mean, median), (mean_too, median_too) = (
        (fmean(each) * 1000, quantiles(each)[1] * 1000) for each in (real, simulated)
    )
    return f"mean {mean:.1f} and {mean_too:.1f} ms, median {median:.1f} and {median_too:.1f} ms"


def test_requests_in_turn_have_cached_what_vllm_says(
    engines: Engines, gateway: Gateway, latency: LatencyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compare(play_in_turn, engines, gateway, latency, capsys)
    assert found.evicted > 0, "the caches must overflow"
    assert found.equal >= 0.98
    assert found.simulated_hit == pytest.approx(found.hit, abs=0.005)


def test_conversations_side_by_side_have_about_what_vllm_says(
    engines: Engines, gateway: Gateway, latency: LatencyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is evicted depends on who ends first, so on time, which a shared machine does not keep to."""
    found = compare(play_together, engines, gateway, latency, capsys)
    assert found.evicted > 0, "the caches must overflow"
    assert found.equal >= 0.85
    assert found.simulated_hit == pytest.approx(found.hit, abs=0.03)
