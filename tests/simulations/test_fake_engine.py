"""The command: its flags, its signals and what it says when it cannot start."""

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys

import aiohttp
import msgspec
import pytest

from balancer.errors import ConfigError
from hashing.extras import Lora
from hashing.recipes import Recipe
from simulations.fake.config import FakeConfig
from simulations.fake_engine import command, read_config, running
from simulations.latency import LatencyModel
from tests.simulations.fake.samples import IDS, config, run


def parsed(*flags: str) -> FakeConfig:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return read_config(parser.parse_args(flags))


def test_flags_become_a_configuration() -> None:
    found = parsed(
        *("--port", "8101", "--event-port", "5601", "--replay-port", "5701", "--model", "m", "--lora", "a=/p"),
        *("--blocks", "1000", "--block-size", "32", "--prefill-tps", "1000", "--decode-ms", "20", "--speed", "4"),
        *("--hash-algorithm", "sha256_cbor", "--hash-seed", "0", "--vllm-version", "0.30.0", "--no-render"),
        "--no-prefix-caching",
    )
    assert (found.port, found.event_port, found.replay_port, found.model) == (8101, 5601, 5701, "m")
    assert found.loras == (Lora("a", "/p", 1),)
    assert (found.num_gpu_blocks, found.block_size, found.speed) == (1000, 32, 4)
    assert found.latency == LatencyModel.from_rates(prefill_tokens_per_second=1000, decode_seconds_per_token=0.02)
    assert found.engine(b"").recipe == Recipe.for_version("0.30.0", algorithm="sha256_cbor", block_size=32, seed="0")
    assert not found.has_scale_out
    assert not found.has_prefix_caching


def test_events_and_replay_can_be_left_out() -> None:
    assert (parsed("--no-events").event_port, parsed("--no-events").replay_port) == (None, None)
    assert (parsed("--no-replay").event_port, parsed("--no-replay").replay_port) == (5557, None)


def test_no_flags_are_the_defaults() -> None:
    assert parsed() == FakeConfig()


@pytest.mark.parametrize(
    "flags",
    [
        *[
            ("--lora", "nopath"),
            ("--blocks", "3"),
            ("--vllm-version", "x"),
            ("--topic", "\udcff"),
            ("--model", "\udcff"),
        ],
        *[("--speed", "0"), ("--speed", "nan"), ("--speed", "inf"), ("--max-num-queued-reqs", "-1")],
        *[("--decode-ms", "-1"), ("--decode-ms", "nan"), ("--prefill-tps", "nan"), ("--prefill-tps", "inf")],
        *[("--shutdown-timeout", "nan"), ("--shutdown-timeout", "inf"), ("--shutdown-timeout", "-1")],
    ],
)
def test_what_a_flag_cannot_mean_is_a_user_error(flags: tuple[str, str]) -> None:
    with pytest.raises(ConfigError):
        parsed(*flags)


START = "import argparse; from simulations.fake_engine import command as c; p = argparse.ArgumentParser(); \
c.configure(p); raise SystemExit(c.run(p.parse_args()))"


def test_the_command_serves_until_sigterm() -> None:
    flags = ["--port", "0", "--event-port", "0", "--replay-port", "0", "--decode-ms", "100"]
    with subprocess.Popen(
        [sys.executable, "-c", START, *flags],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found, said

        async def test() -> None:
            async with aiohttp.ClientSession(found[0]) as session:
                body = {"prompt": IDS, "max_tokens": 1000, "stream": True}
                async with session.post("/v1/completions", json=body) as response:
                    await response.content.readuntil(b"\n\n")
                    process.send_signal(signal.SIGTERM)
                    rest = await response.content.read()
            assert b'"finish_reason":"abort"' in rest
            assert rest.endswith(b"data: [DONE]\n\n")

        run(test)
        assert process.wait(10) == 0


def test_a_port_in_use_is_a_user_error() -> None:
    async def test() -> None:
        async with running(config()) as engine:
            taken = engine.url.rpartition(":")[2]
            parser = argparse.ArgumentParser()
            command.configure(parser)
            flags = ["--port", taken, "--event-port", "0", "--replay-port", "0"]
            with pytest.raises(ConfigError, match=f"{taken}.*--port"):
                await asyncio.to_thread(_run_quietly, parser.parse_args(flags))

    run(test)


def _run_quietly(args: argparse.Namespace) -> None:
    from simulations.fake_engine import serve

    with asyncio.Runner() as runner:
        runner.run(serve(read_config(args), asyncio.Event()))


def test_configurations_are_values() -> None:
    assert msgspec.structs.replace(config(), port=1) != config()
