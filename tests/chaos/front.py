"""The kvlb that is tested: one process or several, and what can be seen of it from outside.

Knows its settings, its paths and /proc. Never knows what is done to it.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from simulations.demo import free_ports
from tests.chaos.engines import ROOT

WATCHED: Final = Path(__file__).parent / "watched"

SETTINGS: Final = """
[server]
port = {port}
processes = {processes}
drain_grace_seconds = 0.5
[timeouts]
idle_seconds = {idle}
[hashing]
memory_bytes = 1048576
[tokenizer]
cache_bytes = 1048576
[log]
decisions_kept = 100
[retries]
attempts = {replicas}
"""
"""Memories are small, so that they are full before anybody looks whether something grows. Each replica may be tried, or three
that fail one after the other would be a reason to give up."""

QUICK_PROBES: Final = "[health]\ninterval_seconds = 0.3\ntimeout_seconds = 2.0\n"


def _rss(pid: int) -> int:
    """KiB of memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def _found(status: dict[str, Any]) -> set[str]:
    return {each["endpoint"] for each in status["replicas"] if each["status"] in {"ready", "ejected"}}


class Use(msgspec.Struct, frozen=True):
    """What one process has: ``rss`` in KiB; ``tasks``, and ``blocks`` of Python's memory, None where it does not say."""

    pid: int
    rss: int
    files: int
    tasks: int | None
    blocks: int | None


class Front:
    """``kvlb serve`` before some engines."""

    def __init__(self, urls: Sequence[str], folder: Path, processes: int, idle: float, more: str = "") -> None:
        (self.port,) = free_ports(1)
        self.processes = processes
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "kvlb.log"
        self._folder = folder
        config = folder / "kvlb.toml"
        told = SETTINGS.format(port=self.port, processes=processes, idle=idle, replicas=len(urls)) + more
        config.write_text(told + "".join(f"[[replicas]]\nurl = '{url}'\n" for url in urls))
        environment = {**os.environ, "PYTHONPATH": str(WATCHED), "KVLB_WATCHED": str(folder)}
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "balancer", "serve", "--config", str(config)]
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)

    # What it says

    async def get(self, path: str) -> str:
        def ask() -> str:
            with urllib.request.urlopen(self.url + path, timeout=10) as response:
                return str(response.read().decode())

        return await asyncio.to_thread(ask)

    async def status(self) -> dict[str, Any]:
        found = json.loads(await self.get("/kvlb/status"))
        assert isinstance(found, dict)
        return found

    async def brain(self) -> int:
        return int((await self.until(self.status))["processes"]["brain"])

    async def until(self, ask: Callable[[], Any], holds: Callable[[Any], object] = bool, seconds: float = 120.0) -> Any:
        """The first answer for which it holds; while nobody answers, it is asked again."""
        until, found = time.monotonic() + seconds, None
        while time.monotonic() < until:
            assert self.process.poll() is None, f"kvlb has ended with {self.process.returncode}: {self.log}"
            with contextlib.suppress(OSError, ValueError, LookupError):
                found = await ask()
                if holds(found):
                    return found
            await asyncio.sleep(0.1)
        raise AssertionError(f"still not so after {seconds:g} s: {str(found)[:2000]}")

    async def wait_ready(self, replicas: int) -> None:
        """Return once all of it is there, and so many replicas are found."""
        await self.wait_whole()
        await self.until(self.status, lambda told: len(_found(told)) == replicas)

    async def wait_found(self, url: str) -> None:
        """Return once this replica answers its probes again: one that is left out waits for a trial, but is there."""
        await self.until(self.status, lambda told: url in _found(told))

    async def wait_whole(self) -> None:
        """Return once brain and gateways are there."""

        def is_whole(told: dict[str, Any]) -> bool:
            return self.processes == 1 or len(told["processes"]["gateways"]) == self.processes

        await self.until(self.status, is_whole)

    async def is_idle(self) -> bool:
        """Whether nothing is left of any request: leases, load, and the queue."""
        told, page = await self.status(), await self.get("/metrics")
        waiting = sum(float(value) for value in re.findall(r"^kvlb_admission_waiting\{.*\} (\S+)$", page, re.M))
        load = sum(each["in_flight"] + each["queued_tokens"] for each in told["replicas"])
        gateways = sum(each["requests"] for each in told["processes"]["gateways"])
        return bool(told["open_leases"] == load == waiting == gateways == 0)

    async def counts(self, name: str, label: str) -> dict[str, int]:
        """A metric's samples by one of its labels."""
        found: dict[str, int] = {}
        for labels, value in re.findall(rf"^{name}\{{(.*)\}} (\S+)$", await self.get("/metrics"), re.M):
            key = re.search(rf'{label}="([^"]*)"', labels)
            if key is not None and float(value):
                found[key[1]] = found.get(key[1], 0) + int(float(value))
        return found

    # What it uses

    async def uses(self) -> dict[str, Use]:
        """Of each process, by its role."""
        told = (await self.until(self.status))["processes"]
        pids = {"gateway": self.process.pid}
        if self.processes > 1:
            pids = {"brain": told["brain"]} | {f"gateway {each['number']}": each["pid"] for each in told["gateways"]}
        return {role: await self._use(pid) for role, pid in pids.items()}

    async def _use(self, pid: int) -> Use:
        file = self._folder / f"{pid}.said"
        file.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        tasks = blocks = None
        for _ in range(100):
            await asyncio.sleep(0.02)
            if file.exists() and (said := file.read_text()).endswith("\n"):
                tasks, blocks = map(int, said.split())
                break
        return Use(pid, _rss(pid), len(os.listdir(f"/proc/{pid}/fd")), tasks, blocks)

    # What is done to it

    async def hang_up(self) -> None:
        """SIGHUP: of several processes, all are replaced."""
        before = {use.pid for use in (await self.uses()).values()}
        self.process.send_signal(signal.SIGHUP)
        if self.processes > 1:
            await self.until(self.uses, lambda now: not before & {use.pid for use in now.values()})

    def stop(self) -> tuple[int, str]:
        """(exit code, log)."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return self.process.returncode, self.log.read_text()
