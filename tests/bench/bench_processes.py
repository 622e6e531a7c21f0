"""What a second gateway process is worth: ``python -m tests.bench.bench_processes``, one JSON line a case.

The replicas and the load are those of ``bench_proxy``. One process and several are measured in turns, several times, in the
same run. Load generator and replicas take CPU of the same machine, so that requests a second on a small one say little of the
gateway; they are printed, and so is what each process was on a CPU for a request (Linux: ``schedstat``). From that follows what
it can do where nothing else takes its cores, by the median of the turns:

- ``by_busiest``: no process can do more than a second of work a second. The ratio of the busiest process' work for a request;
  where each process has a core of its own, several processes take so many times the requests of one.
- ``on_cores``: as many cores as there are gateways, for them and the brain together: the ratio of all work for a request, times
  the number of gateways.
"""

import argparse
import asyncio
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Final

from balancer.commands.loop import run_loop
from tests.bench.bench_proxy import replicas
from tests.bench.front import Front
from tests.bench.raw_clients import COLD, Client, chat, clients, token_ids
from tests.bench.report import report
from tests.support.processes import ROOT, ask, wait_for

CONNECTIONS: Final = 64


class Processes:
    """A kvlb: its processes by role."""

    def __init__(self, address: tuple[str, int], pids: dict[str, int]) -> None:
        self.address = address
        self.parts = {name: Front(pid, address) for name, pid in pids.items()}

    def cpu_seconds(self) -> dict[str, float]:
        return {name: part.cpu_seconds() for name, part in self.parts.items()}


@contextlib.contextmanager
def kvlb(urls: list[str], processes: int) -> Iterator[Processes]:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write("[tokenizer]\nenabled = false\n" + "".join(f"[[replicas]]\nurl = '{url}'\n" for url in urls))
        config.flush()
        words = ["serve", "--config", config.name, "--port", "0", "--processes", str(processes)]
        process = subprocess.Popen(
            [sys.executable, "-m", "balancer", *words], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            port = next(
                int(found[1]) for line in process.stderr if (found := re.search(r"listening on http://.*:(\d+)", line))
            )
            wait_for(f"http://127.0.0.1:{port}/ready", process)
            told = ask(f"http://127.0.0.1:{port}/kvlb/status")[0]["processes"]
            pids = {f"gateway {each['number']}": each["pid"] for each in told["gateways"]}
            if told["brain"] is not None:
                pids["brain"] = told["brain"]
            time.sleep(0.5)
            yield Processes(("127.0.0.1", port), pids)
        finally:
            process.kill()  # its children end by themselves
            process.communicate()


async def measured(urls: list[str], processes: int, requests: Callable[[], bytes], seconds: float) -> dict[str, float]:
    """Requests a second, and milliseconds of each process for a request."""
    with kvlb(urls, processes) as front:
        async with clients(front.address, CONNECTIONS, requests) as inside:
            await asyncio.sleep(seconds / 2)
            before, begun, done = front.cpu_seconds(), time.perf_counter(), _answers(inside)
            await asyncio.sleep(seconds)
            answers, passed = _answers(inside) - done, time.perf_counter() - begun
            used = {name: value - before[name] for name, value in front.cpu_seconds().items()}
    return {"a_second": answers / passed, **{name: value / answers * 1e3 for name, value in used.items()}}


def _answers(inside: list[Client]) -> int:
    return sum(each.answers for each in inside)


async def case(
    urls: list[str], name: str, requests: Callable[[], Callable[[], bytes]], options: argparse.Namespace
) -> None:
    counts = (1, options.processes)
    turns: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    for _ in range(options.turns):
        for count in counts:
            turns[count].append(await measured(urls, count, requests(), options.seconds))
    middle = {
        count: {part: statistics.median(turn[part] for turn in found) for part in found[0]}
        for count, found in turns.items()
    }
    one, many = ([value for part, value in middle[count].items() if part != "a_second"] for count in counts)
    report(
        "processes",
        {"case": name, "connections": CONNECTIONS, "seconds": options.seconds, "turns": options.turns},
        {
            "requests_a_second": {str(count): round(middle[count]["a_second"]) for count in counts},
            "cpu_ms_a_request": {
                str(count): {part: round(value, 4) for part, value in middle[count].items() if part != "a_second"}
                for count in counts
            },
            "by_busiest": round(max(one) / max(many), 2),
            "on_cores": round(options.processes * sum(one) / sum(many), 2),
        },
    )


async def run(options: argparse.Namespace) -> None:
    cases: dict[str, Callable[[], Callable[[], bytes]]] = {
        "2k": lambda: chat(2_048),
        "32k": lambda: chat(32_768),
        "8k_warm": lambda: token_ids(8_192, 64, is_told=True),
        "8k_cold": lambda: token_ids(8_192, COLD, is_told=False),
    }
    with replicas() as urls:
        for name, requests in cases.items():
            if re.fullmatch(options.only, name):
                await case(urls, name, requests, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=".*", help="a pattern of cases")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    run_loop(run(parser.parse_args()))
