"""``kvlb fake-engine``: a vLLM server without a GPU and without a model, which nobody can tell from one by its protocol.

Knows flags, signals and the listening socket. It schedules, caches, evicts and announces as vLLM does, in real time; only the
words that it says are made up. ``running`` is the same in process, for tests and demonstrations.
"""

import argparse
import asyncio
import contextlib
import errno
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from aiohttp import web

from balancer.commands import Command
from balancer.errors import ConfigError
from hashing.extras import Lora
from simulations.fake.app import build_app
from simulations.fake.config import FakeConfig
from simulations.fake.rank import Rank, Sampler
from simulations.fake.releases import NEWEST
from simulations.fake.server import EngineProcess, speak
from simulations.latency import LatencyModel


class FakeEngine:
    """A server that can be killed and started again at the same addresses; mutable."""

    def __init__(self, config: FakeConfig, sampler: Sampler = speak) -> None:
        self.config = config
        self._sampler = sampler
        self._process: EngineProcess | None = None
        self._runner: web.AppRunner | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin a life, with an empty cache. Ports of 0 are chosen once and kept from then on.

        Raises:
            OSError: an address is in use, or cannot be bound.
        """
        self._process = EngineProcess(self.config, self._sampler)
        self._runner = web.AppRunner(
            build_app(lambda: self.process), handler_cancellation=True, shutdown_timeout=5, access_log=None
        )
        try:
            await self._runner.setup()
            await web.TCPSite(self._runner, self.config.host, self.config.port, backlog=1024).start()
        except OSError:
            await self._end()
            raise
        self._keep_ports()

    def _keep_ports(self) -> None:
        assert self._runner is not None
        publisher = self.process.ranks[0].publisher
        ports: list[int | None] = [None, None]
        if publisher is not None and self.config.data_parallel_size == 1:
            ports = [_port(publisher.events), _port(publisher.replay)]
        elif publisher is not None:
            ports = [self.config.event_port, self.config.replay_port]
        self.config = self.config.with_ports(self._runner.addresses[0][1], *ports)

    async def kill(self) -> None:
        """End this life as a crash does: connections break, nothing is said, the ports are free when this returns."""
        assert self._runner is not None
        server = self._runner.server
        for connection in list(server.connections) if server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()
        await self._end()

    async def stop(self) -> None:
        """End this life as SIGTERM does: after ``shutdown_timeout``, what still runs is answered with reason "abort"."""
        await self.process.drain(self.config.shutdown_timeout)
        await self._end()

    async def _end(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._process is not None:
            await self._process.close()
        self._runner = self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def process(self) -> EngineProcess:
        """The life that goes on now."""
        if self._process is None:
            raise RuntimeError("the engine is not running")
        return self._process

    # -- where it is ---------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://{_bracketed(self.config.host)}:{self.config.port}"

    def events(self, rank: int = 0) -> str:
        """Where to subscribe to a rank's events."""
        publisher = self.rank(rank).publisher
        assert publisher is not None, "it publishes no events"
        return publisher.events

    def replay(self, rank: int = 0) -> str | None:
        """Where to ask for a rank's last batches."""
        publisher = self.rank(rank).publisher
        return None if publisher is None else publisher.replay

    # -- for tests -----------------------------------------------------------------------------------------------------

    def rank(self, number: int = 0) -> Rank:
        return self.process.ranks[number]

    def cached(self, rank: int = 0) -> Counter[int]:
        """What a rank's cache really holds: each key with its number of blocks."""
        return self.rank(rank).engine.cached()

    def reset(self, *, reset_running_requests: bool = False) -> bool:
        """Clear the cache, as ``POST /reset_prefix_cache`` does; announced with the next step."""
        return self.process.reset_prefix_cache(reset_running_requests=reset_running_requests)

    def hold(self) -> None:
        """Stop the clock of every rank; ``step`` moves them by hand."""
        for rank in self.process.ranks:
            rank.hold()

    def release(self) -> None:
        """Let the clocks run again."""
        for rank in self.process.ranks:
            rank.release()

    def step(self, rank: int = 0) -> bool:
        """One step of a rank in no time; whether there was anything to do."""
        return self.rank(rank).step()

    def drop_next_batches(self, count: int, rank: int = 0) -> None:
        """Lose batches on their way to subscribers; a replay still has them."""
        publisher = self.rank(rank).publisher
        assert publisher is not None, "it publishes no events"
        publisher.drop_next(count)

    def forget_replay(self, rank: int = 0) -> None:
        """Lose what could be replayed until now."""
        publisher = self.rank(rank).publisher
        assert publisher is not None, "it publishes no events"
        publisher.forget_buffer()


@contextlib.asynccontextmanager
async def running(config: FakeConfig, sampler: Sampler = speak) -> AsyncIterator[FakeEngine]:
    """A fake engine that listens, until the block is left; killed then.

    Raises:
        OSError: an address is in use, or cannot be bound.
    """
    engine = FakeEngine(config, sampler)
    await engine.start()
    try:
        yield engine
    finally:
        if engine.is_running:
            await engine.kill()


# -- the command -------------------------------------------------------------------------------------------------------


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
    add("--prefill-tps", type=float, metavar="X", help="prompt tokens computed in a second (default: of an 8B model)")
    add("--decode-ms", type=float, metavar="Y", help="milliseconds for one output token (default: of an 8B model)")
    add("--speed", type=float, default=1.0, metavar="FACTOR", help="divide all times by this (default 1)")
    add("--no-render", action="store_true", help="as without vLLM's --enable-scale-out: no render and generate paths")
    add("--no-usage-details", action="store_true", help="as without vLLM's --enable-prompt-tokens-details")
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
        runner.run(_serve(config))
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
            has_scale_out=not args.no_render,
            has_usage_details=not args.no_usage_details,
            shutdown_timeout=args.shutdown_timeout,
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


async def _serve(config: FakeConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    engine = FakeEngine(config)
    try:
        await engine.start()
    except OSError as error:
        raise _not_bound(error) from error
    events = "no KV events" if config.event_port is None else f"KV events on {engine.events()}"
    print(f"kvlb: fake vLLM {config.vllm_version} serves {config.model} on {engine.url}, {events}", file=sys.stderr)
    await stop.wait()
    await engine.stop()


def _not_bound(error: OSError) -> ConfigError:
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"fake-engine: {reason}; choose other ports with --port, --event-port and --replay-port")
    return ConfigError(f"fake-engine: cannot listen: {reason}")


def _port(endpoint: str | None) -> int | None:
    return None if endpoint is None else int(endpoint.rpartition(":")[2])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


command = Command(
    name="fake-engine",
    help="Imitate a vLLM server: its API, its KV cache and its KV events, in real time and without a GPU.",
    configure=configure,
    run=run,
)
