"""The fake engine against a real vLLM: the same requests, and then the same batches of events and the same cached tokens."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq

from balancer.facts import read_cache_config
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.wire import decode
from simulations.fake.config import FakeConfig
from simulations.fake.publisher import END_MARKER
from simulations.fake.samples import Sample
from simulations.fake_engine import running
from simulations.latency import LatencyModel
from tests.real.engines import BLOCK_SIZE, MODEL_NAME, RealEngine, free_ports, running_engine
from tests.simulations.fake.exchanges import EXCHANGES, MAX_MODEL_LEN, RECORDED, ask

pytestmark = pytest.mark.real

NUM_BLOCKS = 40
MAX_BATCHED = 256
STOP_TOKENS = list(range(900, 960))

NO_TIME = LatencyModel(overhead=0, weights=0, token=0, pair=0, context_token=0)


class Request(msgspec.Struct, frozen=True):
    """One request in a form that any engine can be asked; ``path`` is where it goes first."""

    path: str
    tokens: list[int]
    max_tokens: int
    messages: list[dict[str, str]] | None = None
    salt: str | None = None
    skips_cache: bool = False
    stops: bool = False

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"model": MODEL_NAME, "return_token_ids": True, "cache_salt": self.salt}
        limits = {
            "max_tokens": self.max_tokens,
            "ignore_eos": True,  # each engine has its own end of text, and this one is both's
            "stop_token_ids": STOP_TOKENS if self.stops else [],
            "prompt_logprobs": 0 if self.skips_cache else None,
        }
        if self.path == "/inference/v1/generate":
            return {**body, "token_ids": self.tokens, "sampling_params": limits}
        if self.messages is not None:
            return {**body, **limits, "messages": self.messages}
        return {**body, **limits, "prompt": self.tokens}


class Answered(msgspec.Struct, frozen=True):
    prompt: list[int]
    tokens: list[int]
    cached_tokens: int
    finish_reason: str


RESET = None
"""In a sequence of requests: the cache is cleared here."""


def make_requests(seed: int, count: int) -> Iterator[Request | None]:
    """Prompts that share prefixes, fill whole blocks or not, and together need more than the cache has."""
    draw = random.Random(seed)
    stems = [draw.choices(range(5, 1000), k=length) for length in (64, 96, 200, 320)]
    asked: list[list[int]] = []
    conversation = [{"role": "system", "content": "be brief and kind " * 12}]
    for number in range(count):
        if number % 23 == 17:
            yield RESET
        if number % 6 == 5:
            conversation.append({"role": "user", "content": " ".join(draw.choices(["ra", "tuner", "oh"], k=9))})
            yield Request("/v1/chat/completions", [], draw.randint(1, 40), messages=list(conversation))
            if len(conversation) > 4:
                conversation = conversation[:1]
            continue
        if asked and draw.random() < 0.3:
            tokens = draw.choice(asked)
        else:
            tokens = draw.choice(stems) + draw.choices(range(5, 1000), k=draw.choice([1, 31, 32, 33, 64, 100]))
        asked.append(tokens)
        yield Request(
            path=draw.choice(["/v1/completions", "/inference/v1/generate"]),
            tokens=tokens,
            max_tokens=draw.randint(1, 40),
            salt=draw.choice([None, None, None, "a", "b"]),
            skips_cache=draw.random() < 0.1,
            stops=draw.random() < 0.5,
        )


def read_answer(answer: Any) -> Answered:
    choice = answer["choices"][0]
    prompt = answer.get("prompt_token_ids") or choice["prompt_token_ids"]
    details = answer["usage"]["prompt_tokens_details"]
    return Answered(prompt, choice["token_ids"], details["cached_tokens"], choice["finish_reason"])


def read_batches(endpoint: str) -> list[list[KVEvent]]:
    """All batches that a publisher has in its buffer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.setsockopt(zmq.RCVTIMEO, 10_000)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(endpoint)
        dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        batches: list[list[KVEvent]] = []
        while (frames := dealer.recv_multipart())[-2] != END_MARKER:
            assert int.from_bytes(frames[-2], "big") == len(batches), "a replayed batch was lost"
            batch = decode(frames[-1])
            assert not batch.skipped
            assert batch.rank == 0
            batches.append(batch.events)
        return batches


def ask_real(engine: RealEngine, requests: list[Request | None]) -> list[Answered]:
    answers = []
    for request in requests:
        if request is None:
            assert engine.post("/reset_prefix_cache") == {"success": True}
        else:
            answers.append(read_answer(engine.post(request.path, request.body())))
    return answers


async def ask_fake(
    config: FakeConfig, requests: list[Request | None], theirs: list[Answered]
) -> tuple[list[Answered], list[list[KVEvent]]]:
    """The same requests to a fake engine that says what the real one said."""
    says: list[int] = []

    def sample(sample: Sample) -> int:
        return says[len(sample.tokens)]

    answers = []
    expected = iter(theirs)
    async with running(config, sample) as engine, aiohttp.ClientSession(engine.url) as session:
        for request in requests:
            if request is None:
                async with session.post("/reset_prefix_cache") as response:
                    assert await response.json() == {"success": True}
                continue
            their = next(expected)
            says[:] = their.tokens
            if request.messages is not None:  # another vocabulary, so the real one's ids
                request = msgspec.structs.replace(  # noqa: PLW2901
                    request, path="/v1/completions", messages=None, tokens=their.prompt
                )
            async with session.post(request.path, json=request.body()) as response:
                assert response.status == 200, await response.text()
                answers.append(read_answer(await response.json()))
        replay = engine.replay()
        assert replay is not None
        return answers, await asyncio.to_thread(read_batches, replay)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    log: Path = tmp_path_factory.mktemp("vllm") / "log"
    args = ("--num-gpu-blocks-override", str(NUM_BLOCKS), "--max-num-batched-tokens", str(MAX_BATCHED))
    with running_engine(*free_ports(), *args, max_model_len=MAX_MODEL_LEN, log=log) as engine:
        yield engine


def test_the_fake_engine_announces_and_reuses_what_vllm_does(real: RealEngine) -> None:
    requests = list(make_requests(seed=1, count=90))
    theirs = ask_real(real, requests)
    their_batches = read_batches(real.replay)
    config = FakeConfig(
        port=0,
        event_port=0,
        replay_port=0,
        model=MODEL_NAME,
        block_size=BLOCK_SIZE,
        num_gpu_blocks=NUM_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_BATCHED,
        latency=NO_TIME,
    )
    ours, our_batches = asyncio.run(ask_fake(config, requests, theirs))

    assert ours == theirs
    for number, (our, their) in enumerate(zip(our_batches, their_batches, strict=False)):
        assert our == their, f"batch {number}"
    assert len(our_batches) == len(their_batches)

    seen = Counter(type(event) for batch in their_batches for event in batch)
    assert min(seen[BlockStored], seen[BlockRemoved]) > 50, "too little was evicted to prove anything"
    assert seen[AllBlocksCleared] >= 3
    assert sum(answer.cached_tokens > 0 for answer in theirs) > 20, "too few hits to prove anything"
    assert "stop" in {answer.finish_reason for answer in theirs}


def test_the_fake_engine_describes_itself_as_vllm_does(real: RealEngine) -> None:
    theirs = read_cache_config(real.get("/metrics"))[0]
    assert (theirs.block_size, theirs.num_gpu_blocks, theirs.algorithm) == (BLOCK_SIZE, NUM_BLOCKS, "sha256")
    config = FakeConfig(port=0, event_port=0, replay_port=0, block_size=BLOCK_SIZE, num_gpu_blocks=300)

    async def pages() -> tuple[bytes, Any, Any]:
        async with running(config) as engine, aiohttp.ClientSession(engine.url) as session:
            async with session.get("/metrics") as response:
                page = await response.read()
            async with session.get("/v1/models") as response:
                models = await response.json()
            async with session.get("/kv_event_sources") as response:
                return page, models, await response.json()

    page, models, sources = asyncio.run(pages())
    assert read_cache_config(page)[0] == msgspec.structs.replace(theirs, num_gpu_blocks=300)
    real_series, our_series = series(real.get("/metrics")), series(page)
    assert our_series <= real_series, "a series that vLLM does not have"
    real_models = msgspec.json.decode(real.get("/v1/models"))
    assert list(models["data"][0]) == list(real_models["data"][0])
    real_sources = msgspec.json.decode(real.get("/kv_event_sources"))
    assert {rank: list(fields) for rank, fields in sources.items()} == {
        rank: list(fields) for rank, fields in real_sources.items()
    }


def test_the_recorded_answers_are_still_vllms(real: RealEngine) -> None:
    recorded = json.loads(RECORDED.read_text())
    answers = {name: ask(real.url, exchange) for name, exchange in EXCHANGES.items()}
    assert [name for name in EXCHANGES if json.loads(json.dumps(answers[name])) != recorded[name]] == []


def series(page: bytes) -> set[tuple[str, tuple[str, ...]]]:
    """Names of samples with the names of their labels; of the configuration the name only, its labels are many."""
    from prometheus_client.parser import text_string_to_metric_families

    found = set()
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = () if family.name == "vllm:cache_config_info" else tuple(sorted(sample.labels))
            found.add((sample.name, labels))
    return found
