"""kvlb and other routers in front of two real vLLM engines: ``python -m tests.bench.bench_routers_real --peers DIR --rate R``.

Run from the root of the checkout; vLLM's CPU build is found as by the tests in ``tests/real``, the peers are those of
``bench_peers``, whose ``--install`` makes DIR. Each engine is kept on one core. A round plays the same chats (``chats``: the
same bytes at the same times, whatever has been answered) once through each router, alone and newly started, in an order that is
drawn for each round, on engines whose caches were reset; the next round draws other chats. Requests stream; every one has the
header ``x-session-id`` of its conversation, which some routers go by. The time to the first token is the client's, from the
moment when the request should have been sent. Requests of the first ``--warmup`` seconds, when all caches are empty, are sent
and not counted.

With ``--calibrate`` it says how many requests a second the engines sustain behind round robin, everything being sent four times
as fast as ``--rate`` says, which is to be more than they can take; for the runs, ``--rate`` is to be somewhat below. With
``--engine URL`` (twice) those engines are asked that run already; with ``--samples FILE`` rounds are added to those in it, so
that a run can be cut in pieces. With ``--keep DIR`` it is kept there what each kvlb said of itself at the end of its run.

The report has a line a router, each figure as the mean over the rounds with the lowest and the highest; ``to_kvlb`` is that of
the router divided by kvlb's own of the same round: above 1, kvlb is the quicker one.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any, Final

import aiohttp
import msgspec

from tests.bench.bench_fidelity import CHUNK, SHAPE, running
from tests.bench.chats import Chat, Load, chats
from tests.bench.peers import Peer, peers
from tests.bench.peers import running as serving
from tests.bench.report import report
from tests.real.engines import MODEL_NAME

KVLB: Final = "kvlb/predicted_ttft"
OURS: Final = ("predicted_ttft", "cache_aware", "round_robin")
THEIRS: Final = r"vllm-router/.*|sglang-router/.*"
BASELINE: Final = "vllm-router/round_robin"
OVERLOAD: Final = 4.0
LIMIT_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 30.0
SETTLE_SECONDS: Final = 4.0
"""For what a router does first: kvlb reads again what the engines have published in the runs before."""


class Answered(msgspec.Struct):
    """What came of one request, in seconds and tokens; ``failed`` says why there is nothing else."""

    at: float
    ttft: float = 0.0
    seconds: float = 0.0
    prompt: int = 0
    cached: int = 0
    answer: int = 0
    failed: str = ""


class Played(msgspec.Struct):
    """One router's part of a round. ``ttfts`` and the counts are those of the requests that count.

    ``cpu_ms`` is what the router's processes have used for each of all requests.
    """

    round: int
    place: int
    router: str
    requests: int
    failed: list[str]
    ttfts: list[float]
    latencies: list[float]
    prompt_tokens: int
    cached_tokens: int
    seconds: float
    cpu_ms: float = 0.0

    def figures(self) -> dict[str, float]:
        """In ms, and the share of prompt tokens that engines found in their caches."""
        return {
            "ttft_mean_ms": fmean(self.ttfts) * 1e3,
            "ttft_p50_ms": quantiles(self.ttfts, n=20, method="inclusive")[9] * 1e3,
            "ttft_p95_ms": quantiles(self.ttfts, n=20, method="inclusive")[18] * 1e3,
            "latency_mean_ms": fmean(self.latencies) * 1e3,
            "cached_share": self.cached_tokens / self.prompt_tokens,
            "router_cpu_ms": self.cpu_ms,
        }


async def ask(http: aiohttp.ClientSession, url: str, chat: Chat, began: float) -> Answered:
    """It is sent when it is due, and never fails."""
    await asyncio.sleep(began + chat.at - time.monotonic())
    seen = Answered(chat.at)
    headers = {"Content-Type": "application/json", "x-session-id": chat.session}
    try:
        async with http.post(url + "/v1/chat/completions", data=chat.body, headers=headers) as response:
            if response.status != 200:
                seen.failed = f"{response.status} {(await response.text())[:200]}"
                return seen
            async for line in response.content:
                if line.startswith(b"data: {"):
                    _read(seen, json.loads(line[6:]), time.monotonic() - began - chat.at)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        seen.failed = repr(error)
    seen.seconds = time.monotonic() - began - chat.at
    if not seen.failed and not (seen.ttft and seen.answer):
        seen.failed = "no token, or no usage"
    return seen


def _read(seen: Answered, event: dict[str, Any], now: float) -> None:
    if "error" in event:
        seen.failed = str(event["error"])[:200]
    elif event["choices"]:
        seen.ttft = seen.ttft or now
    if usage := event.get("usage"):
        seen.prompt, seen.answer = usage["prompt_tokens"], usage["completion_tokens"]
        seen.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


async def play(url: str, load: list[Chat]) -> list[Answered]:
    """All of it, open loop."""
    timeout = aiohttp.ClientTimeout(total=LIMIT_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
        began = time.monotonic() + 0.2
        return await asyncio.gather(*(ask(http, url, chat, began) for chat in load))


def counted(answered: list[Answered], warmup: float, number: int, place: int, router: str) -> Played:
    """What came of the requests that count."""
    wanted = [each for each in answered if each.at >= warmup]
    good = [each for each in wanted if not each.failed]
    return Played(
        round=number,
        place=place,
        router=router,
        requests=len(wanted),
        failed=[each.failed for each in wanted if each.failed],
        ttfts=[each.ttft for each in good],
        latencies=[each.seconds for each in good],
        prompt_tokens=sum(each.prompt for each in good),
        cached_tokens=sum(each.cached for each in good),
        seconds=max(each.at + each.seconds for each in answered),
    )


def empty(urls: list[str]) -> None:
    """Wait until the engines do nothing, and have them forget what they hold."""
    for url in urls:
        until = time.monotonic() + IDLE_SECONDS
        while not _is_idle(url):
            assert time.monotonic() < until, f"{url} is busy and nothing is asked"
            time.sleep(0.1)
        urllib.request.urlopen(urllib.request.Request(url + "/reset_prefix_cache", method="POST"), timeout=10).close()


def _is_idle(url: str) -> bool:
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    gauges = re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", text, re.MULTILINE)
    assert gauges, f"{url}/metrics does not say what runs"
    return not any(map(float, gauges))


def ours(urls: list[str]) -> list[Peer]:
    words = [sys.executable, "-m", "balancer", "serve", "--port", "{port}"]
    for url in urls:
        words += ["--replica", url]
    return [Peer(f"kvlb/{policy}", "this checkout", [*words, "--policy", policy]) for policy in OURS]


def contenders(options: argparse.Namespace, urls: list[str]) -> tuple[list[Peer], dict[str, str]]:
    """Who takes part, and of the others of whom that was asked why not."""
    found, missing = peers(options.peers, urls)
    theirs = [peer for peer in found if re.fullmatch(THEIRS, peer.name)]
    some = [peer for peer in [*ours(urls), *theirs] if re.fullmatch(options.contenders, peer.name)]
    return some, {name: why for name, why in missing.items() if name in ("vllm-router", "sglang-router")}


def run_of(
    peer: Peer, urls: list[str], load: list[Chat], folder: Path, keep: Path | None = None
) -> tuple[list[Answered], float]:
    """One router's run, on empty caches, and the milliseconds of CPU that it has used for a request."""
    empty(urls)
    with serving(peer, folder / peer.name.replace("/", "-"), MODEL_NAME) as front:
        url = f"http://{front.address[0]}:{front.address[1]}"
        time.sleep(SETTLE_SECONDS)
        empty(urls)  # of the trial by which it was seen to serve
        before = front.cpu_seconds()
        answered = asyncio.run(play(url, load))
        cpu_ms = (front.cpu_seconds() - before) / len(load) * 1e3
        if keep is not None and peer.name.startswith("kvlb"):
            keep.mkdir(parents=True, exist_ok=True)
            for path in ("/kvlb/status", "/metrics", "/debug/decisions"):
                with urllib.request.urlopen(url + path, timeout=10) as answer:
                    (keep / f"{peer.name}{path}".replace("/", "-")).write_bytes(answer.read())
            (keep / f"{peer.name.replace('/', '-')}-answers.json").write_bytes(msgspec.json.encode(answered))
    first = answered[0]
    assert first.failed or not first.cached, f"{peer.name}: the caches were not empty"
    return answered, cpu_ms


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def spread(values: list[float], digits: int) -> dict[str, float]:
    return {
        "mean": round(fmean(values), digits),
        "low": round(min(values), digits),
        "high": round(max(values), digits),
    }


def tell(samples: list[Played], inputs: dict[str, object]) -> None:
    """A line a router."""
    by_router: dict[str, dict[int, Played]] = {}
    for each in samples:
        by_router.setdefault(each.router, {})[each.round] = each
    kvlb = by_router.get(KVLB, {})
    for router, rounds in by_router.items():
        figures: dict[str, object] = {"router": router, "rounds": len(rounds)}
        figures["requests"] = sum(each.requests for each in rounds.values())
        figures["failed"] = [why for each in rounds.values() for why in each.failed]
        seen = {number: each.figures() for number, each in rounds.items() if len(each.ttfts) > 1}
        for name in next(iter(seen.values()), {}):
            figures[name] = spread([each[name] for each in seen.values()], 4 if name == "cached_share" else 1)
            both = [(each[name], kvlb[number].figures()[name]) for number, each in seen.items() if number in kvlb]
            both = [pair for pair in both if pair[1]]
            if router != KVLB and both and name != "cached_share":
                figures[f"{name.removesuffix('_ms')}_to_kvlb"] = spread([one / other for one, other in both], 2)
        report("routers_real", inputs, figures)


@contextlib.contextmanager
def engines(options: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    if options.engine:
        yield options.engine
        return
    with running(2, options.blocks, folder) as started:
        yield [each.url for each in started]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = os.environ.get("KVLB_PEERS")
    parser.add_argument(
        "--peers", type=Path, default=Path(named) if named else None, help="or KVLB_PEERS: their folder"
    )
    parser.add_argument("--contenders", default=".*", help="a pattern of routers")
    parser.add_argument("--engine", action="append", metavar="URL", help="one that runs already; of both")
    parser.add_argument("--blocks", type=int, default=640, help="of each cache, 32 tokens each")
    parser.add_argument("--rate", type=float, default=6.0, help="requests a second; with --calibrate a guess")
    parser.add_argument("--calibrate", action="store_true", help="say what round robin sustains, and end")
    parser.add_argument("--seconds", type=float, default=34.0, help="for which requests are sent")
    parser.add_argument("--warmup", type=float, default=8.0, help="of these, in which they do not count")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="number of the first round, which the chats depend on")
    parser.add_argument("--samples", type=Path, help="rounds are added to those in this file")
    parser.add_argument("--keep", type=Path, help="what kvlb says of itself")
    options = parser.parse_args()
    load = Load(rate=options.rate, seconds=options.seconds)
    with tempfile.TemporaryDirectory() as scratch, engines(options, Path(scratch)) as urls:
        with urllib.request.urlopen(urls[0] + "/version", timeout=10) as answer:
            vllm = json.loads(answer.read())["version"]
        found, missing = contenders(options, urls)
        inputs: dict[str, object] = {
            "vllm": vllm,
            "shape": SHAPE,
            "chunk": CHUNK,
            "blocks": options.blocks,
            "warmup": options.warmup,
            "load": msgspec.structs.asdict(load),
        }
        if options.calibrate:
            (baseline,) = [peer for peer in found if peer.name == BASELINE]
            crowd = [msgspec.structs.replace(each, at=each.at / OVERLOAD) for each in chats(load, MODEL_NAME, 0)]
            done = counted(run_of(baseline, urls, crowd, Path(scratch))[0], 0, 0, 0, BASELINE)
            sustained = {
                "sustained": round((done.requests - len(done.failed)) / done.seconds, 2),
                "requests": done.requests,
            }
            figures = {"failed": done.failed[:3], "cached_share": round(done.cached_tokens / done.prompt_tokens, 4)}
            figures["prompt_tokens"] = round(done.prompt_tokens / len(done.ttfts))
            report("routers_real", inputs, {"router": BASELINE, **sustained, **figures})
            return
        report("routers_real", inputs, {"contenders": {peer.name: peer.version for peer in found}, "missing": missing})
        samples: list[Played] = []
        if options.samples and options.samples.exists():
            samples = msgspec.json.decode(options.samples.read_bytes(), type=list[Played])
        for number in range(options.first, options.first + options.rounds):
            trace = chats(load, MODEL_NAME, number)
            for place, peer in enumerate(random.sample(found, len(found))):
                keep = options.keep and options.keep / str(number)
                answered, cpu_ms = run_of(peer, urls, trace, Path(scratch) / str(number), keep)
                played = counted(answered, options.warmup, number, place, peer.name)
                played.cpu_ms = cpu_ms
                samples.append(played)
                shown = {name: round(value, 3) for name, value in played.figures().items()} if played.ttfts else {}
                say(f"round {number} {peer.name}: {shown}, {played.requests} requests, failed {played.failed[:2]}")
                if options.samples:
                    options.samples.write_bytes(msgspec.json.encode(samples))
    tell(samples, inputs)


if __name__ == "__main__":
    main()
