"""kvlb side by side with others: ``python -m tests.bench.bench_peers --peers DIR``, one JSON line a case and contender.

Every contender runs before the same replicas of raw bytes (those of ``bench_proxy``) at the same time, and is asked in turns,
in an order that is drawn anew for each case of each round; each round begins with new processes. With ``--install``, DIR, which
is to lie outside the checkout, is made an environment of those peers that PyPI has. The first line says who takes part, in
which version, and who does not, and why; who refuses a case, or gives no answer, has a line that says so.

Figures are as in ``bench_proxy``: CPU of a contender's whole process tree by ``schedstat``. Given are the median and the
quartiles over the rounds, of the figure and of kvlb's figure divided by the peer's of the same round: below 1, kvlb is the
cheaper one. Only kvlb is told of blocks (8k_warm, 131k_warm), as only kvlb listens. Where the ``pace_kept`` of paced streams is
far below 1, the machine was too busy for them. rss_mib is that with 500 streams, rss_idle_mib that before.
"""

import argparse
import contextlib
import os
import random
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from balancer.commands.loop import run_loop
from tests.bench.bench_proxy import Gateway, gateway, replicas
from tests.bench.front import Front, added, burst, paced, per_request
from tests.bench.peers import Peer, install, peers, running
from tests.bench.raw_clients import COLD, Refused, chat, token_ids
from tests.bench.report import report

KVLB: Final = "kvlb"
CASES: Final = (
    "2k", "32k", "burst", "paced_100", "paced_500", "added", "8k_warm", "8k_cold", "131k_warm", "131k_cold",
)  # fmt: skip
"""Short ones first: the long prompts stay in the memory of those that keep them."""

WARMUP_SECONDS: Final = 0.4
FIGURES: Final = (
    "cpu_ms_a_request",
    "cpu_us_a_chunk",
    "cpu_us_a_stream_of_one",
    "pace_kept",
    "added_p50_ms",
    "rss_idle_mib",
    "rss_mib",
)

Samples = dict[tuple[str, str, str], dict[int, float]]
"""(case, figure, contender) -> by round."""

Refusals = dict[tuple[str, str], list[str]]
"""(case, contender) -> why, for each round in which there was nothing to measure."""


async def sample(name: str, front: Front, direct: tuple[str, int], seconds: float, *, seed: int) -> dict[str, float]:
    """One case at one contender.

    Raises:
        Refused: the contender does not serve such requests.
    """
    is_told = isinstance(front, Gateway)
    match name.split("_"):
        case ["2k"]:
            return await per_request(front, chat(2_048, seed=seed), 32, seconds, WARMUP_SECONDS)
        case ["32k"]:
            return await per_request(front, chat(32_768, seed=seed), 16, seconds, WARMUP_SECONDS)
        case ["8k" | "131k" as length, kind]:
            tokens, count, prompts = {"8k": (8_192, 8, 64), "131k": (131_072, 2, 8)}[length]
            is_warm = kind == "warm"
            requests = token_ids(tokens, prompts if is_warm else COLD, is_told=is_told and is_warm, seed=seed)
            first = 2 * prompts if is_warm else count
            return await per_request(front, requests, count, seconds, WARMUP_SECONDS, first=first)
        case ["burst"]:
            return await burst(front, seconds, seed=seed)
        case ["paced", streams]:
            return await paced(front, int(streams), seconds, warmup=1.0, seed=seed)
        case _:
            return await added(front, direct, seconds)


@contextlib.contextmanager
def contenders(found: list[Peer], urls: list[str], folder: Path, refused: Refusals) -> Iterator[dict[str, Front]]:
    with contextlib.ExitStack() as stack:
        fronts: dict[str, Front] = {KVLB: stack.enter_context(gateway(urls))}
        for peer in found:
            try:
                fronts[peer.name] = stack.enter_context(running(peer, folder / peer.name.replace("/", "-")))
            except RuntimeError as error:
                refused.setdefault(("all", peer.name), []).append(str(error))
                say(f"{peer.name} takes no part in this round: {error}")
        yield fronts


async def round_of(
    number: int,
    options: argparse.Namespace,
    fronts: dict[str, Front],
    direct: tuple[str, int],
    samples: Samples,
    refused: Refusals,
) -> None:
    """Every case at every contender once."""
    kvlb = fronts[KVLB]
    assert isinstance(kvlb, Gateway)
    await kvlb.proven()
    for at, case in enumerate(CASES):
        if not re.fullmatch(options.only, case):
            continue
        order = list(fronts)
        random.shuffle(order)
        for turn, name in enumerate(order):
            seed = number * 10_000 + at * 100 + turn
            try:
                done = await sample(case, fronts[name], direct, options.seconds, seed=seed)
            except Refused as error:
                refused.setdefault((case, name), []).append(str(error))
                continue
            for figure in FIGURES:
                if figure in done and (case == "paced_500" or not figure.startswith("rss")):
                    samples.setdefault((case, figure, name), {})[number] = done[figure]
            say(f"round {number} {case} {name}: {done}")


def spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}


def tell(samples: Samples, inputs: dict[str, object]) -> None:
    for (case, figure, name), values in sorted(samples.items(), key=lambda each: CASES.index(each[0][0])):
        figures: dict[str, object] = {"contender": name, "figure": figure, **spread(list(values.values()))}
        ours = samples.get((case, figure, KVLB), {})
        ratios = [ours[number] / value for number, value in values.items() if number in ours and value > 0]
        if name != KVLB and ratios and figure != "pace_kept":
            figures["kvlb_to_it"] = spread(ratios)
        report("peers", {"case": case, **inputs, "samples": len(values)}, figures)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def run(options: argparse.Namespace) -> None:
    samples: Samples = {}
    refused: Refusals = {}
    inputs = {"seconds": options.seconds, "rounds": options.rounds}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            with replicas() as urls:
                found, missing = peers(options.peers, urls)
                found = [peer for peer in found if re.fullmatch(options.contenders, peer.name)]
                if number == 0:
                    taking_part = {peer.name: peer.version for peer in found}
                    report("peers", inputs, {"contenders": taking_part, "missing": missing})
                with contenders(found, urls, Path(folder) / str(number), refused) as fronts:
                    host, _, port = urls[0].removeprefix("http://").rpartition(":")
                    direct = (host, int(port))
                    await round_of(number, options, fronts, direct, samples, refused)
    tell(samples, inputs)
    for (case, name), reasons in refused.items():
        figures: dict[str, object] = {"contender": name, "refused": reasons[-1], "in_rounds": len(reasons)}
        report("peers", {"case": case, **inputs}, figures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    folder = os.environ.get("KVLB_PEERS")
    parser.add_argument(
        "--peers", type=Path, default=Path(folder) if folder else None, help="or KVLB_PEERS: their folder"
    )
    parser.add_argument("--install", action="store_true", help="make that folder first")
    parser.add_argument("--only", default=".*", help="a pattern of cases")
    parser.add_argument("--contenders", default=".*", help="a pattern of peers")
    parser.add_argument("--seconds", type=float, default=0.6)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    if given.install:
        if given.peers is None:
            parser.error("--install: say with --peers where")
        install(given.peers)
    run_loop(run(given))
