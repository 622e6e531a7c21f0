"""Real vLLM engines for tests: a server on the CPU with a tiny model, started, waited for and stopped.

Knows vLLM 0.32.0's command line and what its CPU build needs. Never imports vLLM: it runs in an interpreter of its own (see
``environment``). An engine has children, so it is ended as a process group.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from simulations.demo import free_ports as any_ports
from tests.real.environment import vllm_python

MODEL_NAME: Final = "tiny"
BLOCK_SIZE: Final = 32
"""The smallest that attention on the CPU takes."""

START_SECONDS: Final = 240.0
"""An engine alone takes 40 s to start on two cores, mostly imports."""

_MAKE_MODEL = Path(__file__).with_name("make_tiny_model.py")

_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache and its kind
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",  # the first request would wait up to 90 s for a compiler
}


class Shape(NamedTuple):
    """Of a model: its layers, and how wide they are, a multiple of 128."""

    layers: int
    width: int


TINY: Final = Shape(2, 128)


def tiny_model(shape: Shape = TINY) -> Path:
    """The folder of the tiny model, made on first use; one for each shape, and version of the script that makes it."""
    version = hashlib.sha256(_MAKE_MODEL.read_bytes() + repr(tuple(shape)).encode()).hexdigest()[:12]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kvlb" / f"tiny-model-{version}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "model"
        subprocess.run(
            [vllm_python(), _MAKE_MODEL, made, *map(str, shape)], check=True, capture_output=True, timeout=300
        )
        with contextlib.suppress(OSError):  # another test was faster
            shutil.move(made, folder)
    return folder


class RealEngine:
    """A running engine; mutable. ``url``, ``events`` and ``replay`` are addresses of data-parallel rank 0."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", log: Path, port: int, event_port: int, sockets: Path
    ) -> None:
        self.process = process
        self._sockets = sockets
        self.log = log
        self.url = f"http://127.0.0.1:{port}"
        self.events = f"tcp://127.0.0.1:{event_port}"
        self.replay = f"tcp://127.0.0.1:{event_port + 10}"

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Return once ``/health`` is 200.

        Raises:
            AssertionError: the engine has ended, or is not ready in time; with the end of its log.
        """
        deadline = time.monotonic() + seconds
        while not self._is_healthy():
            assert self.process.poll() is None, f"vLLM ended with {self.process.returncode}:\n{self.tail()}"
            assert time.monotonic() < deadline, f"vLLM is not ready after {seconds:g} s:\n{self.tail()}"
            time.sleep(0.5)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def post(self, path: str, body: object = None) -> object:
        """The decoded answer to a POST with a JSON body.

        Raises:
            AssertionError: the status is not 200.
        """
        request = urllib.request.Request(
            self.url + path, msgspec.json.encode(body), {"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                answer = response.read()
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{path}: {error.code} {error.read()!r}") from None
        return msgspec.json.decode(answer) if answer else None

    def get(self, path: str) -> bytes:
        """The body of the answer to a GET."""
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            body: bytes = response.read()
            return body

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End it and its children; the ports are free when this returns."""
        self._signal(signal.SIGTERM)
        try:
            self.process.wait(3)  # left alone, vLLM takes half a minute to go
            shutil.rmtree(self._sockets, ignore_errors=True)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it and its children as a crash does."""
        self._signal(signal.SIGKILL)
        self.process.wait(30)
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def free_ports() -> tuple[int, int]:
    """A port for HTTP, and one for events that has another free one 10 above it."""
    while True:
        http, events = any_ports(2)
        with socket.socket() as replay, contextlib.suppress(OSError):
            replay.bind(("", events + 10))
            if http != events + 10:
                return http, events


def start_engine(
    port: int,
    event_port: int,
    *args: str,
    env: Mapping[str, str] | None = None,
    kv_bytes: str = "12M",
    max_model_len: int = 4096,
    shape: Shape = TINY,
    log: Path | None = None,
    python: Path | None = None,
) -> RealEngine:
    """Start an engine without waiting for it. Replay is on ``event_port`` + 10, so that ranks have the ports between.

    Args:
        port: of its HTTP API, on 127.0.0.1.
        event_port: of its KV events.
        args: more arguments for vLLM.
        env: more environment variables.
        kv_bytes: memory for the cache; a token of the smallest model takes 2 KiB, so "12M" is 192 blocks of 32 tokens.
        max_model_len: longest sequence in tokens; it must fit into the cache.
        shape: of the model.
        log: file for its output; a new one in the system's folder if None.
        python: interpreter that has vLLM and what it needs besides; the usual one if None.
    """
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{event_port}",
        "replay_endpoint": f"tcp://*:{event_port + 10}",
    }
    command = [
        *(str(python or vllm_python()), "-m", "vllm.entrypoints.launchers.api_server.entry"),
        *("--model", str(tiny_model(shape)), "--served-model-name", MODEL_NAME),
        *("--host", "127.0.0.1", "--port", str(port)),
        # bfloat16 ends in an illegal instruction on some CPUs.
        *("--dtype", "float32", "--enforce-eager", "--block-size", str(BLOCK_SIZE)),
        *("--max-model-len", str(max_model_len), "--kv-cache-memory-bytes", kv_bytes),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-scale-out"),
        *("--kv-events-config", msgspec.json.encode(events).decode()),
        *args,
    ]
    if log is None:
        handle, name = tempfile.mkstemp(prefix="kvlb-vllm-", suffix=".log")
        os.close(handle)
        log = Path(name)
    sockets = Path(tempfile.mkdtemp(prefix="kvlb-"))  # an engine that is killed leaves those between its processes
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**inherited, **_ENVIRONMENT, "VLLM_RPC_BASE_PATH": str(sockets), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return RealEngine(process, log, port, event_port, sockets)


@contextlib.contextmanager
def running_engine(port: int, event_port: int, *args: str, **options: object) -> Iterator[RealEngine]:
    """An engine that is ready, stopped when the block is left; arguments as for ``start_engine``."""
    engine = start_engine(port, event_port, *args, **options)  # type: ignore[arg-type]
    try:
        engine.wait_ready()
        yield engine
    finally:
        if engine.process.poll() is None:
            engine.stop()
