"""``kvlb demo``: four engines without a GPU, the real gateway, and the same traffic under two policies.

Knows how the pieces are started and stopped, and what is shown. Engines and gateway are processes of their own, and the KV
events are real; only the model is made up. Every number of the table comes from the run before it. Whatever ends the demo ends
its processes too, except SIGKILL, which leaves it no time to.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import platform
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO, Final

import aiohttp
import msgspec

from balancer.commands import Command
from balancer.commands.loop import run_loop, stop_signal
from balancer.errors import BalancerError, ConfigError
from simulations.demo_load import Load, Result, Workload, play

POLICIES: Final = ("round_robin", "predicted_ttft")
MODEL: Final = "demo"
ENGINES: Final = 4
READY_SECONDS: Final = 30.0

ENGINE_FLAGS: Final = (
    "--model", MODEL,
    "--blocks", "1536",
    "--block-size", "16",
    "--max-model-len", "8192",
    "--prefill-tps", "8000",
    "--decode-ms", "12",
)  # fmt: skip
"""Each cache holds 24,576 tokens: a fourth of the conversations, so that it matters where each of them goes."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=12.0, help="length of the traffic under each policy (default 12)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the table to FILE")
    parser.add_argument("--keep", action="store_true", help="leave everything running afterwards, until Ctrl-C")
    parser.add_argument("--port", type=int, default=0, help="port of the gateway (default: a free one)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the traffic (default 1)")


def run(args: argparse.Namespace) -> int:
    if not 0 < args.seconds < math.inf:
        raise ConfigError("--seconds: give a number above 0")
    if args.json is not None and not Path(args.json).absolute().parent.is_dir():
        raise ConfigError(f"--json: there is no folder for '{args.json}'; make it, or name a file elsewhere")
    if args.json is not None and Path(args.json).is_dir():
        raise ConfigError(f"--json: '{args.json}' is a folder; name a file in it")
    return run_loop(_demo(args))


async def _demo(args: argparse.Namespace) -> int:
    stop = stop_signal()
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # with nohup it is ignored, and stays so
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, stop.set)
    show = Display(sys.stderr.isatty())
    work = asyncio.create_task(_all(args, show, stop))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not work.done():
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        return 130
    await work
    return 0


async def _all(args: argparse.Namespace, show: "Display", stop: asyncio.Event) -> None:
    load = Load(seed=args.seed, seconds=args.seconds)
    results: dict[str, Result] = {}
    for name in POLICIES:
        is_last = name == POLICIES[-1]
        async with _fleet(name, args.port, show) as gateway:
            results[name] = await play(load, gateway, MODEL, partial(show.progress, name, args.seconds))
            show.clear()
            if is_last:
                _report(args, load, results)
                if args.keep:
                    _invite(gateway, load)
                    await stop.wait()


def _report(args: argparse.Namespace, load: Load, results: dict[str, Result]) -> None:
    print(table(load, results), flush=True)
    if args.json is not None:
        figures = {name: {**result.figures(), "machine": machine()} for name, result in results.items()}
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _invite(gateway: str, load: Load) -> None:
    body = json.dumps({"model": MODEL, "messages": Workload(load).sample(), "max_tokens": 16})
    print(
        f"\nThe gateway is at {gateway}; send this twice and watch x-kvlb-cached-tokens jump:\n\n"
        f"curl -si {gateway}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n\nCtrl-C ends it.",
        flush=True,
    )


# Processes


class _Process(msgspec.Struct, frozen=True):
    """A process, and the file that has what it says: a pipe would be full some day, since nobody reads it meanwhile."""

    process: asyncio.subprocess.Process
    said: IO[bytes]

    def last_line(self) -> str:
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "silently")


@contextlib.asynccontextmanager
async def _fleet(policy: str, port: int, show: "Display") -> AsyncIterator[str]:
    """Fresh engines, and a gateway with this policy in front of them; gives the gateway's address."""
    processes: list[_Process] = []
    try:
        show.line(f"starting {ENGINES} engines and a gateway with policy {policy} ...")
        ports = free_ports(3 * ENGINES + 1)
        urls = []
        for at in range(ENGINES):
            http, events, replay = ports[3 * at : 3 * at + 3]
            flags = ("--port", http, "--event-port", events, "--replay-port", replay)
            processes.append(await _start("fake-engine", *map(str, flags), *ENGINE_FLAGS))
            urls.append(f"http://127.0.0.1:{http}")
        gateway_port = port or ports[-1]
        replicas = [flag for url in urls for flag in ("--replica", url)]
        serve = ("--port", str(gateway_port), "--policy", policy, "--expose-decisions", "--log-level", "warning")
        await _wait_ready(processes, [f"{url}/health" for url in urls])
        processes.append(await _start("serve", *serve, *replicas))
        gateway = f"http://127.0.0.1:{gateway_port}"
        await _wait_ready(processes, [f"{gateway}/ready"])
        await _wait_replicas(gateway)
        yield gateway
    finally:
        await _end(processes)


async def _start(*words: str) -> _Process:
    said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _end
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "balancer", *words, stdout=asyncio.subprocess.DEVNULL, stderr=said
    )
    return _Process(process, said)


async def _wait_ready(processes: list[_Process], urls: list[str]) -> None:
    """Until every address answers 200.

    Raises:
        BalancerError: a process has ended, or it takes too long.
    """
    until = time.monotonic() + READY_SECONDS
    async with aiohttp.ClientSession() as session:
        for url in urls:
            while not await _answers(session, url):
                ended = next((each for each in processes if each.process.returncode is not None), None)
                if ended is not None:
                    raise BalancerError(f"a process of the demo has ended: {ended.last_line()}")
                if time.monotonic() > until:
                    raise BalancerError(f"{url} does not answer after {READY_SECONDS:g} s; is the machine very busy?")
                await asyncio.sleep(0.05)


async def _wait_replicas(gateway: str) -> None:
    """Until the gateway follows the events of every engine."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(READY_SECONDS):
        while True:
            async with session.get(f"{gateway}/kvlb/status") as response:
                replicas = (await response.json())["replicas"]
            if len(replicas) == ENGINES and all((each["events"] or {}).get("is_connected") for each in replicas):
                return
            await asyncio.sleep(0.05)


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=2)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _end(processes: list[_Process]) -> None:
    for each in reversed(processes):
        with contextlib.suppress(ProcessLookupError):
            each.process.send_signal(signal.SIGINT)
    for each in processes:
        try:
            async with asyncio.timeout(5):
                await each.process.wait()
        except TimeoutError:
            each.process.kill()
            await each.process.wait()
        each.said.close()


PORTS: Final = range(20_000, 32_000)
"""Below those that systems take for connections of their own (Linux from 32768 on): who begins again finds its port free."""


def free_ports(count: int) -> list[int]:
    """TCP ports of this machine that nobody listens on; all different."""
    dice, found = random.SystemRandom(), list[int]()
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            tried, port = stack.enter_context(socket.socket()), dice.choice(PORTS)
            with contextlib.suppress(OSError):
                tried.bind(("127.0.0.1", port))
                found.append(port)
    return found


# What is shown


class Display:
    """A progress line on stderr; on a terminal it is rewritten in place, elsewhere only news are printed."""

    def __init__(self, is_terminal: bool) -> None:
        self._is_terminal = is_terminal

    def line(self, text: str) -> None:
        self._write(text, "\n" if not self._is_terminal else "")

    def progress(self, policy: str, seconds: float, done: Result) -> None:
        if not self._is_terminal:
            return
        share = min(1.0, done.elapsed / seconds)
        bar = "#" * round(20 * share)
        rate = f"{done.token_hit_rate:6.1%}" if done.token_hit_rate is not None else "     -"
        self._write(f"{policy:14s} [{bar:20s}] {done.requests:4d} requests  token hit rate {rate}", "")

    def clear(self) -> None:
        if self._is_terminal:
            self._write("", "")

    def _write(self, text: str, end: str) -> None:
        print(f"\r\x1b[2K{text}" if self._is_terminal else text, end=end, file=sys.stderr, flush=True)


def table(load: Load, results: dict[str, Result]) -> str:
    """The results side by side, with what they were measured on."""
    lines = [
        f"{'policy':14s}{'requests':>9s}{'token hit rate':>16s}{'predicted':>12s}{'actual':>12s}{'exact':>8s}"
        f"{'TTFT p50':>11s}{'TTFT p99':>11s}"
    ]
    for name, result in results.items():
        lines.append(
            f"{name:14s}{result.requests:9d}{_percent(result.token_hit_rate):>16s}{result.predicted:12,d}{result.actual:12,d}"
            f"{_percent(result.exact_share):>8s}{_milliseconds(result.ttft(0.5)):>11s}{_milliseconds(result.ttft(0.99)):>11s}"
        )
        if result.failed:
            lines.append(f"{'':14s}{result.failed} requests failed, the first with: {result.first_failure}")
    lines.append("")
    lines.append(f"{ENGINES} fake engines, {load.describe()}.")
    lines.append(f"Predicted and actual count cached tokens. {machine()}.")
    return "\n".join(lines)


def machine() -> str:
    """What the figures were measured on."""
    return f"kvlb {version('kvlb')}, Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"


command = Command(
    name="demo",
    help="Four engines without a GPU, the real gateway, and the same traffic under round robin and cache-aware routing.",
    configure=configure,
    run=run,
)
