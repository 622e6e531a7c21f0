"""What the gateway costs a request and a chunk: ``python -m tests.bench.bench_proxy``, one JSON line a case.

A real ``kvlb serve`` process before two replicas of raw bytes, asked by clients of raw bytes. Figures are the time that the
gateway's threads were on a CPU (Linux: ``schedstat``), so that neither clients nor replicas count; tokenising is off: texts are
routed by load, token ids by cache, with chain, match, choice and expectation. cold: no prompt was seen before; warm: all were,
and are remembered and expected. burst: the chunks of a stream come as fast as they can be sent; paced: each by itself. added:
how much later a whole answer is there than without the gateway, one request at a time.
"""

import argparse
import asyncio
import contextlib
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

from balancer.commands.loop import run_loop
from tests.bench.report import report
from tests.support.gateways import post
from tests.support.processes import ROOT, wait_for
from tests.support.upstream import Received, upstream

CHUNK: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
ENDS: Final = (b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9}}\n\n', b"data: [DONE]\n\n")
ANSWER: Final = json.dumps({"choices": [{"text": "word " * 100}], "usage": {"prompt_tokens": 9}}).encode()
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
PAUSE_SECONDS: Final = 0.05
REPLICAS: Final = 2
COLD: Final = 10**9


# The replicas, in a process of their own


async def answer(request: Received) -> None:
    chunks = re.search(rb'"max_tokens":(\d+)', request.body)
    if b'"stream":true' not in request.body or chunks is None:
        request.answer(ANSWER)
        return
    request.begin_stream()
    is_paced = b'"user":"paced"' in request.body
    for _ in range(int(chunks[1])):
        if request.gone.is_set():
            return
        request.chunk(CHUNK)
        if is_paced:
            await asyncio.sleep(PAUSE_SECONDS)
    for end in (*ENDS, b""):
        request.chunk(end)


async def serve_replicas() -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(REPLICAS):
            replica = await stack.enter_async_context(upstream())
            replica.paths["/metrics"] = b'vllm:cache_config_info{engine="0",block_size="16"} 1.0\n'
            replica.paths["/v1/models"] = b'{"object":"list","data":[{"id":"m","object":"model","root":"m"}]}'
            replica.answer = answer
            replica.received = Forgetful()
            print(replica.url, flush=True)
        await asyncio.Event().wait()


class Forgetful(list[Received]):
    """Keeps nothing."""

    def append(self, request: Received) -> None:
        pass


# The clients


class Client(asyncio.Protocol):
    """One connection: sends a request whenever the last one has its answer."""

    def __init__(self, requests: Callable[[], bytes]) -> None:
        self._requests = requests
        self._sent = 0.0
        self._tail = b""
        self._left: int | None = None
        self.transport: asyncio.Transport
        self.answers = 0
        self.chunks = 0
        self.seconds: list[float] = []
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._send()

    def _send(self) -> None:
        self._left = None
        self._sent = time.perf_counter()
        self.transport.write(self._requests())

    def data_received(self, data: bytes) -> None:
        if self._left is None:
            head, _, data = (self._tail + data).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = re.search(rb"(?i)content-length: (\d+)", head)
            self._left = int(length[1]) if length else -1
            self._tail = b""
        if self._left < 0:
            self.chunks += data.count(b"data: {")
            self._tail = (self._tail + data)[-5:]
            is_whole = self._tail == b"0\r\n\r\n"
        else:
            self._left -= len(data)
            is_whole = self._left == 0
        if is_whole:
            self._tail = b""
            self.answers += 1
            self.seconds.append(time.perf_counter() - self._sent)
            if not self.is_over:
                self._send()


@contextlib.asynccontextmanager
async def clients(address: tuple[str, int], count: int, requests: Callable[[], bytes]) -> AsyncIterator[list[Client]]:
    loop = asyncio.get_running_loop()
    made = [(await loop.create_connection(lambda: Client(requests), *address))[1] for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.is_over = True
            each.transport.abort()
        await asyncio.sleep(0.2)


# The gateway, in a process of its own


class Gateway:
    """The process, and what it has used."""

    def __init__(self, pid: int, address: tuple[str, int]) -> None:
        self.pid = pid
        self.address = address

    def cpu_seconds(self) -> float:
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def rss_mib(self) -> float:
        found = re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024


@contextlib.contextmanager
def gateway(urls: list[str]) -> Iterator[Gateway]:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write("[tokenizer]\nenabled = false\n" + "".join(f"[[replicas]]\nurl = '{url}'\n" for url in urls))
        config.flush()
        words = [sys.executable, "-m", "balancer", "serve", "--config", config.name, "--port", "0"]
        process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            port = next(
                found[1] for line in process.stderr if (found := re.search(r"listening on http://.*:(\d+)", line))
            )
            wait_for(f"http://127.0.0.1:{port}/ready", process)
            time.sleep(0.5)
            yield Gateway(process.pid, ("127.0.0.1", int(port)))
        finally:
            process.kill()
            process.communicate()


# The cases


def chat(size: int, **more: object) -> Callable[[], bytes]:
    """Requests with a body of so many bytes, each another."""
    dice = random.Random(1)
    body = {"model": "m", "messages": [{"role": "user", "content": ""}], **more}
    body["messages"] = [{"role": "user", "content": "w" * (size - len(json.dumps(body)) - 12)}]
    whole = json.dumps(body, separators=(",", ":")).encode()
    return lambda: post(CHAT, whole.replace(b'"w', b'"%012d' % dice.randrange(10**12), 1), close=False)


def token_ids(count: int, prompts: int) -> Callable[[], bytes]:
    """Requests with so many token ids; after ``prompts`` different ones, the first comes again."""
    dice = random.Random(1)
    made: list[bytes] = []

    def request() -> bytes:
        if len(made) < prompts:
            ids = [dice.randrange(128_000) for _ in range(count)]
            made.append(post(COMPLETIONS, json.dumps({"model": "m", "prompt": ids}).encode(), close=False))
            return made[-1]
        made.append(made.pop(0))
        return made[-1]

    return request


async def measured(front: Gateway, inside: list[Client], seconds: float) -> dict[str, float]:
    """What was done in so many seconds, and used for it."""
    for each in inside:
        each.seconds.clear()
    before = front.cpu_seconds(), sum(each.answers for each in inside), sum(each.chunks for each in inside)
    await asyncio.sleep(seconds)
    answers, chunks = sum(each.answers for each in inside) - before[1], sum(each.chunks for each in inside) - before[2]
    return {"cpu": front.cpu_seconds() - before[0], "answers": answers, "chunks": chunks}


async def per_request(
    front: Gateway, name: str, requests: Callable[[], bytes], count: int, seconds: float, warmup: float
) -> None:
    async with clients(front.address, count, requests) as inside:
        await asyncio.sleep(warmup)
        done = await measured(front, inside, seconds)
    report(
        "proxy",
        {"case": name, "connections": count, "seconds": seconds},
        {"cpu_ms_a_request": round(done["cpu"] / done["answers"] * 1e3, 4), "requests": done["answers"]},
    )


async def added(front: Gateway, direct: tuple[str, int], seconds: float) -> None:
    figures: dict[str, float] = {}
    for name, address in (("direct", direct), ("through", front.address)):
        async with clients(address, 1, chat(2048)) as (one,):
            await asyncio.sleep(seconds)
            figures[name] = statistics.median(one.seconds) * 1e3
    extra = figures["through"] - figures["direct"]
    report("proxy", {"case": "added", "seconds": seconds}, {"added_p50_ms": round(extra, 3)})


async def burst(front: Gateway, seconds: float) -> None:
    """Streams of 128 chunks against streams of one: the difference is what the chunks cost."""
    costs = {}
    for chunks in (1, 128):
        async with clients(front.address, 16, chat(2048, max_tokens=chunks, stream=True)) as inside:
            await asyncio.sleep(seconds / 4)
            done = await measured(front, inside, seconds)
            costs[chunks] = done["cpu"] / done["answers"] * 1e6
    figures: dict[str, object] = {"cpu_us_a_chunk": round((costs[128] - costs[1]) / 127, 2)}
    figures["cpu_us_a_stream_of_one"] = round(costs[1], 1)
    report("proxy", {"case": "burst", "connections": 16, "seconds": seconds}, figures)


async def paced(front: Gateway, count: int, seconds: float) -> None:
    idle = front.rss_mib()
    async with clients(front.address, count, chat(2048, max_tokens=100_000, stream=True, user="paced")) as inside:
        await asyncio.sleep(2)
        done = await measured(front, inside, seconds)
        figures: dict[str, object] = {"cpu_us_a_chunk": round(done["cpu"] / done["chunks"] * 1e6, 1)}
        figures |= {"chunks": done["chunks"], "rss_idle_mib": round(idle, 1), "rss_mib": round(front.rss_mib(), 1)}
    report("proxy", {"case": "paced", "connections": count, "seconds": seconds}, figures)


@contextlib.contextmanager
def replicas() -> Iterator[list[str]]:
    """The addresses of replicas that run."""
    words = [sys.executable, "-m", "tests.bench.bench_proxy", "--replicas"]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield [process.stdout.readline().strip() for _ in range(REPLICAS)]
    finally:
        process.kill()
        process.communicate()


CASES: Final = ("2k", "32k", "8k_cold", "8k_warm", "131k_cold", "131k_warm", "burst", "paced_100", "paced_500", "added")


async def case(name: str, front: Gateway, direct: tuple[str, int], seconds: float) -> None:
    match name.split("_"):
        case ["2k"]:
            await per_request(front, name, chat(2_048), 32, seconds, 1)
        case ["32k"]:
            await per_request(front, name, chat(32_768), 16, seconds, 1)
        case ["8k", kind]:
            await per_request(front, name, token_ids(8_192, COLD if kind == "cold" else 64), 8, seconds, 3)
        case ["131k", kind]:
            await per_request(front, name, token_ids(131_072, COLD if kind == "cold" else 8), 2, seconds, 3)
        case ["paced", count]:
            await paced(front, int(count), seconds)
        case ["burst"]:
            await burst(front, seconds)
        case ["added"]:
            await added(front, direct, seconds)


async def run(only: str, seconds: float) -> None:
    with replicas() as urls:
        host, _, port = urls[0].removeprefix("http://").rpartition(":")
        for name in CASES:
            if re.fullmatch(only, name):
                with gateway(urls) as front:
                    await case(name, front, (host, int(port)), seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", action="store_true", help="be the replicas")
    parser.add_argument("--only", default=".*", help="a pattern of cases")
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    run_loop(serve_replicas() if options.replicas else run(options.only, options.seconds))
