"""``simulations/targets.py``: targets are read as people write them, and held or not."""

import math
from argparse import ArgumentTypeError

import msgspec
import pytest

from balancer.errors import ConfigError
from simulations.results import Summary
from simulations.targets import Target, distance, parse_target, parse_time, worst

SUMMARY = Summary("p", 10, 0, 0.5, 1.0, 0.9, 1.5, 2.0, 3.0, 4.0, 9.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("ttft_p95=2s", Target("ttft_p95", 2.0)),
        ("ttft_mean=500ms", Target("ttft_mean", 0.5)),
        (" ttft_p99 = 1.5 ", Target("ttft_p99", 1.5)),
        ("latency_mean=2m", Target("latency_mean", 120.0)),
        ("ttft_max=2e3ms", Target("ttft_max", 2.0)),
    ],
)
def test_a_target_is_a_figure_and_a_time(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text", ["ttft_p95", "ttft_p95=", "ttft_p95=0s", "p95=2s", "ttft_p95=-1s", "ttft_p95=2h", "hit=0.5"]
)
def test_what_is_none_names_the_figures(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--slo .*as in --slo ttft_p95=2s; figures: ttft_mean"):
        parse_target(text)


def test_a_target_is_held_up_to_its_time_by_those_who_refuse_nobody() -> None:
    assert Target("ttft_p95", 2.0).is_held(SUMMARY)
    assert not Target("ttft_p95", 1.99).is_held(SUMMARY)
    assert not Target("ttft_p95", 2.0).is_held(msgspec.structs.replace(SUMMARY, refused=1))


def test_how_far_a_run_is_from_the_worst_of_its_targets() -> None:
    targets = [Target("ttft_p95", 4.0), Target("ttft_p99", 1.5), Target("latency_mean", 90.0)]
    assert worst(targets, SUMMARY) == targets[1]
    assert distance(targets, SUMMARY) == 2.0
    assert distance(targets, msgspec.structs.replace(SUMMARY, refused=1)) == math.inf


@pytest.mark.parametrize(("text", "seconds"), [("2", 2.0), ("2s", 2.0), ("500ms", 0.5), ("2m", 120.0), ("-1", -1.0)])
def test_a_time_is_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["2h", "", "soon", "2 s s"])
def test_what_is_no_time_is_told(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is no time; write seconds, or a time such as 500ms"):
        parse_time(text)
