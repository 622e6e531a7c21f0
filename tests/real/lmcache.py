"""LMCache's multi-process server, and what an engine needs to keep its cache there.

Knows the command line of LMCache 0.5.6 and the settings of vLLM's ``LMCacheMPConnector``. It runs in vLLM's interpreter, with
the packages of ``scripts/real-stores``; it is always ended as a crash ends it.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from simulations.demo import free_ports
from tests.real.environment import store_packages, vllm_python
from tests.real.stores import answers, eventually

CHUNK: Final = 64
"""Tokens that are kept together; LMCache's own default is 256."""

DRIVEN: Final = "lmcache_driven"
"""The way in which engines publish events of what the server keeps; by themselves those on a CPU are ``engine_driven``."""

ANSWER_SECONDS: Final = 30.0
"""How long an engine waits for the server. One that was about to store something when the server died stands still meanwhile;
LMCache's own default is 300 s.
"""

START_SECONDS: Final = 240.0


class LMCacheServer:
    """It and its ports, which stay when it is started again; mutable. ``mode`` is how blocks get there, None as it comes."""

    def __init__(self, folder: Path, mode: str | None = DRIVEN) -> None:
        self.log = folder / "lmcache.log"
        self.mode = mode
        self._port, self._http, self._metrics = free_ports(3)
        self.url = f"http://127.0.0.1:{self._http}"
        self.env = {
            "PYTHONPATH": str(store_packages("lmcache")),
            "LMCACHE_TRACK_USAGE": "false",
            "LMCACHE_DISABLE_BANNER": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin its life; ``wait_ready`` says when it can be used."""
        flags = f"--host 127.0.0.1 --port {self._port} --http-host 127.0.0.1 --http-port {self._http}"
        flags += f" --prometheus-port {self._metrics} --chunk-size {CHUNK} --eviction-policy LRU"
        flags += f" --l1-size-gb 1 --l1-init-size-gb 1 --supported-transfer-mode {self.mode or 'auto'}"
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(vllm_python()), "-m", "lmcache.cli.main", "server", *flags.split()],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Return once its status can be read.

        Raises:
            AssertionError: it has ended, or is not ready in time; with the end of its log.
        """
        process = self._process
        assert process is not None
        eventually(
            "LMCache's server", lambda: process.poll() is not None or answers(self.url + "/status"), START_SECONDS
        )
        assert process.poll() is None, self.log.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """End it as a crash does, with its children."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    @property
    def extra(self) -> dict[str, Any]:
        """``kv_connector_extra_config`` of an engine before it."""
        mode = {} if self.mode is None else {"lmcache.mp.mp_transfer_mode": self.mode}
        place = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self._port}
        return {**place, "lmcache.mp.mq_timeout": ANSWER_SECONDS, **mode}


@contextlib.contextmanager
def lmcache_server(folder: Path, mode: str | None = DRIVEN) -> Iterator[LMCacheServer]:
    """One that has been started; gone when the block is left."""
    made = LMCacheServer(folder, mode)
    try:
        made.start()
        yield made
    finally:
        made.kill()
