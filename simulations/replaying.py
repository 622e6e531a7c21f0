"""The line of ``kvlb simulate`` that plays a planned fleet again, to the same figures.

Knows the flags of both commands. Never knows plans, or what comes of a fleet.
"""

import argparse
import shlex
from typing import Any

from simulations.planning import Build
from simulations.scenario import Kind
from simulations.traces.options import reading_words
from simulations.traces.trace import Trace


def line(
    args: argparse.Namespace,
    trace: Trace,
    model: Kind,
    build: Build,
    policy: str,
    replicas: int,
    store: dict[str, Any] | None,
) -> str:
    """What to type. ``args`` are those of ``kvlb plan``, and ``store`` the fields of the fleet's, where it has one."""
    words = ["kvlb", "simulate", args.trace, *reading_words(args)]
    if model == "simple":
        words += ["--simple", "--block-size", str(trace.block_size)]
    words += ["--model", build.hardware.model, "--gpu", build.hardware.gpu]
    if build.hardware.count != 1:
        words += ["--gpus", str(build.hardware.count)]
    for flag in ("weight_bits", "kv_bits"):
        if (bits := getattr(args, flag)) is not None:
            words += [f"--{flag.replace('_', '-')}", str(bits)]
    words += ["--replicas", str(replicas), "--policy", policy]
    if args.rate != "1":
        words += ["--fleet", f"rate={args.rate}"]
    if trace.has_pauses:
        words.append("--closed-loop")
    if store is not None:
        words += ["--fleet", f"store={{{','.join([f'{field}={value!r}' for field, value in store.items()])}}}"]
    if args.seed != 1:
        words += ["--seed", str(args.seed)]
    return shlex.join(words)
