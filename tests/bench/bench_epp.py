"""What the endpoint picker costs a request, and Envoy beside it: ``python -m tests.bench.bench_epp``, one JSON line a case.

A real ``kvlb epp`` process and a real Envoy of one worker before two replicas of raw bytes, asked by clients of raw bytes.
Figures are the time that the threads of each were on a CPU (Linux: ``schedstat``), as in ``tests.bench.bench_proxy``, whose
replicas these are. Bodies have 2 KB: ids are 300 token ids, hashed, matched and chosen for by what the replicas have published;
text goes by load.

watch: both bodies stream both ways, the answer to its end; leave: the picker goes with the answer's headers; buffered: the
request is shown whole, and of the answer the headers alone. gateway: ``kvlb serve`` in place of both.
"""

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from balancer.commands.loop import run_loop
from simulations.demo import free_ports
from tests.bench.bench_proxy import Gateway, gateway, replicas
from tests.bench.front import Front, measured
from tests.bench.raw_clients import chat, clients, token_ids
from tests.bench.report import report
from tests.support.envoy import Wiring, envoy
from tests.support.processes import ROOT, wait_for

CONNECTIONS: Final = 16
WARMUP_SECONDS: Final = 2.0
CASES: Final = ("gateway_ids", "gateway_text", "watch_ids", "watch_text", "leave_ids", "buffered_ids")


@contextlib.contextmanager
def picker(urls: list[str], response: str) -> Iterator[tuple[Gateway, int]]:
    """(its control plane, where it is asked)."""
    http, port = free_ports(2)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(
            f"[server]\nport = {http}\n[tokenizer]\nenabled = false\n[epp]\nhost = '127.0.0.1'\nport = {port}\n"
            f"response = '{response}'\n" + "".join(f"[[replicas]]\nurl = '{url}'\n" for url in urls)
        )
        config.flush()
        words = [sys.executable, "-m", "balancer", "epp", "--config", config.name, "--log-level", "warning"]
        process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        try:
            wait_for(f"http://127.0.0.1:{http}/ready", process)
            yield Gateway(process.pid, ("127.0.0.1", http)), port
        finally:
            process.kill()
            process.communicate()


async def case(name: str, seconds: float) -> None:
    how, kind = name.split("_")
    requests = chat(2_048) if kind == "text" else token_ids(300, 64, is_told=True)
    inputs: dict[str, object] = {"case": name, "seconds": seconds, "connections": CONNECTIONS}
    with contextlib.ExitStack() as stack:
        urls = stack.enter_context(replicas())
        if how == "gateway":
            front = stack.enter_context(gateway(urls))
            beside: Front | None = None
            address = front.address
        else:
            front, port = stack.enter_context(picker(urls, "leave" if how == "leave" else "watch"))
            is_whole = how == "buffered"
            wiring = Wiring(
                port,
                request_body="BUFFERED" if is_whole else "FULL_DUPLEX_STREAMED",
                response_body="NONE" if is_whole else "FULL_DUPLEX_STREAMED",
            )
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            proxy = stack.enter_context(envoy(wiring, Path(folder)))
            address = ("127.0.0.1", int(proxy.url.rpartition(":")[2]))
            beside = Front(proxy.process.pid, address)
        await front.proven()
        async with clients(address, CONNECTIONS, requests) as inside:
            await measured(front, inside, WARMUP_SECONDS)
            before = 0.0 if beside is None else beside.cpu_seconds()
            done = await measured(front, inside, seconds)
            spent = 0.0 if beside is None else beside.cpu_seconds() - before
        figures: dict[str, object] = {
            "requests": int(done["answers"]),
            "picker_ms_a_request": round(1000 * done["cpu"] / done["answers"], 3),
            "envoy_ms_a_request": round(1000 * spent / done["answers"], 3),
            **await front.knowledge(),
        }
    report("epp", inputs, figures)


async def run(only: str, seconds: float) -> None:
    for name in CASES:
        if re.fullmatch(only, name):
            await case(name, seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=".*", help="a pattern of cases")
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    run_loop(run(options.only, options.seconds))
