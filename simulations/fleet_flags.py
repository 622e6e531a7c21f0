"""The fleet that flags ask for, on top of the one of a scenario's file: what flags say twice is refused.

Knows flags and fields of a fleet. Never knows what a fleet does with them, or anything of what else is asked for.
"""

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

import msgspec

from balancer.errors import ConfigError
from simulations.flags import flag
from simulations.rivals import below, subject
from simulations.scenario import CACHE, number_of, sweep_of

FIELDS: Final = {
    "replicas": "how many replicas (default 8)",
    "blocks": "blocks in each replica's cache (default 8192)",
    CACHE: "the same in tokens, as in 4M",
    "block_size": "tokens of a block of the engine (default: simple 512, detailed 16)",
    "load": "stretch the trace's time so that this share comes of what all replicas can compute, if nothing were cached",
    "prefill_tps": "uncached prompt tokens that a replica computes a second",
    "decode_ms": "milliseconds from one token of an answer to the next",
}
"""What has flags of its own; ``--fleet KEY=VALUE`` sets any other field."""


class Said(msgspec.Struct, frozen=True):
    """What one flag says: the field, its values (one, but for ``--sweep``), and both as they were written."""

    flag: str
    field: str
    text: str
    values: Sequence[Any]

    @property
    def is_swept(self) -> bool:
        return self.flag.startswith("--sweep")


def layered(
    args: argparse.Namespace, fleet: Mapping[str, Any], sweep: Mapping[str, list[Any]]
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Fields and swept fields of a file, beneath those of the flags: what a flag says, in whatever words, the file does not.

    Raises:
        ConfigError: a flag says nothing, or two of them say the same.
    """
    said = [*_said(args)]
    for one, other in combinations(said, 2):
        _refuse_both(one, other)
    fields = [each.field for each in said]
    fixed, swept = below(fleet, fields), {**below(sweep, fields)}
    for each in said:
        if each.is_swept:
            swept[each.field] = list(each.values)
        else:
            fixed[each.field] = each.values[0]
    return fixed, swept


def _said(args: argparse.Namespace) -> Iterable[Said]:
    for field in FIELDS:
        if (value := getattr(args, field)) is not None:
            yield Said(f"{flag(field)} {value}", field, value, [number_of(value)])
    if args.closed_loop:
        yield Said("--closed-loop", "closed_loop", "true", [True])
    for each in args.fleet:
        field, values = sweep_of(each, "--fleet")
        if len(values) > 1:
            raise ConfigError(
                f"--fleet {each}: give one value, or a list as in speeds=[1,1,0.5]; --sweep plays several"
            )
        yield Said(f"--fleet {each}", field, each.partition("=")[2].strip(), values)
    for each in args.sweep:
        field, values = sweep_of(each)
        yield Said(f"--sweep {each}", field, each.partition("=")[2].strip(), values)


def _refuse_both(one: Said, other: Said) -> None:
    both = f"{one.flag}, {other.flag}"
    if one.field == other.field:
        joined = shlex.join(["--sweep", f"{one.field}={one.text.rstrip(',')},{other.text}"])
        raise ConfigError(
            f"{both}: both say what {one.field} is; leave one of them out, or play all of it with {joined}"
        )
    if (about := subject(one.field, other.field)) is not None:
        raise ConfigError(f"{both}: both say {about}; leave one of them out")
