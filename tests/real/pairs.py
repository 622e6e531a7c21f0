"""Pairs of real vLLM engines, one that computes prompts and one that answers, and a gateway that sends them both.

Knows what each connector that runs on a CPU wants of its engines, and the figures of an engine's metrics that say what it has
computed, fetched and still holds. Never judges an answer.
"""

import asyncio
import contextlib
import json
import random
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import msgspec

from indexer.index import ReplicaId
from simulations.demo import free_ports
from tests.real.engines import BLOCK_SIZE, MODEL_NAME, RealEngine, start_engine
from tests.real.environment import transfer_python, vllm_python
from tests.real.lmcache import CHUNK, LMCacheServer, lmcache_server
from tests.real.stores import eventually as until
from tests.support.gateways import Gateway, gateway
from tests.support.waiting import eventually, run

COMPLETIONS: Final = "/v1/completions"
START_SECONDS: Final = 400.0
"""Of two engines that start together."""

REST_SECONDS: Final = 180.0
"""At most. NIXL frees what nobody has fetched after 30 s; a decode engine with Mooncake waits for one that has died as long as
it is told to (20 s here), and 60 s more.
"""

PROMPT_TOKENS: Final = 200
ATTEMPTS: Final = 5


class Setup(msgspec.Struct, frozen=True):
    """One connector: its name in the settings, and what its two engines are started with."""

    name: str
    connector: str
    fetched: Callable[[int], int]
    """Of a prompt of so many tokens, those that the decode engine counts as fetched."""
    extra: dict[str, Any] = {}
    is_stock: bool = False
    settings: dict[str, Any] = {}
    """The connector's own, of kvlb."""


SETUPS = {
    # The store has whole blocks of the prompt without its last token.
    "example": Setup("shared", "ExampleConnector", lambda n: (n - 1) // BLOCK_SIZE * BLOCK_SIZE, is_stock=True),
    "nixl": Setup("nixl", "NixlConnector", lambda n: n, {"kv_buffer_device": "cpu"}),
    "mooncake": Setup("mooncake", "MooncakeConnector", lambda n: n),
    # As its engines come on a CPU, without events; whole chunks, of a prompt that is there to its end all but one token.
    "lmcache": Setup(
        "lmcache_mp",
        "LMCacheMPConnector",
        lambda n: min(n - 1, n // CHUNK * CHUNK),
        is_stock=True,
        settings={"chunk_size": CHUNK},
    ),
}


class Two:
    """The engines, and their gateway's settings."""

    def __init__(self, setup: Setup, folder: Path, name: str = "vllm", server: LMCacheServer | None = None) -> None:
        self.setup = setup
        self.name = name
        self.server = server
        self.python = vllm_python() if setup.is_stock else transfer_python()
        (self.bootstrap,) = free_ports(1)
        self._folder = folder
        self._store = folder / "store"
        self._ports = {role: free_ports(3) for role in ("producer", "consumer")}
        self.prefill, self.decode = (self._start(role) for role in self._ports)

    @property
    def has_store(self) -> bool:
        """Whether the cache lies somewhere on its way from one engine to the other."""
        return self.server is not None or self.setup.name == "shared"

    def lose_store(self) -> None:
        """What lies between the engines is gone."""
        if self.server is not None:
            self.server.kill()
        else:
            shutil.rmtree(self._store)

    def regain_store(self) -> None:
        """The engines use it again, ready when this returns."""
        if self.server is None:
            return
        self.server.start()
        self.server.wait_ready()
        for engine in (self.prefill, self.decode):
            until("engines are back", lambda: "triggering recovery" in engine.tail(1000))  # noqa: B023

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
            extra["shared_storage_path"] = str(self._store)
        if setup.name == "mooncake":
            extra["mooncake_protocol"] = "tcp"
        if self.server is not None:
            config["kv_role"], extra = "kv_both", self.server.extra
        if not setup.is_stock:
            config["kv_connector_module_path"] = "cpu_connectors"
        env = {
            "PYTHONPATH": str(Path(__file__).parent),
            **({} if self.server is None else self.server.env),
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
        timeouts = {"first_byte_seconds": first_byte}
        async with before([self], timeouts=timeouts, disaggregation=settings) as made:
            yield made

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


@contextlib.contextmanager
def pairs(setup: Setup, folder: Path, count: int) -> Iterator[list[Two]]:
    """So many pairs that are ready, before one store where the connector has one."""
    made: list[Two] = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(lmcache_server(folder, None)) if setup.name == "lmcache_mp" else None
        if server is not None:
            server.wait_ready()  # engines look for it when they start
        for at in range(count):
            made.append(Two(setup, folder, f"vllm-{at}", server))
            stack.callback(made[-1].stop)
        for each in made:
            for engine in (each.prefill, each.decode):
                engine.wait_ready(count * START_SECONDS)
        run(_acquainted(made), count * START_SECONDS)
        yield made


async def _acquainted(found: Sequence[Two]) -> None:
    async with before(found) as (front, client):
        await acquaint(front, client, found)


@asynccontextmanager
async def before(
    found: Sequence[Two], disaggregation: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[tuple[Gateway, aiohttp.ClientSession]]:
    """A gateway that knows all of them, and those that live well enough to send them something."""
    setup = found[0].setup
    section = {
        "name": setup.name,
        "settings": setup.settings,
        "threshold_tokens": 0,
        **(disaggregation or {}),
    }
    async with (
        gateway(
            [replica for each in found for replica in each.replicas()],
            wait=False,
            disaggregation=section,
            health={"timeout_seconds": 20.0},
            **sections,
        ) as made,
        aiohttp.ClientSession() as client,
    ):
        engines = [e.url[7:] for each in found for e in (each.prefill, each.decode) if e.process.poll() is None]
        await eventually(lambda: all(made.service.router.fleet.get(ReplicaId(name)) for name in engines), 60)
        yield made, client


def name(engine: RealEngine) -> str:
    """Of its replica."""
    return engine.url.removeprefix("http://")


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


@asynccontextmanager
async def only(
    front: Gateway, client: aiohttp.ClientSession, four: Sequence[Two], p: int, d: int
) -> AsyncIterator[None]:
    """As long as the block lasts, prompts go to this prefill engine and answers come from this decode engine."""
    others = [name(each.prefill) for at, each in enumerate(four) if at != p]
    others += [name(each.decode) for at, each in enumerate(four) if at != d]
    paths = [f"{front.url}/kvlb/replicas/{quote(each, safe='')}" for each in others]
    for path in paths:
        async with client.post(path + "/drain") as response:
            assert response.status == 200, await response.text()
    try:
        yield
    finally:
        for path in paths:
            async with client.post(path + "/undrain") as response:
                assert response.status == 200, await response.text()


async def acquaint(front: Gateway, client: aiohttp.ClientSession, found: Sequence[Two]) -> None:
    """Return once each decode engine has fetched from each prefill engine.

    NIXL's engines give the other one 5 s to tell who it is, the first time; on a slow machine that is not always enough. Then
    they fail the request, kvlb has the decode engine compute the prompt, and the next one tries again.
    """
    for p, prefill in enumerate(found):
        for d in range(len(found)):
            async with only(front, client, found, p, d):
                for _ in range(ATTEMPTS):
                    headers, _ = await ask(front, client, body(prompt(random.getrandbits(64)), max_tokens=1))
                    if headers.get("x-kvlb-prefill") == name(prefill.prefill):
                        break
                else:
                    raise AssertionError(f"{found[d].decode.url} does not fetch:\n{found[d].decode.tail()}")


async def settled(*engines: RealEngine) -> None:
    """Return once none of them holds anything. An idle one tells its last step: a request makes it look."""
    for engine in engines:
        deadline = asyncio.get_running_loop().time() + REST_SECONDS
        while not await asyncio.to_thread(is_at_rest, engine):
            assert asyncio.get_running_loop().time() < deadline, engine.tail()
            await asyncio.to_thread(engine.post, COMPLETIONS, body([5], max_tokens=1))
            await asyncio.sleep(1)
