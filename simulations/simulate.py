"""``kvlb simulate``: what routing would do for somebody's own traffic.

Knows flags, files and what is shown. Never knows how anything is played: a trace (``simulations.traces``) and a scenario
(``simulations.scenario``) make cases, ``simulations.grid`` plays them, and ``simulations.report`` tells what came of it.
"""

import argparse
import platform
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec

from balancer.commands import Command
from balancer.errors import ConfigError
from simulations.bounds import Bounds, bounds
from simulations.flags import once, refuse_unused
from simulations.fleet_errors import said
from simulations.fleet_flags import FIELDS, layered
from simulations.generators.base import generators
from simulations.grid import Case, run_all
from simulations.hardware.estimate import estimate
from simulations.hardware.options import add_hardware_options, hardware_of
from simulations.least import Least
from simulations.named_policies import parse_names
from simulations.output import write_file
from simulations.progress import tell
from simulations.report.document import Document, document, encode
from simulations.report.export import write_plots
from simulations.report.page import page
from simulations.report.plots import plots_of
from simulations.report.result import Result, result_of
from simulations.report.table import table
from simulations.results import Run
from simulations.scenario import CACHE, DEFAULT_POLICIES, Scenario, cases, load
from simulations.targets import parse_time
from simulations.traces.options import (
    READING,
    add_reading_options,
    check_used,
    reading_options,
    scaled,
    scaled_words,
)
from simulations.traces.reading import open_trace
from simulations.traces.trace import Trace

QUESTIONS: Final = {
    "do I need cache-aware routing?": "kvlb simulate trace.jsonl --simple --replicas 8 --cache 4M --prefill-tps 10000",
    "how many replicas?": (
        "kvlb simulate trace.jsonl --simple --cache 4M --prefill-tps 10000 --sweep replicas=4,8,16 --ttft-p95 2"
    ),
    "how much cache?": "kvlb simulate trace.jsonl --simple --replicas 8 --prefill-tps 10000 --sweep cache=4M,1M,16M",
    "is a shared store worth it?": (
        "kvlb simulate trace.jsonl --simple --replicas 8 --cache 4M --prefill-tps 10000 --sweep store=none,25gbe,100gbe"
    ),
    "is it worth it to part prefill and decode?": (
        "kvlb simulate trace.jsonl --model llama-3.1-8b --gpu h100 --replicas 8 "
        "--sweep 'disaggregation=none,{prefill=2},{prefill=4}' --policy predicted_ttft"
    ),
}
"""What most people come for, and the line that answers it."""


def configure(parser: argparse.ArgumentParser) -> None:
    once(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    lines = [f"  {question}\n    {line}" for question, line in QUESTIONS.items()]
    parser.epilog = "\n".join(["questions, and what answers each (the findings, below the table):", *lines])
    parser.add_argument("trace", nargs="?", help="the trace's file; - is standard input")
    parser.add_argument(
        "--generate",
        metavar="NAME(KEY=VALUE)",
        help="play a made-up trace instead, as in 'chat(rate=2)' (docs/traces.md)",
    )
    parser.add_argument("--scenario", metavar="FILE", help="what is to be played, as TOML; flags come on top of it")
    parser.add_argument(
        "--simple", action="store_true", help="one lane of prefill a replica, at one speed: quick, and easy to compare"
    )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="A,B(KEY=VALUE)",
        help=f"policies to compare (default: {DEFAULT_POLICIES}); may be repeated",
    )
    fleet = parser.add_argument_group("the fleet")
    for field, told in FIELDS.items():
        fleet.add_argument(f"--{field.replace('_', '-')}", metavar="N", help=told)
    add_hardware_options(fleet)
    fleet.add_argument(
        "--closed-loop", action="store_true", help="turns wait for the answer before them, where the trace has pauses"
    )
    fleet.add_argument(
        "--fleet",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other field of the fleet (docs/simulate.md): a shared store as in 'store=25gbe' or "
        "'store={link=\"25gbe\",tokens=4G}', prefill and decode apart as in 'disaggregation={prefill=2,link=\"100gbe\"}'",
    )
    fleet.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=V,V",
        help="play each of these values, as in replicas=4,8 or store=none,25gbe; others are compared with the first; may be "
        "repeated",
    )
    chance = parser.add_argument_group("runs")
    chance.add_argument("--seed", type=int, metavar="N", help="of all chance (default 1)")
    chance.add_argument("--seeds", type=int, metavar="N", help="play each case N times, with other chance (default 1)")
    chance.add_argument("--jobs", type=int, metavar="N", help="processes at most (default: one for each core)")
    chance.add_argument("--resume", metavar="DIR", help="keep finished runs there, and do not play again what is there")
    chance.add_argument("--quiet", action="store_true", help="say nothing of progress")
    report = parser.add_argument_group("the report")
    report.add_argument(
        "--ttft-p95",
        type=parse_time,
        metavar="TIME",
        help="what 95 %% of first tokens have to come within: seconds, or as in 500ms",
    )
    report.add_argument(
        "--json", metavar="FILE", help="write the report as JSON; - is standard output, instead of the table"
    )
    report.add_argument("--html", metavar="FILE", help="write the report as one page that needs nothing else")
    report.add_argument("--plots", metavar="DIR", help="write each plot of the page into a file of its own")
    report.add_argument("--png", action="store_true", help="plots as PNG, too (needs kvlb[plots])")
    report.add_argument("--no-bounds", action="store_true", help="do not work out what any cache could save")
    add_reading_options(parser)


def run(args: argparse.Namespace) -> int:
    sys.path.append("")  # a policy of one's own may lie in the folder that kvlb is started from
    scenario = scenario_of(args)
    if args.generate is not None and args.trace is not None:
        raise ConfigError("--generate: give either a trace's file or a generator, not both")
    if args.generate is not None:
        because = "a made-up trace is not read from a file; its settings stand in brackets, as in 'chat(rate=2)'"
        refuse_unused(args, READING, "--generate", because)
    if scenario.trace is None and args.generate is None:
        raise ConfigError("trace: name a trace's file, as in kvlb simulate trace.jsonl, or trace = ... in the scenario")
    if args.png and args.plots is None:
        raise ConfigError("--png: name a folder for the plots, as in --plots DIR --png")
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError(f"--jobs: must be at least 1, got {args.jobs}")
    planned = cases(scenario)  # what is wrong with them is told before a large file is read
    trace = _trace(scenario, args)
    limits = None if args.no_bounds or not trace.has_blocks else bounds(trace, _pools(planned, trace.block_size))
    results = run_all(
        trace,
        planned,
        jobs=args.jobs,
        folder=None if args.resume is None else Path(args.resume),
        told=_silent if args.quiet else tell,
        keep=partial(_small, trace.has_blocks, limits, None if scenario.ttft_p95 is None else Least(trace)),
    )
    _show(
        document(
            trace,
            results,
            limits,
            versions={"kvlb": version("kvlb"), "python": platform.python_version()},
            inputs=_inputs(scenario),
            ttft_target=scenario.ttft_p95,
        ),
        args,
    )
    return 0


def _trace(scenario: Scenario, args: argparse.Namespace) -> Trace:
    """What is played; how it was read is told."""
    if args.generate is not None:
        named = parse_names(args.generate, "--generate")
        if len(named) != 1:
            raise ConfigError("--generate: name one generator, as in --generate 'chat(rate=2)'")
        return scaled(generators.make(named[0].name, named[0].settings).generate(scenario.seed), args, scenario.seed)
    trace, reading = open_trace(scenario.trace or "-", reading_options(args))
    check_used(args, reading.notes, "--load, or --fleet rate=2")
    if not args.quiet or reading.skipped:
        print(reading.text(), file=sys.stderr)
    is_assumed = scenario.hardware is None and not {"blocks", CACHE} & (scenario.fleet.keys() | scenario.sweep.keys())
    if is_assumed and not args.quiet:
        print(
            "  the fleet is an assumption: give --replicas and --cache, or --model and --gpu, of your own",
            file=sys.stderr,
        )
    played = scaled(trace, args, scenario.seed)
    if args.closed_loop and not trace.has_pauses and not args.quiet:
        print(
            "  --closed-loop changes nothing: the trace does not tell which turn waits for which answer",
            file=sys.stderr,
        )
    if not args.quiet and (words := scaled_words(args, len(trace), len(played))):
        print(words, file=sys.stderr)
    return played


def scenario_of(args: argparse.Namespace) -> Scenario:
    """What the file and the flags ask for together.

    Raises:
        ConfigError: a flag or a field of the file is wrong.
    """
    scenario = Scenario(model="simple") if args.scenario is None and args.simple else Scenario()
    if args.scenario is not None:
        scenario = load(args.scenario)
        if args.simple:
            scenario = msgspec.structs.replace(scenario, model="simple")
    fleet, sweep = layered(args, scenario.fleet, scenario.sweep)
    changes: dict[str, Any] = {"fleet": fleet, "sweep": sweep}
    if (hardware := hardware_of(args, scenario.hardware)) is not None:
        changes["hardware"] = hardware
    if args.policy:
        changes["policies"] = tuple(args.policy)
    for field in ("trace", "seed", "seeds", "ttft_p95"):
        if getattr(args, field) is not None:
            changes[field] = getattr(args, field)
    fields = msgspec.to_builtins(msgspec.structs.replace(scenario, **changes))
    try:
        return msgspec.convert(fields, Scenario)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{_flagged(said(error, fields), args)}") from error


def _flagged(told: str, args: argparse.Namespace) -> str:
    """What is wrong with a field, by the flag that has set it."""
    field = told.partition(":")[0]
    return f"--{field.replace('_', '-')}{told[len(field) :]}" if getattr(args, field, None) is not None else told


def _pools(planned: Sequence[Case], block_size: int) -> list[int]:
    """The sizes, in the trace's blocks, of caches as large as the fleets' together."""
    return sorted({_tokens(case) * case.fleet.replicas // block_size for case in planned})


def _tokens(case: Case) -> int:
    return case.fleet.blocks * case.fleet.block_size


def _small(has_blocks: bool, limits: Bounds | None, least: Least | None, case: Case, run: Run) -> Result:
    return result_of(
        run,
        cache_tokens=_tokens(case),
        infinite=None if limits is None else limits.infinite_by_request,
        ttft_p95_least=None if least is None else least.ttft_p95(case.fleet),
        has_blocks=has_blocks,
    )


def _inputs(scenario: Scenario) -> dict[str, str | int | float | bool | None]:
    told: dict[str, str | int | float | bool | None] = {
        "model": scenario.model,
        "seed": scenario.seed,
        "seeds": scenario.seeds,
        "ttft_p95": scenario.ttft_p95,
    }
    if scenario.hardware is not None:
        told["hardware"] = estimate(scenario.hardware).words
    for field, value in sorted(scenario.fleet.items()):
        told[f"fleet.{field}"] = value if isinstance(value, str | int | float) else msgspec.json.encode(value).decode()
    for field, values in sorted(scenario.sweep.items()):
        told[f"sweep.{field}"] = ", ".join(str(value) for value in values)
    return told


def _show(report: Document, args: argparse.Namespace) -> None:
    if args.json == "-":
        sys.stdout.write(encode(report).decode())
    else:
        is_terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size((100, 24)).columns if is_terminal else 100
        print(table(report, width=width, colour=is_terminal))
    if args.json not in (None, "-"):
        write_file("--json", Path(args.json), encode(report))
    if args.html is not None:
        write_file("--html", Path(args.html), page(report).encode())
    if args.plots is not None:
        write_plots(plots_of(report), Path(args.plots), ("svg", "png") if args.png else ("svg",))


def _silent(done: int, of: int, seconds: float) -> None:
    pass


command = Command("simulate", "replay a trace through routing policies on a model of a fleet", configure, run)
