"""kvlb as several processes before fake engines, and clients that count what fails.

Knows how to start them, and whom to ask for what. None is left behind.
"""

import asyncio
import contextlib
import json
import random
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from simulations.demo import free_ports
from tests.support.processes import SECONDS, ask, started, wait_for
from tests.support.waiting import beside, eventually

MODEL: Final = "m"
PATH: Final = "/v1/completions"

STAYING: Final = "[policy]\nname = 'cache_aware'\n"
"""Settings with which who asks the same again is sent there again, whatever any clock says of the replicas."""


class Kvlb:
    """A supervisor and what it keeps."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, config: Path) -> None:
        self.process = process
        self.url = url
        self.config = config

    def status(self) -> dict[str, Any]:
        found, _ = ask(f"{self.url}/kvlb/status")
        assert isinstance(found, dict)
        return found

    def brain(self) -> int:
        return int(self.status()["processes"]["brain"])

    def gateways(self) -> dict[int, int]:
        """The process id of each, by its number."""
        return {each["number"]: each["pid"] for each in self.status()["processes"]["gateways"]}

    def knows(self, replicas: int) -> bool:
        """Whether so many caches are known exactly."""
        found = self.status()["replicas"]
        return len(found) == replicas and all(each["knowledge"]["state"] == "exact" for each in found)

    def pids(self) -> set[int]:
        return {self.brain(), *self.gateways().values()}

    def samples(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=SECONDS) as response:
            page = response.read().decode()
        total = 0.0
        for found, value in re.findall(rf"^{name}(?:\{{(.*?)\}})? (\S+)$", page, re.M):
            if all(f'{label}="{wanted}"' in found for label, wanted in labels.items()):
                total += float(value)
        return total

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, told = self.process.communicate(timeout=2 * SECONDS)
        return self.process.returncode, told


@contextlib.contextmanager
def engines(count: int, *flags: str) -> Iterator[list[str]]:
    """Addresses of fake engines."""
    with contextlib.ExitStack() as stack:
        urls = []
        for _ in range(count):
            port, events, replay = free_ports(3)
            words = ("--port", port, "--event-port", events, "--replay-port", replay, "--model", MODEL, *flags)
            process = stack.enter_context(started("fake-engine", *map(str, words)))
            urls.append(f"http://127.0.0.1:{port}")
            wait_for(f"{urls[-1]}/health", process)
        yield urls


@contextlib.contextmanager
def kvlb(urls: Sequence[str], folder: Path, *flags: str, processes: int = 2, more: str = "") -> Iterator[Kvlb]:
    """One before these engines that is ready."""
    (port,) = free_ports(1)
    config = folder / "kvlb.toml"
    config.write_text(
        f"[server]\nport = {port}\nprocesses = {processes}\nexpose_decisions = true\n"
        "drain_grace_seconds = 0.3\n[health]\ninterval_seconds = 0.2\n"
        + "".join(f"[[replicas]]\nurl = '{url}'\n" for url in urls)
        + more
    )
    with started("serve", "--config", str(config), *flags) as process:
        made = Kvlb(process, f"http://127.0.0.1:{port}", config)
        wait_for(f"{made.url}/ready", process)
        until(lambda: len(made.gateways()) == processes and made.knows(len(urls)))
        yield made


def until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Return as soon as it holds; whoever does not answer meanwhile is asked again."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError, json.JSONDecodeError):
            if condition():
                return
        assert time.monotonic() < end, f"still false after {seconds:g} s: {condition}"
        time.sleep(0.02)


class Talks:
    """Conversations that go on and on; each turn repeats what was said before, and begins anew after a while."""

    def __init__(self, count: int = 6) -> None:
        self._dice = random.Random(7)
        self._said = [self._tokens(120) for _ in range(count)]

    def _tokens(self, count: int) -> list[int]:
        return [self._dice.randrange(300, 5_000) for _ in range(count)]

    def next(self) -> list[int]:
        at = self._dice.randrange(len(self._said))
        said = self._said[at]
        self._said[at] = said + self._tokens(24) if len(said) < 900 else self._tokens(120)
        return self._said[at]


class Load:
    """Clients that send one request after the other; ``failed`` has what went wrong."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.done = 0
        self.failed: list[str] = []

    async def one(self, client: aiohttp.ClientSession, prompt: Sequence[int]) -> tuple[str, str, int, int]:
        """(replica, what was promised, predicted, actual) of one request."""
        body = {"model": MODEL, "prompt": list(prompt), "max_tokens": 2}
        async with client.post(self.url + PATH, json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            actual = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            headers = response.headers
            return headers["x-kvlb-replica"], headers["x-kvlb-predicted"], int(headers["x-kvlb-cached-tokens"]), actual

    async def _client(self, talks: Talks) -> None:
        async with aiohttp.ClientSession() as client:
            while True:
                try:
                    await self.one(client, talks.next())
                except asyncio.CancelledError:
                    raise
                except Exception as error:
                    self.failed.append(repr(error))
                    await asyncio.sleep(0.05)
                else:
                    self.done += 1

    async def exact(self, times: int = 16) -> None:
        """Return once so many clients in a row, of every gateway some, are promised what they will find."""
        left, end = times, time.monotonic() + SECONDS
        while left:
            async with aiohttp.ClientSession() as client:  # another connection, which another gateway may take
                _, promise, *_ = await self.one(client, [random.randrange(300, 100_000) for _ in range(98)])
            left = left - 1 if promise == "exact" else times
            assert time.monotonic() < end, f"not all gateways know the fleet after {SECONDS:g} s"

    @contextlib.asynccontextmanager
    async def running(self, clients: int = 6) -> AsyncIterator[None]:
        talks = Talks()
        async with beside(*[self._client(talks) for _ in range(clients)]):
            yield

    async def more(self, count: int = 30) -> None:
        """Return once so many more have been answered."""
        wanted = self.done + count
        await eventually(lambda: self.done >= wanted, SECONDS)
