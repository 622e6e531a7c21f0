"""``kvlb fake-engine``: a vLLM server without a GPU and without a model, which nobody can tell from one by its protocol.

Knows flags and signals. The engine schedules, caches, evicts and announces as vLLM does, in real time; only the words that it
says are made up. ``running`` is the same in process, for tests and demonstrations.
"""

import argparse
import asyncio
import contextlib
import errno
import signal
import sys
from collections.abc import Iterator

from balancer.commands import Command
from balancer.errors import ConfigError
from hashing.extras import Lora
from simulations.fake.config import FakeConfig
from simulations.fake.engine import FakeEngine, running
from simulations.fake.releases import NEWEST
from simulations.latency import LatencyModel

__all__ = ["FakeConfig", "FakeEngine", "command", "running"]


def configure(parser: argparse.ArgumentParser) -> None:
    default = FakeConfig()
    add = parser.add_argument
    add("--host", default=default.host, help="address to listen on (default %(default)s)")
    add("--port", type=int, default=default.port, help="HTTP port (default %(default)s)")
    add("--model", default=default.model, metavar="NAME", help="served model (default %(default)s)")
    add("--lora", action="append", default=[], metavar="NAME=PATH", help="a LoRA adapter to serve; repeat it")
    add("--event-port", type=int, default=default.event_port, help="KV events of rank 0 (default %(default)s)")
    add("--replay-port", type=int, default=default.replay_port, help="replay of rank 0 (default %(default)s)")
    add("--topic", default=default.topic, help="topic of the KV events (default empty)")
    add("--no-events", action="store_true", help="publish no KV events")
    add("--no-replay", action="store_true", help="publish KV events without a replay socket")
    add(
        "--vllm-version",
        default=NEWEST,
        metavar="X.Y.Z",
        help="release to imitate, 0.11.0 or later (default %(default)s)",
    )
    add(
        "--data-parallel-size", type=int, default=1, metavar="N", help="ranks, each with a cache of its own (default 1)"
    )
    add("--blocks", type=int, default=default.num_gpu_blocks, help="KV blocks of a rank (default %(default)s)")
    add("--block-size", type=int, default=default.block_size, help="tokens in a block (default %(default)s)")
    add("--max-model-len", type=int, default=default.max_model_len, help="longest sequence (default %(default)s)")
    add("--max-num-seqs", type=int, default=default.max_num_seqs, help="requests at once (default %(default)s)")
    add(
        "--max-num-batched-tokens",
        type=int,
        default=default.max_num_batched_tokens,
        help="tokens in a step (default %(default)s)",
    )
    add("--hash-algorithm", default="sha256", help="sha256, sha256_cbor, xxhash or xxhash_cbor (default %(default)s)")
    add("--hash-seed", metavar="TEXT", help="what PYTHONHASHSEED would be (default unset)")
    add("--byte-hashes", action="store_true", help="publish whole digests, not 64-bit integers")
    add(
        "--no-prefix-caching",
        action="store_true",
        help="as with vLLM's flag of that name: nothing is cached or published",
    )
    add("--prefill-tps", type=float, metavar="X", help="prompt tokens computed in a second (default: of an 8B model)")
    add("--decode-ms", type=float, metavar="Y", help="milliseconds for one output token (default: of an 8B model)")
    add("--speed", type=float, default=1.0, metavar="FACTOR", help="divide all times by this (default 1)")
    add("--no-render", action="store_true", help="as without vLLM's --enable-scale-out: no render and generate paths")
    add("--no-usage-details", action="store_true", help="as without vLLM's --enable-prompt-tokens-details")
    add("--api-key", metavar="KEY", help="key that clients must send (default none)")
    add(
        "--max-num-queued-reqs",
        type=int,
        metavar="N",
        help="refuse more requests than this with 503 (default no limit)",
    )
    add(
        "--shutdown-timeout",
        type=float,
        default=0.0,
        metavar="S",
        help="time for running requests at SIGTERM (default 0)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ConfigError: a flag, or an address that cannot be bound.
    """
    config = read_config(args)
    with _runner() as runner:
        runner.run(_serve_until_signal(config))
    return 0


def read_config(args: argparse.Namespace) -> FakeConfig:
    """The flags as a configuration.

    Raises:
        ConfigError: one of them cannot be used.
    """
    try:
        return FakeConfig(
            host=args.host,
            port=args.port,
            model=args.model,
            loras=tuple(_lora(number, flag) for number, flag in enumerate(args.lora, start=1)),
            event_port=None if args.no_events else args.event_port,
            replay_port=None if args.no_events or args.no_replay else args.replay_port,
            topic=args.topic,
            vllm_version=args.vllm_version,
            data_parallel_size=args.data_parallel_size,
            num_gpu_blocks=args.blocks,
            block_size=args.block_size,
            max_model_len=args.max_model_len,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            hash_algorithm=args.hash_algorithm,
            hash_seed=args.hash_seed,
            has_int_hashes=not args.byte_hashes,
            latency=_latency(args.prefill_tps, args.decode_ms),
            speed=args.speed,
            has_prefix_caching=not args.no_prefix_caching,
            has_scale_out=not args.no_render,
            has_usage_details=not args.no_usage_details,
            shutdown_timeout=args.shutdown_timeout,
            api_key=args.api_key,
            max_num_queued_reqs=args.max_num_queued_reqs,
        )
    except ValueError as error:
        raise ConfigError(f"fake-engine: {error}") from None


def _lora(number: int, flag: str) -> Lora:
    name, _, path = flag.partition("=")
    if not name or not path:
        raise ConfigError(f"--lora: {flag!r} is not NAME=PATH")
    return Lora(name, path, number)


def _latency(prefill_tps: float | None, decode_ms: float | None) -> LatencyModel:
    default = LatencyModel()
    if prefill_tps is None and decode_ms is None:
        return default
    return LatencyModel.from_rates(
        prefill_tokens_per_second=1 / default.token if prefill_tps is None else prefill_tps,
        decode_seconds_per_token=default.weights if decode_ms is None else decode_ms / 1000,
    )


@contextlib.contextmanager
def _runner() -> Iterator[asyncio.Runner]:
    """asyncio's runner, on uvloop where that is installed."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - optional
    except ImportError:
        new_event_loop = None  # type: ignore[assignment]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        yield runner


async def _serve_until_signal(config: FakeConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    await serve(config, stop)


async def serve(config: FakeConfig, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set, and end as SIGTERM ends a server.

    Raises:
        ConfigError: an address cannot be bound.
    """
    engine = FakeEngine(config)
    try:
        await engine.start()
    except OSError as error:
        raise _not_bound(error) from error
    except UnicodeError as error:
        raise ConfigError(f"fake-engine: cannot listen: {config.host!a} is no address") from error
    events = "no KV events" if config.event_port is None else f"KV events on {engine.events()}"
    print(f"kvlb: fake vLLM {config.vllm_version} serves {config.model} on {engine.url}, {events}", file=sys.stderr)
    await stop.wait()
    await engine.stop()


def _not_bound(error: OSError) -> ConfigError:
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"fake-engine: {reason}; choose other ports with --port, --event-port and --replay-port")
    return ConfigError(f"fake-engine: cannot listen: {reason}")


command = Command(
    name="fake-engine",
    help="Imitate a vLLM server: its API, its KV cache and its KV events, in real time and without a GPU.",
    configure=configure,
    run=run,
)
