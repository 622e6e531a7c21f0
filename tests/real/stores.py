"""``kvlb serve`` with a settings file in front of real engines that share a store, and what it says of them.

Knows the gateway's command line and its JSON. Keeps to one thread: tests ask, and wait until what they wait for is so.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.real.engines import MODEL_NAME, RealEngine, free_ports, start_engine
from tests.support.several import STAYING

SECONDS: Final = 40.0


def prompt(seed: int, length: int = 100) -> list[int]:
    """Token ids that no other seed has."""
    dice = random.Random(seed)
    return [dice.randrange(10, 1000) for _ in range(length)]


class Fleet:
    """A gateway and its engines; mutable only in what the engines do."""

    def __init__(self, engines: Sequence[RealEngine], url: str) -> None:
        self.engines = engines
        self.names = [engine.url.removeprefix("http://") for engine in engines]
        self.url = url

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            return json.load(response)

    def post(self, path: str, body: object = None) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(asked, timeout=120) as response:
            text = response.read()
            return (json.loads(text) if text else None), dict(response.headers)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as response:
            page = response.read().decode()
        lines = [line for line in page.splitlines() if line.startswith(name)]
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(each in line for each in wanted))

    def complete(self, tokens: list[int], max_tokens: int = 8, **more: Any) -> tuple[str, int, list[int]]:
        """Which replica answered, how many tokens it says were cached, and what came out."""
        body = {"model": MODEL_NAME, "prompt": tokens, "max_tokens": max_tokens, "temperature": 0, **more}
        answer, headers = self.post("/v1/completions", {**body, "return_token_ids": True})
        details = answer["usage"]["prompt_tokens_details"] or {}
        return headers["x-kvlb-replica"], details.get("cached_tokens") or 0, answer["choices"][0]["token_ids"]

    def explain(self, tokens: list[int]) -> dict[str, dict[str, Any]]:
        """By replica, what each candidate would have and could load."""
        told, _ = self.post("/debug/explain?path=/v1/completions", {"model": MODEL_NAME, "prompt": tokens})
        return {each["replica"]: each for each in told["candidates"]}

    def decided(self, tokens: list[int]) -> dict[str, Any]:
        """Where it would go now, and what would be done there."""
        told, _ = self.post("/debug/explain?path=/v1/completions", {"model": MODEL_NAME, "prompt": tokens})
        return dict(told)

    def last(self) -> dict[str, Any]:
        """The last decision."""
        (found,) = self.get("/debug/decisions?limit=1")["decisions"]
        return dict(found)

    def loadable(self, tokens: list[int]) -> dict[str, dict[str, int]]:
        return {name: each.get("loadable", {}) for name, each in self.explain(tokens).items()}

    def store(self) -> dict[str, Any]:
        """The only store, as the status page has it."""
        (store,) = self.get("/kvlb/status")["stores"]
        return dict(store)

    @contextlib.contextmanager
    def without(self, at: int) -> Iterator[None]:
        """As long as the block lasts, nothing is sent to this engine."""
        name = quote(self.names[at], safe="")
        self.post(f"/kvlb/replicas/{name}/drain")
        try:
            yield
        finally:
            self.post(f"/kvlb/replicas/{name}/undrain")


def eventually(what: str, condition: Callable[[], Any], seconds: float = SECONDS) -> None:
    """Return when the condition is true.

    Raises:
        AssertionError: it is not within the time.
    """
    until = time.monotonic() + seconds
    while not (last := condition()):
        assert time.monotonic() < until, f"{what}: not within {seconds:g} s; last seen: {last!r}"
        time.sleep(0.05)


@contextlib.contextmanager
def fleet(
    folder: Path, store: str, *engine_args: Sequence[str], env: dict[str, str] | None = None, more: str = STAYING
) -> Iterator[Fleet]:
    """An engine for each list of arguments, and a gateway that knows ``store`` (TOML of one ``[[stores]]``).

    ``more`` are its other settings.
    """
    places = [free_ports() for _ in engine_args]
    engines = [
        start_engine(*place, *args, env=env, max_model_len=1024, kv_bytes="4M", log=folder / f"vllm-{at}.log")
        for at, (place, args) in enumerate(zip(places, engine_args, strict=True))
    ]
    try:
        for engine in engines:
            engine.wait_ready()
        with before(folder, engines, store, more) as found:
            yield found
    finally:
        for engine in engines:
            engine.stop()


@contextlib.contextmanager
def before(
    folder: Path, engines: Sequence[RealEngine], store: str, more: str = STAYING, *flags: str
) -> Iterator[Fleet]:
    """A gateway of its own before engines that run."""
    replicas = "".join(f'[[replicas]]\nurl = "{engine.url}"\n' for engine in engines)
    settings = folder / "kvlb.toml"
    settings.write_text(f"{more}{replicas}[[stores]]\n{store}")
    found = Fleet(engines, f"http://127.0.0.1:{free_ports()[0]}")
    command = [sys.executable, "-m", "balancer", "serve", "--expose-decisions", "--config", str(settings), *flags]
    with (folder / "kvlb.log").open("ab") as output:
        process = subprocess.Popen(
            [*command, "--port", found.url.rpartition(":")[2]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        eventually("replicas ready", lambda: _are_ready(found, len(engines)), 60)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _are_ready(found: Fleet, count: int) -> bool:
    try:
        replicas = found.get("/kvlb/status")["replicas"]
    except OSError:
        return False
    ready = [each for each in replicas if each["status"] == "ready" and (each["events"] or {}).get("is_connected")]
    return len(ready) == count


def free_port() -> int:
    return free_ports()[0]


@contextlib.contextmanager
def server(
    command: Sequence[str], log: Path, env: dict[str, str] | None = None, ready: str = ""
) -> Iterator["subprocess.Popen[bytes]"]:
    """A store's own process, answering at ``ready`` (a URL) where one is given; gone when the block is left."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        if ready:
            eventually("store's server", lambda: process.poll() is not None or answers(ready), 180)
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
