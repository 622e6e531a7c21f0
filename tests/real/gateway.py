"""``kvlb serve`` as a process in front of real engines, and the moment when it has applied all that they have published.

Knows the gateway's command line, ``/kvlb/status`` and vLLM's replay protocol. Counts what the engines publish by itself, in the
plainest way there is, so that the gateway's index has something to be held against. Never sleeps blindly: a request is settled
when the publisher's buffer is read to its end and the gateway's index has the same number of copies.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import zmq

from indexer.events import BlockRemoved, BlockStored
from indexer.wire import decode
from tests.real.engines import RealEngine, free_ports, start_engine, tiny_model
from tests.real.traffic import ADAPTERS
from tests.support.several import STAYING

NUM_BLOCKS: Final = 96
ENGINE_ARGS: Final = (
    *("--num-gpu-blocks-override", str(NUM_BLOCKS), "--max-num-batched-tokens", "512"),
    *("--logits-processors", "slow_tokens:SlowTokens"),
    *("--enable-lora", "--max-lora-rank", "8", "--max-loras", str(len(ADAPTERS))),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
"""A pool that the traffic overflows many times, a budget that cuts long prompts into chunks, and requests that take long."""

MAX_MODEL_LEN: Final = 2048

END_MARKER: Final = b"\xff" * 8
SETTLE_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.01


def adapters() -> dict[str, Path]:
    """The LoRA adapters that the engines serve, by name."""
    return {name: tiny_model() / folder for name, folder in zip(ADAPTERS, ("adapter-a", "adapter-b"), strict=True)}


async def wait_for(what: str, condition: Callable[[], Any], seconds: float = SETTLE_SECONDS) -> None:
    """Return when ``condition`` (a coroutine function) has become true.

    Raises:
        AssertionError: it has not within the time, with the last that it returned.
    """
    deadline = time.monotonic() + seconds
    while not (last := await condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s; last seen: {last!r}"
        await asyncio.sleep(POLL_SECONDS)


class Engines:
    """Two engines side by side; mutable: one may be killed and started again at the same place."""

    def __init__(self, folder: Path, logs: list[Path]) -> None:
        self._folder = folder
        self._logs = logs
        self._ports = [free_ports(), free_ports()]
        self.running = [self._start(at) for at in range(2)]

    def _start(self, at: int) -> RealEngine:
        log = self._folder / f"vllm-{at}-{len(self._logs)}.log"
        self._logs.append(log)
        env = {"PYTHONPATH": str(Path(__file__).parent)}  # slow_tokens
        args = [*ENGINE_ARGS, "--lora-modules", *(f"{name}={path}" for name, path in adapters().items())]
        return start_engine(*self._ports[at], *args, env=env, max_model_len=MAX_MODEL_LEN, log=log)

    def restart(self, at: int) -> RealEngine:
        """Another one in its place; not waited for."""
        self.running[at] = self._start(at)
        return self.running[at]

    def stop(self) -> None:
        for engine in self.running:
            if engine.process.poll() is None:
                engine.stop()


class Publications:
    """All that one engine has published so far, counted; mutable."""

    def __init__(self, replay: str) -> None:
        self.next_sequence = 0
        self.held: Counter[int] = Counter()
        self.seen: Counter[str] = Counter()
        self._replay = replay

    def restart(self) -> None:
        """Another engine publishes there now, with an empty cache."""
        self.next_sequence = 0
        self.held.clear()

    def catch_up(self) -> None:
        """Read until nothing is left that the engine had queued when this was called.

        The publisher's thread looks for one question and then for one queued batch, in turns (vLLM 0.32.0,
        ``ZmqEventPublisher._publisher_thread``): two answers in a row without news mean that its queue was empty between them.
        """
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.RCVHWM, 0)
            dealer.setsockopt(zmq.RCVTIMEO, 10_000)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(self._replay)
            self._ask(dealer)
            while self._ask(dealer):
                pass

    def _ask(self, dealer: "zmq.Socket[bytes]") -> int:
        """How many batches were new."""
        new = 0
        dealer.send_multipart([b"", self.next_sequence.to_bytes(8, "big")])
        while (frames := dealer.recv_multipart())[-2] != END_MARKER:
            sequence = int.from_bytes(frames[-2], "big")
            assert sequence == self.next_sequence, "a replayed batch was lost"
            self._apply(frames[-1])
            self.next_sequence += 1
            new += 1
        return new

    def _apply(self, payload: bytes) -> None:
        for event in decode(payload).events:
            self.seen[type(event).__name__] += 1
            if isinstance(event, BlockStored):
                self.held.update(event.block_hashes)
                self.seen["copies"] += sum(self.held[key] > 1 for key in event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.held.subtract(event.block_hashes)
            else:
                self.held.clear()
        self.held = +self.held


class Gateway:
    """The gateway's process, with the engines behind it; ``replicas`` are the names that it gives them."""

    def __init__(self, engines: list[RealEngine], log: Path) -> None:
        self.engines = engines
        self.replicas = [engine.url.removeprefix("http://") for engine in engines]
        self.publications = {
            name: Publications(engine.replay) for name, engine in zip(self.replicas, engines, strict=True)
        }
        self.url = f"http://127.0.0.1:{free_ports()[0]}"
        self._log = log
        self._config = log.with_suffix(".toml")
        self._config.write_text(STAYING)
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "balancer", "serve", "--expose-decisions", "--config", str(self._config)]
        command += ["--port", self.url.rpartition(":")[2], "--snapshot", str(self._log.with_suffix(".snapshot"))]
        for engine in self.engines:
            command += ["--replica", engine.url]
        with self._log.open("ab") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def restart(self) -> None:
        """End it and start another one in its place; not waited for."""
        self.stop()
        self.process = self._start()

    def stop(self) -> int:
        """End it as an operator would.

        Raises:
            subprocess.TimeoutExpired: it is still there after 30 s.
        """
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise

    @asynccontextmanager
    async def session(self) -> AsyncIterator["Session"]:
        """A client; everything that came before is settled."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as http:
            session = Session(self, http)
            await wait_for("replicas ready", session.are_all_ready, 60)
            await session.settle(self.replicas)
            yield session


class Session:
    """One client of the gateway, which may also ask what the gateway knows."""

    def __init__(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.http = http

    async def status(self) -> dict[str, Any]:
        async with self.http.get(self.gateway.url + "/kvlb/status") as response:
            status: dict[str, Any] = await response.json()
            return status

    async def replica(self, name: str) -> dict[str, Any]:
        """What the status page says of one replica; empty before the gateway knows it."""
        replicas: list[dict[str, Any]] = (await self.status())["replicas"]
        return next((replica for replica in replicas if replica["replica"] == name), {})

    async def are_all_ready(self) -> bool:
        try:
            replicas = (await self.status())["replicas"]
        except aiohttp.ClientConnectionError:
            return False
        ready = [replica for replica in replicas if replica["status"] == "ready" and replica["events"] is not None]
        return len(ready) == len(self.gateway.replicas)

    async def audit(self) -> Counter[str]:
        """The gateway's own count of its predictions: exact, over and under."""
        tallies = [replica["predictions"] or {} for replica in (await self.status())["replicas"]]
        return Counter({name: sum(tally.get(name, 0) for tally in tallies) for name in ("exact", "over", "under")})

    async def differences(self) -> list[dict[str, Any]]:
        """The last predictions that were not exact, as the gateway explains them."""
        async with self.http.get(self.gateway.url + "/debug/audit") as response:
            differences: list[dict[str, Any]] = (await response.json())["differences"]
            return differences

    async def settle(self, replicas: list[str]) -> None:
        """Return when no request is open and the index holds all that these replicas have published."""
        for name in replicas:
            publications = self.gateway.publications[name]
            await asyncio.to_thread(publications.catch_up)
            await wait_for(f"{name} settled", lambda: self._is_settled(name))  # noqa: B023  # awaited before the next

    async def _is_settled(self, name: str) -> bool:
        status = await self.status()
        replica = next(replica for replica in status["replicas"] if replica["replica"] == name)
        published = self.gateway.publications[name]
        # The reader's thread is ahead of the index by what is queued between them, so the copies have to agree, too.
        return bool(
            status["open_leases"] == 0
            and replica["events"]["next_sequence"] == published.next_sequence
            and replica["copies"] == published.held.total()
            and replica["blocks"] == len(published.held)
        )
