"""``simulations/demo.py``: its processes can say as much as they like, and none outlives it."""

import argparse
import asyncio

import pytest

from balancer.errors import ConfigError
from simulations.demo import _end, _start, command


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_the_traffic_has_an_end(seconds: str) -> None:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    with pytest.raises(ConfigError, match="--seconds: give a number above 0"):
        command.run(parser.parse_args([f"--seconds={seconds}"]))


def test_what_a_process_says_never_fills_a_pipe_and_its_last_line_is_kept() -> None:
    async def check() -> None:
        started = await _start("nonsense")
        try:
            assert started.process.stderr is None
            assert await started.process.wait() == 2
            assert started.last_line().startswith("kvlb: argument COMMAND: invalid choice: 'nonsense'")
        finally:
            await _end([started])
        assert started.said.closed

    asyncio.run(check())
