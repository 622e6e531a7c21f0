"""Is the simulator true? The same chats through real vLLM engines behind ``kvlb serve``, and through the detailed model.

Run from the root of the checkout: ``python -m tests.bench.bench_fidelity [--engines N]``, one JSON line. vLLM's CPU build is
found as by the tests in ``tests/real``. Each engine is kept on one core, the next one on the next core; the model is calibrated
by ``kvlb calibrate`` of the first one through a gateway of its own, while the others rest, so that it has seen the way that
requests take later. Then conversations are held side by side, and the model is played with the times and the choices that were
seen. Engines that share a core do so in the model, too. Times are the client's.

Nothing else may run: while vLLM waits for its worker it yields the core to whoever wants it, so that whatever runs beside it
costs it more than its share, at whatever priority.

The steps of the engines' model, six layers of 384, cost as much more than HTTP as a step should; its caches are too small for
what is asked. Cores that are shared by several engines, the gateway and the client must have room: ``load`` is the share of the
time for which the busiest engine computed, by the model.
"""

import argparse
import asyncio
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, quantiles
from typing import Final

from balancer import cli
from simulations.generators.chat import Chat
from simulations.latency import LatencyModel
from tests.bench.report import report
from tests.real.engines import BLOCK_SIZE, RealEngine, Shape, free_ports, start_engine
from tests.real.gateway import Gateway
from tests.real.simulated import compared, play_together

SHAPE: Final = Shape(6, 384)
CHUNK: Final = 512
MAX_MODEL_LEN: Final = 4096


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """What is started meanwhile stays on this core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[core % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def running(count: int, blocks: int, folder: Path) -> Iterator[list[RealEngine]]:
    """So many engines, ready."""
    engines: list[RealEngine] = []
    limits = ("--num-gpu-blocks-override", str(blocks), "--max-num-batched-tokens", str(CHUNK))
    try:
        for at in range(count):
            with pinned(at):
                log = folder / f"vllm-{at}.log"
                engines.append(
                    start_engine(
                        *free_ports(), *limits, kv_bytes="128M", max_model_len=MAX_MODEL_LEN, shape=SHAPE, log=log
                    )
                )
        for engine in engines:
            engine.wait_ready()
        yield engines
    finally:
        for engine in engines:
            if engine.process.poll() is None:
                engine.stop()


@contextlib.contextmanager
def before(engines: list[RealEngine], log: Path) -> Iterator[Gateway]:
    """A gateway that knows these engines."""
    gateway = Gateway(engines, log)
    try:
        asyncio.run(_ready(gateway))
        yield gateway
    finally:
        gateway.stop()


async def _ready(gateway: Gateway) -> None:
    async with gateway.session():
        pass


def calibrated(gateway: Gateway) -> tuple[LatencyModel, float]:
    """The costs of the one engine behind it, and the mean error of their fit."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        code = cli.main(["calibrate", gateway.url, "--max-num-batched-tokens", str(CHUNK), "--json"])
    if code:
        raise SystemExit(code)
    found = json.loads(told.getvalue())
    return LatencyModel(**found["latency"]), found["mean_error"]


def figures(real: list[float], simulated: list[float]) -> dict[str, float]:
    """Both means and medians in ms, and how far the model's mean is off."""
    (mean, median), (mean_too, median_too) = ((fmean(each), quantiles(each)[1]) for each in (real, simulated))
    return {
        "mean": round(mean * 1000, 1),
        "model_mean": round(mean_too * 1000, 1),
        "off": round(mean_too / mean - 1, 4),
        "median": round(median * 1000, 1),
        "model_median": round(median_too * 1000, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=160, help="of each cache, vLLM's null block among them")
    parser.add_argument("--rate", type=float, default=0.6, help="conversations that begin in a second")
    parser.add_argument("--seconds", type=float, default=70.0, help="for which they begin")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    workload = Chat(
        seconds=options.seconds,
        rate=options.rate,
        block_size=BLOCK_SIZE,
        spread=0.4,
        turns=4,
        systems=4,
        system_tokens=500,
        question_tokens=150,
        answer_tokens=24,
        pause=4,
    )
    trace = workload.generate(options.seed)
    with (
        tempfile.TemporaryDirectory() as scratch,
        running(options.engines, options.blocks, Path(scratch)) as engines,
    ):
        vllm = json.loads(engines[0].get("/version"))["version"]
        with before(engines[:1], Path(scratch) / "one.log") as gateway:
            latency, error = calibrated(gateway)
        for engine in engines:
            engine.post("/reset_prefix_cache")
        with before(engines, Path(scratch) / "all.log") as gateway:
            seen = asyncio.run(play_together(gateway, trace))
            per_core = -(-options.engines // len(os.sched_getaffinity(0)))
            found = compared(trace, seen, gateway.replicas, options.blocks, CHUNK, latency, per_core)
    report(
        "fidelity",
        {**vars(options), "vllm": vllm, "shape": SHAPE, "chunk": CHUNK, "fit": round(error, 4)},
        {
            "requests": found.requests,
            "engines_chosen": len({each.replica for each in seen}),
            "prompt_tokens": found.prompt_tokens,
            "evicted_tokens": found.evicted,
            "equal": round(found.equal, 4),
            "hit": round(found.hit, 4),
            "model_hit": round(found.simulated_hit, 4),
            "load": round(found.load, 2),
            "ttft_ms": figures(found.ttfts, found.simulated_ttfts),
            "latency_ms": figures(found.seconds, found.simulated_seconds),
            "costs": {name: float(f"{getattr(latency, name):.4g}") for name in latency.__struct_fields__},
        },
    )


if __name__ == "__main__":
    main()
