"""Processes of ours, as users start them.

Knows how to start, end and ask them. None is left behind.
"""

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 30.0


@contextlib.contextmanager
def started(*words: str) -> Iterator["subprocess.Popen[str]"]:
    """A process of ours; it is ended, at the latest, with the block."""
    command = [sys.executable, "-m", "balancer", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with kept(process):
        yield process


@contextlib.contextmanager
def kept(process: "subprocess.Popen[str]") -> Iterator[None]:
    """It has ended when the block has, whatever happens there."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finished(*words: str, seconds: float = SECONDS) -> tuple[int, list[str]]:
    """(exit code, lines on stderr) of a process that ends by itself, within so many seconds."""
    with started(*words) as process:
        _, told = process.communicate(timeout=seconds)
        return process.returncode, told.splitlines()


def stopped(process: "subprocess.Popen[str]", number: int = signal.SIGINT) -> tuple[int, str]:
    """(exit code, stderr) of a process that is asked to end; SIGTERM gives a gateway's clients time to go elsewhere."""
    process.send_signal(number)
    _, told = process.communicate(timeout=SECONDS)
    return process.returncode, told


def ask(url: str, body: dict[str, Any] | None = None) -> tuple[Any, dict[str, str]]:
    """(body, headers) of a good answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        content = response.read()
        return json.loads(content) if content else None, dict(response.headers)


def wait_for(url: str, process: "subprocess.Popen[str]") -> None:
    """Return once the address answers with 200."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            ask(url)
        except OSError:
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < until, f"{url} does not answer"
            time.sleep(0.02)
        else:
            return
