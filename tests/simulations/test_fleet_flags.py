"""``simulations/fleet_flags.py``: the fleet of flags on top of a file's, and flags that say the same."""

import argparse
import re
import shlex
from typing import Any

import pytest

from balancer.errors import ConfigError
from simulations import simulate
from simulations.fleet_flags import layered
from simulations.speeds import with_speeds


def args(words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    simulate.configure(parser)
    return parser.parse_args(shlex.split(words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--replicas 3 --fleet replicas=5",
            "--replicas 3, --fleet replicas=5: both say what replicas is; leave one of them out, or play all of it with "
            "--sweep replicas=3,5",
        ),
        (
            "--sweep replicas=5,6 --replicas 3",
            "--replicas 3, --sweep replicas=5,6: both say what replicas is; leave one of them out, or play all of it with "
            "--sweep replicas=3,5,6",
        ),
        ("--fleet block-size=16 --sweep block_size=16,32", "--fleet block-size=16, --sweep block_size=16,32: both say what"),
        ("--sweep load=1 --sweep load=2,", "--sweep load=1, --sweep load=2,: both say what load is; leave one of them out"),
        ("--fleet speeds=[1] --fleet speeds=[1,2]", "or play all of it with --sweep 'speeds=[1],[1,2]'"),
        ("--fleet store=25gbe --sweep store=none,10gbe", "with --sweep store=25gbe,none,10gbe"),
        ("--closed-loop --fleet closed_loop=false", "--closed-loop, --fleet closed_loop=false: both say what closed_loop is"),
        ("--load 0.5 --fleet rate=2", "--load 0.5, --fleet rate=2: both say how fast requests come; leave one of them out"),
        ("--load 0.5 --sweep rate=2,3", "--load 0.5, --sweep rate=2,3: both say how fast requests come"),
        ("--blocks 7 --sweep cache=1M,2M", "--blocks 7, --sweep cache=1M,2M: both say how much a cache holds"),
        ("--decode-ms 7 --fleet decode_seconds=1", "--decode-ms 7, --fleet decode_seconds=1: both say how long a token of an"),
        ("--prefill-tps 7 --fleet latency={token=1}", "--prefill-tps 7, --fleet latency={token=1}: both say how fast prompts"),
        ("--decode-ms 7 --sweep latency={},{token=1}", "--decode-ms 7, --sweep latency={},{token=1}: both say how long"),
        ("--fleet replicas=1,2", "--fleet replicas=1,2: give one value, or a list as in speeds=[1,1,0.5]; --sweep plays"),
    ],
)  # fmt: skip
def test_flags_that_say_the_same_are_refused_with_both_and_the_remedy(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        layered(args(words), {}, {})


@pytest.mark.parametrize(
    ("words", "fleet", "sweep"),
    [
        ("", {"replicas": 8, "rate": 2}, {"cache": ["1M"]}),
        ("--replicas 4", {"replicas": 4, "rate": 2}, {"cache": ["1M"]}),
        ("--sweep replicas=4,5", {"rate": 2}, {"cache": ["1M"], "replicas": [4, 5]}),
        ("--blocks 9", {"replicas": 8, "rate": 2, "blocks": 9}, {}),
        ("--sweep blocks=9", {"replicas": 8, "rate": 2}, {"blocks": [9]}),
        ("--load 0.5 --fleet store=none", {"replicas": 8, "load": 0.5, "store": "none"}, {"cache": ["1M"]}),
        ("--closed-loop", {"replicas": 8, "rate": 2, "closed_loop": True}, {"cache": ["1M"]}),
    ],
)
def test_what_a_flag_says_the_file_does_not(words: str, fleet: dict[str, Any], sweep: dict[str, Any]) -> None:
    assert layered(args(words), {"replicas": 8, "rate": 2}, {"cache": ["1M"]}) == (fleet, sweep)


def test_a_flag_stands_for_what_the_file_sweeps() -> None:
    assert layered(args("--replicas 4"), {}, {"replicas": [1, 2]}) == ({"replicas": 4}, {})


def test_speeds_that_a_file_says_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^fleet\.decode_ms: give either decode_ms or latency, not both"):
        with_speeds("detailed", {"prefill_tps": 1, "decode_ms": 1, "latency": {}})
    with pytest.raises(ConfigError, match=r"^fleet\.decode_ms: give either decode_ms or decode_seconds, not both"):
        with_speeds("simple", {"decode_ms": 1, "decode_seconds": 1})
    fixed, _ = layered(args("--prefill-tps 1k --decode-ms 9"), {"latency": {"token": 1}}, {})
    assert with_speeds("detailed", fixed)["latency"]["weights"] == 0.009, "the flags' are on top"
