"""Flags with which commands let people say how a trace is to be read.

Knows ``argparse``. Never knows what the flags do: that is ``simulations.traces.formats.base.ReadingOptions``.
"""

import argparse
from collections.abc import Sequence
from random import Random
from typing import Final

from balancer.errors import ConfigError
from balancer.words import counted
from simulations.flags import flag, given
from simulations.traces.formats.base import FIELDS, ReadingOptions, formats
from simulations.traces.scaling import first, sessions_times
from simulations.traces.times import UNITS
from simulations.traces.trace import Trace

DEFAULTS = ReadingOptions()

READING: Final = (
    "format", "trace_block_size", "time_unit", "ids", "column", "tokenizer", "trace_rate", "pause", "strict",
)  # fmt: skip
"""Flags that say how a file is read; of no use where there is none."""


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """The flags of ``reading_options``."""
    group = parser.add_argument_group("reading traces")
    group.add_argument(
        "--format",
        metavar="NAME",
        help=f"format of the trace: {', '.join(formats.names())} (default: what the file looks like)",
    )
    group.add_argument(
        "--trace-block-size", type=int, metavar="N", help="tokens of one block id (default: what the format has)"
    )
    group.add_argument(
        "--time-unit", metavar="UNIT", help=f"unit of times: {', '.join(UNITS)} (default: what the format has)"
    )
    group.add_argument(
        "--ids",
        metavar="KIND",
        help="what a block id names: chained (all up to its block) or content (its block alone); default: what the format has",
    )
    group.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="FIELD=NAME",
        help=f"what a field or column is called in the file; may be repeated; fields: {', '.join(FIELDS)}",
    )
    group.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json for traces with texts, or its folder (needs kvlb[tokenizers])",
    )
    group.add_argument(
        "--trace-rate",
        type=float,
        default=DEFAULTS.rate,
        metavar="R",
        help="requests a second, for files without times (default: 1)",
    )
    group.add_argument(
        "--pause",
        type=float,
        default=DEFAULTS.pause,
        metavar="S",
        help="seconds from an answer to the next turn, for conversations without times (default: 10)",
    )
    group.add_argument("--strict", action="store_true", help="end at the first line that cannot be read")
    group.add_argument("--first", type=int, metavar="N", help="only the first N requests")
    group.add_argument(
        "--sessions",
        type=float,
        metavar="X",
        help="X times as many conversations in the same time: a share of them, or copies with blocks of their own",
    )


def scaled(trace: Trace, args: argparse.Namespace, seed: int) -> Trace:
    """What these flags leave of a trace, or make of it; the same for the same seed.

    Raises:
        ConfigError: one of them cannot be used.
    """
    if args.first is not None:
        if args.first < 1:
            raise ConfigError(f"--first: must be at least 1, got {args.first}")
        trace = first(trace, requests=args.first)
    if args.sessions is not None:
        try:
            trace = sessions_times(trace, args.sessions, Random(seed))
        except ValueError as error:
            raise ConfigError(f"--sessions: {error}") from error
        if not len(trace):
            raise ConfigError(f"--sessions: {args.sessions:g} times as many conversations are none; give more")
    return trace


def reading_options(args: argparse.Namespace) -> ReadingOptions:
    """What these flags say.

    Raises:
        ConfigError: one of them cannot be used.
    """
    columns: dict[str, str] = {}
    for each in args.column:
        field, is_given, name = each.partition("=")
        if not (is_given and name):
            raise ConfigError(f"--column: {each!r} names no column; give FIELD=NAME")
        if columns.setdefault(field, name) != name:
            raise ConfigError(
                f"--column {field}={columns[field]}, --column {each}: a field is called one thing; leave one of them out"
            )
    if args.ids not in (None, "chained", "content"):
        raise ConfigError(f"--ids: {args.ids!r} is unknown; use chained or content")
    return ReadingOptions(
        format=args.format,
        block_size=args.trace_block_size,
        time_unit=args.time_unit,
        chained=None if args.ids is None else args.ids == "chained",
        columns=columns,
        tokenizer=args.tokenizer,
        rate=args.trace_rate,
        pause=args.pause,
        strict=args.strict,
    )


def check_used(args: argparse.Namespace, notes: Sequence[str], instead: str) -> None:
    """Refuse flags that stand in for what a trace does not tell, where it tells that.

    Args:
        args: with what was given.
        notes: of reading the trace; they name the flags that were of use.
        instead: what plays a trace faster.

    Raises:
        ConfigError: one was given, and was of no use.
    """
    for name, has in (
        ("trace_rate", f"each of the trace's requests has a time; what plays it faster is {instead}"),
        ("pause", "the trace has times, or no turns"),
    ):
        if given(args, name) and not any(flag(name) in note for note in notes):
            raise ConfigError(f"{flag(name)}: {has}; leave it out")


def scaled_words(args: argparse.Namespace, before: int, after: int) -> str:
    """How many requests of a trace are played, and why not as many as it has; empty where it is as many."""
    if before == after:
        return ""
    flags = [f"{flag(name)} {value:g}" for name in ("first", "sessions") if (value := getattr(args, name)) is not None]
    return f"  of these, {counted(after, 'request')} {'is' if after == 1 else 'are'} played ({', '.join(flags)})"


def reading_words(args: argparse.Namespace) -> list[str]:
    """The same flags again, as words of a command line that reads the trace as this one did."""
    told: list[str] = []
    for name, default in (
        ("format", None),
        ("trace_block_size", None),
        ("time_unit", None),
        ("ids", None),
        ("tokenizer", None),
        ("trace_rate", DEFAULTS.rate),
        ("pause", DEFAULTS.pause),
        ("first", None),
        ("sessions", None),
    ):
        if (value := getattr(args, name)) != default:
            told += [flag(name), str(value)]
    for each in args.column:
        told += ["--column", each]
    return [*told, "--strict"] if args.strict else told
