"""Prefill and decode on two real vLLM engines, with each connector that runs on a CPU: same words, nothing twice."""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from balancer.gateway.legs import Legs
from indexer.index import ReplicaId
from simulations.demo import free_ports
from tests.real.engines import BLOCK_SIZE, MODEL_NAME, RealEngine, start_engine
from tests.real.environment import transfer_python, vllm_python
from tests.support.gateways import Gateway, gateway
from tests.support.waiting import eventually, run

pytestmark = pytest.mark.real

COMPLETIONS = "/v1/completions"
START_SECONDS = 400.0
REST_SECONDS = 60.0
"""NIXL frees what nobody has fetched after 30 s."""

PROMPT_TOKENS = 200


class Setup(msgspec.Struct, frozen=True):
    """One connector: its name in the settings, and what its two engines are started with."""

    name: str
    connector: str
    fetched: Callable[[int], int]
    """Of a prompt of so many tokens, those that the decode engine counts as fetched."""
    extra: dict[str, Any] = {}
    is_stock: bool = False


SETUPS = {
    # The store has whole blocks of the prompt without its last token.
    "example": Setup("shared", "ExampleConnector", lambda n: (n - 1) // BLOCK_SIZE * BLOCK_SIZE, is_stock=True),
    "nixl": Setup("nixl", "NixlConnector", lambda n: n, {"kv_buffer_device": "cpu"}),
    "mooncake": Setup("mooncake", "MooncakeConnector", lambda n: n),
}


class Two:
    """The engines, and their gateway's settings."""

    def __init__(self, setup: Setup, folder: Path, name: str = "vllm") -> None:
        self.setup = setup
        self.name = name
        self.python = vllm_python() if setup.is_stock else transfer_python()
        (self.bootstrap,) = free_ports(1)
        self._folder = folder
        self._ports = {role: free_ports(3) for role in ("producer", "consumer")}
        self.prefill, self.decode = (self._start(role) for role in self._ports)

    def restart_prefill(self) -> None:
        """Another engine in its place, ready."""
        self.prefill = self._start("producer")
        self.prefill.wait_ready(START_SECONDS)

    def _start(self, role: str) -> RealEngine:
        setup, folder = self.setup, self._folder
        port, event_port, side_channel = self._ports[role]
        config: dict[str, Any] = {"kv_connector": setup.connector, "kv_role": f"kv_{role}", **setup.extra}
        extra: dict[str, Any] = {}
        if setup.name == "shared":
            extra["shared_storage_path"] = str(folder / "store")
        if setup.name == "mooncake":
            extra["mooncake_protocol"] = "tcp"
        if not setup.is_stock:
            config["kv_connector_module_path"] = "cpu_connectors"
        env = {
            "PYTHONPATH": str(Path(__file__).parent),
            "KVLB_TESTS_CONNECTOR": setup.name,
            "UCX_TLS": "tcp,self",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel),
            "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(self.bootstrap),
            "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "20",  # else an engine waits eight minutes for one that has died
        }
        transfer = msgspec.json.encode({**config, "kv_connector_extra_config": extra}).decode()
        return start_engine(
            port,
            event_port,
            *("--kv-transfer-config", transfer),
            env=env,
            max_model_len=2048,
            log=folder / f"{self.name}-{role}.log",
            python=self.python,
        )

    @asynccontextmanager
    async def front(
        self, first_byte: float = 240.0, **settings: Any
    ) -> AsyncIterator[tuple[Gateway, aiohttp.ClientSession]]:
        replicas = self.replicas()
        section = {"name": self.setup.name, "threshold_tokens": 0, **settings}
        async with (
            gateway(
                replicas,
                wait=False,
                disaggregation=section,
                health={"timeout_seconds": 20.0},
                timeouts={"first_byte_seconds": first_byte},
            ) as made,
            aiohttp.ClientSession() as client,
        ):
            engines = [each.url[7:] for each in (self.prefill, self.decode) if each.process.poll() is None]
            await eventually(lambda: all(made.service.router.fleet.get(ReplicaId(name)) for name in engines), 60)
            yield made, client

    def replicas(self) -> list[dict[str, Any]]:
        return [
            {"url": self.prefill.url, "role": "prefill", "transfer": self._transfer()},
            {"url": self.decode.url, "role": "decode"},
        ]

    def _transfer(self) -> dict[str, Any]:
        return {"bootstrap": f"http://127.0.0.1:{self.bootstrap}"} if self.setup.name == "mooncake" else {}

    def stop(self) -> None:
        for engine in (self.prefill, self.decode):
            if engine.process.poll() is None:
                engine.stop()


@pytest.fixture(
    scope="module", params=["example", *(pytest.param(each, marks=pytest.mark.long) for each in ("nixl", "mooncake"))]
)
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    made = Two(SETUPS[request.param], tmp_path_factory.mktemp(request.param))
    try:
        for engine in (made.prefill, made.decode):
            engine.wait_ready(START_SECONDS)
        yield made
    finally:
        made.stop()


def figure(engine: RealEngine, name: str, **labels: str) -> float:
    """The sum of a series of an engine's metrics."""
    page, total = engine.get("/metrics").decode(), 0.0
    for found in re.finditer(rf"^vllm:{name}(?:\{{(.*)\}})? (\S+)$", page, re.M):
        if all(f'{key}="{value}"' in found[1] for key, value in labels.items()):
            total += float(found[2])
    return total


def computed(engine: RealEngine) -> float:
    return figure(engine, "prompt_tokens_by_source_total", source="local_compute")


def fetched(engine: RealEngine) -> float:
    return figure(engine, "external_prefix_cache_hits_total")


def is_at_rest(engine: RealEngine) -> bool:
    """Whether nothing runs or waits, and no block is held for anybody."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return not any(figure(engine, name) for name in names)


def prompt(seed: int, tokens: int = PROMPT_TOKENS) -> list[int]:
    return random.Random(seed).choices(range(10, 1000), k=tokens)


def body(ids: list[int], **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "prompt": ids,
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": 1,
        "ignore_eos": True,
        **more,
    }


async def ask(
    front: Gateway, client: aiohttp.ClientSession, asked: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    async with client.post(front.url + COMPLETIONS, json=asked, timeout=aiohttp.ClientTimeout(240)) as response:
        answer = await response.read()
        assert response.status == 200, answer
        return {name.lower(): value for name, value in response.headers.items()}, json.loads(answer)


def said(answer: Any) -> tuple[list[str], list[float]]:
    """(tokens, their log-probabilities), which are those of the prompt's true keys and values or of none."""
    logprobs = answer["choices"][0]["logprobs"]
    return logprobs["tokens"], logprobs["token_logprobs"]


async def settled(two: Two) -> None:
    """Return once neither engine holds anything. An idle one tells its last step: a request makes it look."""
    for engine in (two.prefill, two.decode):
        deadline = asyncio.get_running_loop().time() + REST_SECONDS
        while not await asyncio.to_thread(is_at_rest, engine):
            assert asyncio.get_running_loop().time() < deadline, engine.tail()
            await asyncio.to_thread(engine.post, COMPLETIONS, body([5], max_tokens=1))
            await asyncio.sleep(1)


def test_the_prompt_is_computed_once_and_fetched_whole(two: Two) -> None:
    async def check() -> None:
        async with two.front() as (front, client):
            for seed in (1, 2):
                ids = prompt(seed)
                before = [computed(two.prefill), computed(two.decode), fetched(two.decode)]
                headers, answer = await ask(front, client, body(ids))
                assert headers["x-kvlb-prefill"] == two.prefill.url[7:]
                assert headers["x-kvlb-replica"] == two.decode.url[7:]
                grown = [computed(two.prefill), computed(two.decode), fetched(two.decode)]
                by_prefill, by_decode, moved = (now - then for now, then in zip(grown, before, strict=True))
                assert by_prefill == PROMPT_TOKENS
                assert moved == two.setup.fetched(PROMPT_TOKENS)
                assert by_decode <= PROMPT_TOKENS - moved + 1
                assert answer["usage"]["prompt_tokens"] == PROMPT_TOKENS
                assert answer["usage"]["completion_tokens"] == 8
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "what the prefill had found"
                assert answer["kv_transfer_params"] is None
                alone = await asyncio.to_thread(two.prefill.post, COMPLETIONS, body(ids))
                tokens, logprobs = said(answer)
                assert tokens == said(alone)[0]
                assert logprobs == pytest.approx(said(alone)[1], abs=1e-4)
            misses = [value for _, value in await front.samples("kvlb_disaggregation_silent_misses_total")]
            assert sum(misses) == 0
            assert sum(value for _, value in await front.samples("kvlb_disaggregation_alone_total")) == 0
        await settled(two)

    run(check(), 600)


def test_a_chat_is_streamed_as_one_engine_would(two: Two) -> None:
    async def check() -> None:
        words = " ".join(random.Random(3).choices(["river", "stone", "cloud", "tree"], k=125))
        asked = {
            "model": MODEL_NAME,
            "messages": [{"role": "user", "content": words}],
            "max_completion_tokens": 12,
            "min_tokens": 12,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with two.front() as (front, client):
            before = fetched(two.decode)
            async with client.post(front.url + "/v1/chat/completions", json=asked) as response:
                text = await response.text()
                assert response.status == 200, text
            assert fetched(two.decode) > before
            events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
            alone: Any = await asyncio.to_thread(
                two.prefill.post, "/v1/chat/completions", {**asked, "stream": False, "stream_options": None}
            )
            spoken = "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])
            assert spoken == alone["choices"][0]["message"]["content"]
            assert events[-1]["usage"]["completion_tokens"] == 12
            assert events[-1]["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
        await settled(two)

    run(check(), 600)


def test_clients_that_leave_at_any_time_leave_nothing_in_either_engine(two: Two) -> None:
    async def check() -> None:
        async with two.front() as (front, client):
            for at, seconds in enumerate((0.0, 0.05, 0.15, 0.3, 0.6, 1.0)):
                asked = body(prompt(100 + at, 1500), max_tokens=400, stream=True)
                request = asyncio.ensure_future(client.post(front.url + COMPLETIONS, json=asked))
                await asyncio.sleep(seconds)
                request.cancel()
                await asyncio.gather(request, return_exceptions=True)
            await eventually(front.is_idle, 30)
            await settled(two)
            ids = prompt(150)
            _, answer = await ask(front, client, body(ids))
            alone = await asyncio.to_thread(two.prefill.post, COMPLETIONS, body(ids))
            assert said(answer)[0] == said(alone)[0]

    run(check(), 600)


@contextlib.contextmanager
def frozen(engine: RealEngine) -> Iterator[None]:
    """It stands still, all its processes."""
    os.killpg(engine.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(engine.process.pid, signal.SIGCONT)


def test_an_engine_that_stands_still_costs_an_answer_at_most(two: Two) -> None:
    async def check() -> None:
        async with two.front(prefill_seconds=4.0) as (front, client):
            ids = prompt(250)
            with frozen(two.prefill):
                _, answer = await ask(front, client, body(ids))
            assert said(answer)[0] == said(await asyncio.to_thread(two.prefill.post, COMPLETIONS, body(ids)))[0]
        async with two.front(first_byte=6.0) as (front, client):
            with frozen(two.decode):
                async with client.post(front.url + COMPLETIONS, json=body(prompt(251))) as response:
                    told = await response.json()
                    assert response.status in {502, 504}, told
            await eventually(front.is_idle, 30)
            await settled(two)
        async with two.front() as (front, client):
            before = fetched(two.decode)
            await ask(front, client, body(prompt(252)))
            assert fetched(two.decode) - before == two.setup.fetched(PROMPT_TOKENS), "all is as it was"
        await settled(two)

    run(check(), 600)


def test_a_prefill_engine_that_dies_between_the_legs_costs_no_answer(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last tests of this pair: one engine less after each."""
    decode_leg = Legs._decode_leg

    def kills(*args: Any) -> Any:
        if two.prefill.process.poll() is None:
            two.prefill.kill()
        return decode_leg(*args)

    async def check() -> None:
        ids = prompt(200)
        async with two.front() as (front, client):
            expected = await asyncio.to_thread(two.prefill.post, COMPLETIONS, body(ids, max_tokens=8))
            monkeypatch.setattr(Legs, "_decode_leg", kills)
            if two.setup.name == "mooncake":  # its legs go together
                two.prefill.kill()
            headers, answer = await ask(front, client, body(ids))
            assert headers["x-kvlb-replica"] == two.decode.url[7:]
            assert said(answer)[0] == said(expected)[0]
            _, answer = await ask(front, client, body(prompt(201)))
            assert len(said(answer)[0]) == 8
            await eventually(front.is_idle, 30)
            monkeypatch.setattr(Legs, "_decode_leg", decode_leg)
            await asyncio.to_thread(two.restart_prefill)
            await eventually(lambda: front.service.router.fleet.get(ReplicaId(two.prefill.url[7:])), 30)
            await eventually(lambda: not any(w.problem for w in front.service.watchers.values()), 30)
            before = fetched(two.decode)
            headers, _ = await ask(front, client, body(prompt(202)))
            assert headers["x-kvlb-prefill"] == two.prefill.url[7:]
            assert fetched(two.decode) - before == two.setup.fetched(PROMPT_TOKENS)

    run(check(), 900)


def test_without_a_decode_engine_there_is_a_clear_error(two: Two) -> None:
    async def check() -> None:
        async with two.front() as (front, client):
            two.decode.kill()
            for _ in range(2):
                async with client.post(front.url + COMPLETIONS, json=body(prompt(300))) as response:
                    told = await response.json()
                    assert response.status in {502, 503}, told
                    assert told["error"]["message"]
            await eventually(front.is_idle, 30)

    run(check(), 600)


@pytest.mark.long
def test_any_prefill_engine_computes_for_any_decode_engine(tmp_path: Path) -> None:
    """Two of each kind, with stock engines."""
    pairs = [Two(SETUPS["example"], tmp_path, name) for name in ("a", "b")]
    prefills, decodes = [each.prefill for each in pairs], [each.decode for each in pairs]

    async def check() -> None:
        replicas = [replica for each in pairs for replica in each.replicas()]
        section = {"name": "shared", "threshold_tokens": 0}
        policy = {"name": "round_robin"}
        async with (
            gateway(replicas, disaggregation=section, policy=policy, health={"timeout_seconds": 20.0}) as front,
            aiohttp.ClientSession() as client,
        ):
            prompts = [prompt(seed) for seed in range(400, 412)]
            before = [sum(map(computed, prefills)), sum(map(computed, decodes)), sum(map(fetched, decodes))]
            answers = await asyncio.gather(*(ask(front, client, body(ids)) for ids in prompts))
            after = [sum(map(computed, prefills)), sum(map(computed, decodes)), sum(map(fetched, decodes))]
            by_prefill, by_decode, moved = (now - then for now, then in zip(after, before, strict=True))
            assert by_prefill == PROMPT_TOKENS * len(prompts), "each prompt once"
            assert moved == pairs[0].setup.fetched(PROMPT_TOKENS) * len(prompts)
            assert by_decode == PROMPT_TOKENS * len(prompts) - moved
            ways = {(headers["x-kvlb-prefill"], headers["x-kvlb-replica"]) for headers, _ in answers}
            assert len({way[0] for way in ways}) == len({way[1] for way in ways}) == 2
            for ids, (_, answer) in zip(prompts, answers, strict=True):
                alone = await asyncio.to_thread(prefills[0].post, COMPLETIONS, body(ids))
                assert said(answer)[0] == said(alone)[0]

    try:
        for engine in (*prefills, *decodes):
            engine.wait_ready(2 * START_SECONDS)
        run(check(), 600)
    finally:
        for each in pairs:
            each.stop()
