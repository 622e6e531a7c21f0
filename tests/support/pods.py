"""Gateways as pods: processes that listen at addresses of their own on loopback, find each other by a name, and are replaced.

Knows how to start and end them, who of them is ready, and clients that go from one to the next as a Service has them do.
Nothing here asks how fast anything is: clients send one request after the other, and count what engines say they had cached.
"""

import asyncio
import contextlib
import itertools
import random
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from simulations.demo import free_ports
from tests.support.name_server import NameServer
from tests.support.processes import started
from tests.support.several import MODEL, PATH
from tests.support.waiting import beside, eventually

NAME: Final = "kvlb-gateways.default.svc"
BLOCK: Final = 16
SECONDS: Final = 60.0

_addresses = itertools.count(11)


class Pod:
    """One gateway."""

    def __init__(self, host: str, port: int, process: "subprocess.Popen[str]") -> None:
        self.host = host
        self.url = f"http://{host}:{port}"
        self.process = process
        self.is_ready = False


class Pods:
    """All of them, and the name that stands for those that are ready. Mutable."""

    def __init__(self, engines: Sequence[str], folder: Path, names: NameServer, client: aiohttp.ClientSession) -> None:
        self.all: list[Pod] = []
        (self.port,) = free_ports(1)
        self.names = names
        self._engines = engines
        self._folder = folder
        self._client = client
        self._stack = contextlib.ExitStack()

    @property
    def ready(self) -> list[Pod]:
        return [pod for pod in self.all if pod.is_ready]

    async def start(self, *, siblings: bool = True, processes: int = 1, more: str = "") -> Pod:
        """One more, as soon as it is ready and knows all caches."""
        host = f"127.0.0.{next(_addresses)}"
        config = self._folder / f"{host}.toml"
        section = f"[siblings]\nhost = '{NAME}'\nport = {self.port}\nserver = '{self.names.address}'\n"
        section += "timeout_seconds = 15.0\n"  # a machine that is late is not a sibling that is silent
        config.write_text(
            f"[server]\nhost = '{host}'\nport = {self.port}\nprocesses = {processes}\nexpose_decisions = true\n"
            "drain_grace_seconds = 3.0\n[health]\ninterval_seconds = 0.5\ntimeout_seconds = 10.0\n"
            + (section if siblings else "")
            + more
            + "".join(f"[[replicas]]\nurl = '{url}'\n" for url in self._engines)
        )
        pod = Pod(host, self.port, self._stack.enter_context(started("serve", "--config", str(config))))
        await self._until(pod, "/ready", lambda answer: True)
        await self._until(
            pod,
            "/kvlb/status",
            lambda answer: (
                all(each["knowledge"]["state"] == "exact" for each in answer["replicas"])
                and len(answer["replicas"]) == len(self._engines)
            ),
        )
        self.all.append(pod)
        self._judge(pod, is_ready=True)
        return pod

    async def end(self, pod: Pod) -> tuple[int, str]:
        """Ask it to end, and wait until it has."""
        pod.process.send_signal(signal.SIGTERM)
        _, told = await asyncio.to_thread(pod.process.communicate, timeout=SECONDS)
        self.all.remove(pod)
        return pod.process.returncode, told

    async def get(self, pod: Pod, path: str) -> Any:
        async with self._client.get(pod.url + path) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def know_each_other(self) -> None:
        """Return once each of them counts what each other one has."""
        for pod in self.all:
            await self._until(pod, "/kvlb/status", self._counts_all)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """For so long, only those that say that they are ready are sent anything, and are what the name stands for."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def close(self) -> None:
        self._stack.close()

    async def _watch(self) -> None:
        while True:
            for pod in list(self.all):
                try:
                    async with self._client.get(pod.url + "/ready") as response:
                        self._judge(pod, is_ready=response.status == 200)
                except (aiohttp.ClientError, OSError):
                    self._judge(pod, is_ready=False)
            await asyncio.sleep(0.05)

    def _judge(self, pod: Pod, *, is_ready: bool) -> None:
        pod.is_ready = is_ready
        self.names.records[NAME, "A"] = [each.host for each in self.ready]

    def _counts_all(self, status: Any) -> bool:
        weights = [each["weight"] for each in status["siblings"]["addresses"]]
        return len([weight for weight in weights if weight > 0]) == len(self.all) - 1

    async def _until(self, pod: Pod, path: str, is_enough: Any) -> None:
        async with asyncio.timeout(SECONDS):
            while True:
                assert pod.process.poll() is None, pod.process.stderr and pod.process.stderr.read()
                with contextlib.suppress(aiohttp.ClientError, OSError, AssertionError):
                    if is_enough(await self.get(pod, path)):
                        return
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def pods(engines: Sequence[str], folder: Path, names: NameServer) -> AsyncIterator[Pods]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        made = Pods(engines, folder, names, client)
        try:
            yield made
        finally:
            await asyncio.to_thread(made.close)


class Figures:
    """What clients have counted. Mutable."""

    def __init__(self) -> None:
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.known_tokens = 0
        self.asked: Counter[str] = Counter()
        self.by: Counter[str] = Counter()
        self.spans: list[tuple[str, float, float]] = []

    @property
    def hit(self) -> float:
        """The share of prompt tokens that engines took from a cache."""
        return self.cached_tokens / self.prompt_tokens

    @property
    def found(self) -> float:
        """Of what somebody had had before, the share that was taken from a cache: 1 is all that any routing could."""
        return self.cached_tokens / self.known_tokens

    @property
    def crowd(self) -> float:
        """How many other requests a request has beside it at its replica, on average over the time that it takes."""
        beside, alone = 0.0, 0.0
        for replica in self.asked:
            moments = [(begin, 1) for name, begin, _ in self.spans if name == replica]
            moments += [(end, -1) for name, _, end in self.spans if name == replica]
            count, last = 0, 0.0
            for at, change in sorted(moments):
                beside += count * (count - 1) * (at - last)
                alone += count * (at - last)
                count, last = count + change, at
        return beside / alone


class Traffic:
    """Conversations behind hot prefixes, each client with one after the other; each request goes to the next gateway.

    Only those that are ready are asked. ``failed`` has what went wrong; nothing is tried again.
    """

    def __init__(self, pods: Pods, seed: int, *, systems: int = 4, clients: int = 24, turns: int = 6) -> None:
        dice = random.Random(seed)
        self._pods = pods
        self._systems = [_tokens(dice, 512) for _ in range(systems)]
        self._known: set[int] = set()
        self._dice = [random.Random(dice.random()) for _ in range(clients)]
        self._turns = turns
        self._in_turn = 0
        self.figures = Figures()
        self.failed: list[str] = []

    def begin(self) -> Figures:
        """Count anew from here on."""
        self.figures = Figures()
        return self.figures

    async def more(self, requests: int) -> Figures:
        """Return once so many more have been answered; what was counted meanwhile."""
        figures = self.begin()
        await eventually(lambda: figures.requests >= requests, 3 * SECONDS)
        return figures

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with beside(*[self._client(number) for number in range(len(self._dice))]):
            yield

    async def _client(self, number: int) -> None:
        dice = self._dice[number]
        async with aiohttp.ClientSession() as client:
            while True:
                at = dice.randrange(len(self._systems))
                said, known = list(self._systems[at]), len(self._systems[at]) if at in self._known else 0
                for _ in range(dice.randrange(2, 2 * self._turns - 1)):
                    said = said + _tokens(dice, dice.randrange(32, 160))
                    try:
                        await self._one(client, said, known)
                    except asyncio.CancelledError:
                        raise
                    except Exception as error:
                        self.failed.append(repr(error))
                        await asyncio.sleep(0.05)
                    self._known.add(at)
                    known = len(said) // BLOCK * BLOCK

    async def _one(self, client: aiohttp.ClientSession, prompt: Sequence[int], known: int) -> None:
        ready = self._pods.ready
        assert ready, "no gateway is ready"
        self._in_turn += 1
        pod = ready[self._in_turn % len(ready)]
        figures = self.figures
        body = {"model": MODEL, "prompt": list(prompt), "max_tokens": 16}
        begun = asyncio.get_running_loop().time()
        async with client.post(pod.url + PATH, json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
        usage = answer["usage"]
        figures.requests += 1
        figures.prompt_tokens += usage["prompt_tokens"]
        figures.cached_tokens += (usage["prompt_tokens_details"] or {"cached_tokens": 0})["cached_tokens"]
        figures.known_tokens += known
        figures.asked[response.headers["x-kvlb-replica"]] += 1
        figures.by[pod.host] += 1
        figures.spans.append((response.headers["x-kvlb-replica"], begun, asyncio.get_running_loop().time()))


def _tokens(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(300, 30_000) for _ in range(count)]
