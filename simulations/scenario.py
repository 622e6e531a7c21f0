"""What is to be simulated: a fleet, policies, what is varied, and how often, from a file or a command line.

Knows the file's fields and how they become cases. Never knows traces or results. Whatever is wrong is one error that names the
field and the remedy, before anything is played.
"""

import itertools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from balancer.errors import ConfigError
from simulations.detailed_fleet import DetailedFleet
from simulations.fleet_errors import said
from simulations.fleet_tables import EXAMPLES, NAME, NONE, TABLES, remedy, spelled
from simulations.grid import Case
from simulations.hardware.estimate import Hardware, estimate
from simulations.named_policies import NamedPolicy, parse
from simulations.rivals import below, refuse_rivals
from simulations.simple import SimpleFleet
from simulations.speeds import with_speeds
from simulations.written import Unreadable, read_values

CACHE: Final = "cache"
"""Stands for ``blocks`` in tokens, in fleets and sweeps: what people know of a cache."""

DEFAULT_POLICIES: Final = "predicted_ttft,cache_aware,session_sticky,least_load,round_robin"
MAX_CASES: Final = 100_000
MOST_SECONDS: Final = 1e9
"""Of a target: nobody waits for longer, and infinity is none."""

_UNITS: Final = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_NUMBER: Final = re.compile(r"((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)([kKmMgG]?)")

Kind = Literal["simple", "detailed"]
FLEETS: Final[dict[str, type[SimpleFleet] | type[DetailedFleet]]] = {"simple": SimpleFleet, "detailed": DetailedFleet}


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario file.

    Attributes:
        trace: the trace's file, seen from the scenario's folder; None where the command line names one.
        model: ``simple`` (one lane of prefill a replica) or ``detailed`` (engines step by step).
        policies: as on the command line; a list of lists with commas is one list.
        hardware: what a replica is made of (``simulations.hardware.estimate.Hardware``): its speed and its cache, where
            ``fleet`` does not say them.
        fleet: fields of ``simulations.simple.SimpleFleet`` or ``simulations.detailed_fleet.DetailedFleet``, or ``cache`` in
            tokens.
        sweep: by field of the fleet, the values that are tried; all combinations are played.
        seeds: how many times each case is played, with other chance.
        seed: of the first time.
        ttft_p95: what the 95th percentile of the time to the first token is to stay below, in seconds.
    """

    trace: str | None = None
    model: Kind = "detailed"
    policies: tuple[str, ...] = ()
    hardware: Hardware | None = None
    fleet: dict[str, Any] = {}
    sweep: dict[str, list[Any]] = {}
    seeds: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    seed: int = 1
    ttft_p95: Annotated[float, msgspec.Meta(gt=0, le=MOST_SECONDS)] | None = None


def load(path: str) -> Scenario:
    """The scenario of a TOML file.

    Raises:
        ConfigError: it cannot be read, or a field is wrong.
    """
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: this is no TOML: {error}") from error
    known = Scenario.__struct_fields__
    for field in data:
        if field not in known:
            raise ConfigError(f"{path}: {field}: there is no such field; {remedy(field, known)}")
    try:
        made = msgspec.convert(data, Scenario)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {said(error, data)}") from error
    trace = made.trace
    if trace is not None and trace != "-":
        made = msgspec.structs.replace(made, trace=str(Path(path).parent / trace))
    return made


def cases(scenario: Scenario) -> list[Case]:
    """Every policy on every fleet with every seed: fleets outermost, so that what is compared comes together.

    Raises:
        ConfigError: a policy or a field of the fleet is wrong, or there are too many cases.
    """
    policies = parse(",".join(scenario.policies) or DEFAULT_POLICIES)
    combined = _combined(scenario.fleet, scenario.sweep)
    model, hardware = scenario.model, scenario.hardware
    fleets = [fleet_of(model, with_hardware(model, hardware, with_speeds(model, each))) for each in combined]
    _refuse_unused(fleets)
    count = len(policies) * len(fleets) * scenario.seeds
    if count > MAX_CASES:
        raise ConfigError(
            f"sweep: {count:,} runs are asked for, and {MAX_CASES:,} at most are played; vary less at once"
        )
    seeds = range(scenario.seed, scenario.seed + scenario.seeds)
    return [Case(policy, fleet, seed) for fleet in fleets for policy in _unique(policies) for seed in seeds]


def with_hardware(model: Kind, hardware: Hardware | None, fleet: Mapping[str, Any]) -> dict[str, Any]:
    """The fleet with the speed and the cache of this hardware, and the weight of a token there, where it says none of its own.

    Raises:
        ConfigError: there is no such hardware, or a table of the fleet is wrong.
    """
    made = spelled(fleet)
    if hardware is None:
        return made
    found = estimate(hardware)
    if not {"blocks", CACHE} & made.keys():
        made[CACHE] = found.cache_tokens
    for field in TABLES:
        if isinstance(moved := made.get(field), dict):
            made[field] = {"token_bytes": found.kv_bytes, **moved}
    if model == "simple":
        made.setdefault("prefill_tps", found.prefill_tps)
        made.setdefault("decode_seconds", found.latency.overhead + found.latency.weights)
    else:
        made.setdefault("latency", msgspec.structs.asdict(found.latency))
    return made


def fleet_of(model: Kind, fields: Mapping[str, Any]) -> SimpleFleet | DetailedFleet:
    """A fleet with these fields.

    Raises:
        ConfigError: there is no such field, or its value is none.
    """
    kind = FLEETS[model]
    known = kind.__struct_fields__
    without = {name for name, value in zip(known, kind.__struct_defaults__, strict=True) if value is None}
    given = {field: value for field, value in fields.items() if value != NONE or field not in without}
    for field in given:
        if field not in known and field != CACHE:
            others = [name for name, other in FLEETS.items() if name != model and field in other.__struct_fields__]
            instead = f"the {others[0]} model has it" if others else remedy(field, (*known, CACHE))
            raise ConfigError(f"fleet.{field}: a fleet of the {model} model has no such field; {instead}")
    refuse_rivals(given)
    if CACHE in given:
        size = number_of(given.get("block_size", kind.__struct_defaults__[known.index("block_size")]))
        if not isinstance(size, int):
            raise ConfigError(f"fleet.block_size: must be a number of tokens, got {size!r}")
        tokens = number_of(given.pop(CACHE))
        if not isinstance(tokens, int | float) or not size <= tokens < math.inf:
            raise ConfigError(f"fleet.{CACHE}: must be a number of tokens, one block ({size}) at least, got {tokens}")
        given["blocks"] = int(tokens // size)
    given = {
        field: {key: each if key == NAME else number_of(each) for key, each in value.items()}
        if isinstance(value, dict)
        else number_of(value)
        for field, value in spelled(given).items()
    }
    try:
        return msgspec.convert(given, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"fleet.{said(error, given)}") from error


def sweep_of(text: str, flag: str = "--sweep") -> tuple[str, list[Any]]:
    """``blocks=1024,4096`` as a field and its values; ``flag`` is where it stands.

    Raises:
        ConfigError: it is none.
    """
    field, equals, written = text.partition("=")
    try:
        found = [_whole(number_of(each)) for each in read_values(written)]
    except Unreadable as error:
        raise ConfigError(f"{flag} {text}: {error}{_example(field)}") from error
    if not equals or not found:
        raise ConfigError(f"{flag} {text}: write a field of the fleet and what it is to be, as in {flag} replicas=4")
    return field_name(field), found


def _whole(value: Any) -> Any:
    """``1e4`` of a command line, which TOML takes for a number that is not whole, as flags of its own read it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def field_name(text: str) -> str:
    """A field of the fleet as it is called, however a command line writes it."""
    return text.strip().replace("-", "_")


def _example(field: str) -> str:
    example = EXAMPLES.get(field_name(field))
    return "" if example is None else f", as in '{example}'"


def number_of(value: Any) -> Any:
    """``"4M"`` as 4,000,000, ``"1e4"`` as 10,000 and the like; what is no such number, or has no end, stays."""
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    number = float(match[1]) * _UNITS[match[2].lower()]
    if math.isinf(number):
        return value
    return int(number) if number == int(number) else number


def _combined(fleet: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    for field, values in sweep.items():
        if not values:
            raise ConfigError(f"sweep.{field}: give one value at least")
    return [
        {
            **below(fleet, sweep),
            **dict(zip(sweep, each, strict=True)),
        }
        for each in itertools.product(*sweep.values())
    ]


def _refuse_unused(fleets: Sequence[SimpleFleet | DetailedFleet]) -> None:
    """Refuse what is said of what none of these fleets has."""
    engines = [fleet for fleet in fleets if isinstance(fleet, DetailedFleet)]
    if any(fleet.exchange is not None for fleet in engines) and all(fleet.gateways == 1 for fleet in engines):
        raise ConfigError(
            "fleet.exchange, fleet.gateways: one gateway has none to ask; give more, as in gateways=2, or leave exchange out"
        )
    most = max([fleet.replicas for fleet in fleets], default=0)
    for fleet in engines:
        if len(fleet.speeds) > most:
            raise ConfigError(
                f"fleet.speeds, fleet.replicas: {len(fleet.speeds)} speeds are told, and there are {most} replicas at most; "
                "leave some out, or give more replicas"
            )


def _unique(policies: Sequence[NamedPolicy]) -> list[NamedPolicy]:
    return list({policy.written: policy for policy in policies}.values())
