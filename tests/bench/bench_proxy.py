"""What the gateway costs a request and a chunk: ``python -m tests.bench.bench_proxy``, one JSON line a case.

A real ``kvlb serve`` process before two replicas of raw bytes, asked by clients of raw bytes. Figures are the time that the
threads of the gateway and its children were on a CPU (Linux: ``schedstat``), so that neither clients nor replicas count.
Tokenising is off: texts are routed by load, token ids by cache, with chain, match, choice and expectation. The replicas publish
KV events, hashed as vLLM 0.32 does, so that recipes are proven and matches are exact: each line repeats what the gateway says
of its ``knowledge``, and the share of prompt tokens that it took for cached.

cold: no prompt was seen before, and nothing is published of its blocks. told: the same, and its replica publishes its blocks,
512 an event, which have to be read, too. warm: all were seen and published, and are held. burst: the chunks of a stream come as
fast as they can be sent; paced: each by itself. added: how much later a whole answer is there than without the gateway, one
request at a time.
"""

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from balancer.commands.loop import run_loop
from hashing.chain import Chain
from hashing.recipes import Recipe
from indexer.events import BlockStored, KVEvent
from simulations.fake.encoding import EventEncoder
from simulations.fake.publisher import EventPublisher
from simulations.fake.releases import NEWEST, Release
from tests.bench.front import PACED, PAUSE_SECONDS, Front, added, burst, paced, per_request
from tests.bench.raw_clients import CHAT, COLD, COMPLETIONS, chat, token_ids
from tests.bench.report import report
from tests.support.gateways import get
from tests.support.processes import ROOT, wait_for
from tests.support.upstream import Answer, Received, upstream

CHUNK: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
ENDS: Final = (b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9}}\n\n', b"data: [DONE]\n\n")
ANSWER: Final = json.dumps({"choices": [{"text": "word " * 100}], "usage": {"prompt_tokens": 9}}).encode()
REPLICAS: Final = 2
RECIPE: Final = Recipe.for_version(NEWEST, algorithm="sha256", block_size=16)
BLOCKS_PER_EVENT: Final = 512
PROOF: Final = range(64)
"""Tokens that are published before anything is asked: from them the gateway learns that it hashes as the replica does."""

SIGN_OF_LIFE: Final = 16
"""Requests after which a block of another prompt is published: from 50 on, a silent publisher is doubted."""

EXACT: Final = "exact: its recipe is proven by its own events"


# The replicas, in a process of their own


class Cache:
    """What one replica has published. It computes and evicts nothing."""

    def __init__(self) -> None:
        self._release = Release(NEWEST)
        self._publisher = EventPublisher(self._release, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", "")
        self._encoder = EventEncoder(self._release, RECIPE)
        self._told: set[bytes] = set()
        self._asked = 0
        self.tell(msgspec.json.encode(list(PROOF)))

    def sources(self) -> bytes:
        told = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": ""}
        told |= {"endpoint": self._publisher.events, "replay_endpoint": self._publisher.replay}
        return msgspec.json.encode({"0": told})

    def tell(self, prompt: bytes) -> None:
        """Publish the blocks of a prompt (JSON), unless that was done before."""
        if prompt in self._told:
            return
        self._told.add(prompt)
        tokens = msgspec.json.decode(prompt, type=list[int])
        keys = Chain(RECIPE, tokens).keys(len(tokens))
        for first in range(0, len(keys), BLOCKS_PER_EVENT):
            some = keys[first : first + BLOCKS_PER_EVENT]
            covered = tokens[16 * first : 16 * (first + len(some))]
            raw = msgspec.Raw(msgspec.msgpack.encode(covered))
            event: KVEvent = BlockStored(some, keys[first - 1] if first else None, raw, 16, medium="GPU")
            self._publisher.publish(self._encoder.encode(time.time(), [event], 0))

    def answer(self) -> Answer:
        """Answers as a replica that holds this does; a prompt is published where the request asks for that."""

        async def answer_and_tell(request: Received) -> None:
            if b'"user":"told"' in request.body:
                self.tell(request.body[request.body.index(b"[") : request.body.rindex(b"]") + 1])
            if b'"prompt":' in request.body:
                self._asked += 1
                if self._asked % SIGN_OF_LIFE == 0:
                    self.tell(msgspec.json.encode([self._asked] * 16))
            await answer(request)

        return answer_and_tell


async def answer(request: Received) -> None:
    chunks = re.search(rb'"max_(?:completion_)?tokens":(\d+)', request.body)  # some rename it
    if b'"stream":true' not in request.body or chunks is None:
        request.answer(ANSWER)
        return
    request.begin_stream()
    is_paced = int(chunks[1]) >= PACED
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
            cache = Cache()
            replica.paths["/metrics"] = b'vllm:cache_config_info{engine="0",block_size="16"} 1.0\n'
            replica.paths["/v1/models"] = b'{"object":"list","data":[{"id":"m","object":"model","root":"m"}]}'
            replica.paths["/kv_event_sources"] = cache.sources()
            replica.answer = cache.answer()
            replica.received = Forgetful()
            replica.is_question = lambda request: request.path not in {CHAT, COMPLETIONS}
            print(replica.url, flush=True)
        await asyncio.Event().wait()


class Forgetful(list[Received]):
    """Keeps nothing."""

    def append(self, request: Received) -> None:
        pass


# The gateway, in a process of its own


class Gateway(Front):
    """kvlb, which says what it knows."""

    async def knowledge(self) -> dict[str, object]:
        """What the gateway says of its caches, and the share of all prompt tokens that it took for cached."""
        status = json.loads(await self._ask("/kvlb/status"))
        sums = {"prompt": 0.0, "cached": 0.0}
        page = (await self._ask("/metrics")).decode()
        for kind, value in re.findall(r"(?m)^kvlb_routed_(prompt|cached)_tokens_total\{[^}]*\} (\S+)", page):
            sums[kind] += float(value)
        told = sorted({f"{each['knowledge']['state']}: {each['knowledge']['reason']}" for each in status["replicas"]})
        share = round(sums["cached"] / sums["prompt"], 3) if sums["prompt"] else None
        return {"knowledge": told, "cached_share": share}

    async def proven(self) -> None:
        """Return once every replica's recipe has been proven."""
        for _ in range(100):
            if (await self.knowledge())["knowledge"] == [EXACT]:
                return
            await asyncio.sleep(0.2)

    async def _ask(self, path: str) -> bytes:
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(get(path))
        answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return body if b"chunked" not in head.lower() else unchunked(body)


def unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        whole, body = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return whole


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
            yield Gateway(process.pid, ("127.0.0.1", int(port)))
        finally:
            process.kill()
            process.communicate()


# The cases


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


CASES: Final = (
    "2k", "32k", "8k_cold", "8k_told", "8k_warm", "131k_cold", "131k_told", "131k_warm", "burst", "paced_100", "paced_500",
    "added",
)  # fmt: skip


PLACES: Final = {"cpu_ms_a_request": 4, "cpu_us_a_chunk": 2, "added_p50_ms": 3, "pace_kept": 2}


async def case(name: str, front: Gateway, direct: tuple[str, int], seconds: float) -> None:
    inputs: dict[str, object] = {"case": name, "seconds": seconds}
    match name.split("_"):
        case ["2k" | "32k"]:
            size, count = {"2k": (2_048, 32), "32k": (32_768, 16)}[name]
            done = await per_request(front, chat(size), count, seconds, 1)
        case ["8k", kind]:
            count = 8
            requests = token_ids(8_192, 64 if kind == "warm" else COLD, is_told=kind != "cold")
            done = await per_request(front, requests, count, seconds, 3)
        case ["131k", kind]:
            count = 2
            requests = token_ids(131_072, 8 if kind == "warm" else COLD, is_told=kind != "cold")
            done = await per_request(front, requests, count, seconds, 3)
        case ["paced", streams]:
            count = int(streams)
            done = await paced(front, count, seconds)
        case ["burst"]:
            count = 16
            done = await burst(front, seconds)
        case _:
            count = 1
            done = await added(front, direct, seconds)
    figures: dict[str, object] = {each: round(value, PLACES.get(each, 1)) for each, value in done.items()}
    if "requests" in done:
        figures |= await front.knowledge()
    report("proxy", {**inputs, "connections": count}, figures)


async def run(only: str, seconds: float) -> None:
    for name in CASES:
        if re.fullmatch(only, name):
            with replicas() as urls, gateway(urls) as front:  # each case with caches of its own
                host, _, port = urls[0].removeprefix("http://").rpartition(":")
                await front.proven()
                await case(name, front, (host, int(port)), seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", action="store_true", help="be the replicas")
    parser.add_argument("--only", default=".*", help="a pattern of cases")
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    run_loop(serve_replicas() if options.replicas else run(options.only, options.seconds))
