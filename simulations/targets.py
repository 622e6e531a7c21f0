"""What a fleet is to hold: ``ttft_p95=2s`` and the like.

Knows the figures of a run and units of time. Never knows fleets.
"""

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import Final

import msgspec

from balancer.errors import ConfigError
from simulations.results import Summary

FIGURES: Final = ("ttft_mean", "ttft_p50", "ttft_p90", "ttft_p95", "ttft_p99", "ttft_max", "latency_mean")

_UNITS: Final = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0}
_TIME: Final = re.compile(r"((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(ms|s|m|)")


class Target(msgspec.Struct, frozen=True):
    """A figure of ``simulations.results.Summary``, and the seconds that it is to stay within."""

    figure: str
    seconds: float

    def is_held(self, summary: Summary) -> bool:
        """Whether it is; a fleet that refuses anybody holds nothing."""
        return not summary.refused and getattr(summary, self.figure) <= self.seconds


def worst(targets: Sequence[Target], summary: Summary) -> Target:
    """The target that a run is the furthest from."""
    return max(targets, key=lambda target: getattr(summary, target.figure) / target.seconds)


def distance(targets: Sequence[Target], summary: Summary) -> float:
    """How far that one is, as a multiple of it: 1 or less holds. Who refuses anybody is infinitely far."""
    if summary.refused:
        return math.inf
    target = worst(targets, summary)
    return float(getattr(summary, target.figure) / target.seconds)


def parse_time(text: str) -> float:
    """Seconds that are written as in a target, or as a number alone.

    Raises:
        ArgumentTypeError: it is no time; whether it is one of use is for others to say.
    """
    match = _TIME.fullmatch(text.strip())
    try:
        return float(text) if match is None else float(match[1]) * _UNITS[match[2]]
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no time; write seconds, or a time such as 500ms") from None


def parse_target(text: str) -> Target:
    """The target that is written so.

    Raises:
        ConfigError: it is none.
    """
    figure, _, value = text.partition("=")
    match = _TIME.fullmatch(value.strip())
    if figure.strip() not in FIGURES or match is None or not 0 < float(match[1]) < math.inf:
        raise ConfigError(
            f"--slo {text}: write a figure and a time above 0, as in --slo ttft_p95=2s; figures: {', '.join(FIGURES)}"
        )
    return Target(figure.strip(), float(match[1]) * _UNITS[match[2]])
