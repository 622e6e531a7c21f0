"""``kvlb economics``: is a prompt's cache moved, or computed anew? For models, links and precisions side by side.

Knows flags, named hardware and how the answer is written. Never knows the arithmetic: that is ``balancer.economics``.
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from balancer.commands import Command
from balancer.economics.links import LINKS, Link, link_named, network
from balancer.economics.model_config import cache_shape
from balancer.economics.precision import latent_bytes, vector_bytes
from balancer.economics.prefill import Prefill
from balancer.economics.shape import CacheShape
from balancer.economics.verdict import Verdict, judge
from balancer.errors import ConfigError
from balancer.model_files import read_config
from simulations.flags import once, refuse_unused
from simulations.hardware.estimate import COMPUTE_SHARE, Hardware, Model, device_named, estimate, model_named, models
from simulations.latency import LatencyModel
from simulations.report.figures import duration

DEFAULT_MODELS: Final = ("qwen2.5-1.5b", "llama-3.1-8b", "llama-3.1-70b")
DEFAULT_LINKS: Final = ("10gbe", "25gbe", "100gbe", "400gbe", "nvme-pcie4", "ram-pcie5")
DEFAULT_PRECISIONS: Final = ("bfloat16", "fp8")
COUNTS: Final = (1, 2, 4, 8, 16, 32)
"""Devices that a model is spread over; the least that hold it, unless somebody says."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One model, one precision, one link. Seconds, bytes, bytes a second, tokens."""

    model: str
    on: str
    kv_dtype: str
    link: str
    bytes_per_token: float
    bandwidth: float
    fixed_seconds: float
    size: float
    move_seconds: float
    compute_seconds: float
    verdict: str
    break_even_tokens: int | None
    break_even_bandwidth: float | None


class Sized(msgspec.Struct, frozen=True):
    """One model: how it is computed, and what it keeps, by precision."""

    name: str
    on: str
    prefill: Prefill
    shape: Callable[[str], CacheShape]
    words: str


def configure(parser: argparse.ArgumentParser) -> None:
    once(parser)
    parser.description = (
        "Says for each model, precision of its cache and link whether a prompt that lies somewhere else is moved or computed "
        "anew, and from which length on moving is quicker."
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="M",
        help=f"a config.json, or one of {', '.join(models())}; may be repeated (default: {', '.join(DEFAULT_MODELS)})",
    )
    parser.add_argument(
        "--link",
        action="append",
        metavar="L",
        help=f"{', '.join(LINKS)}, or a rate in Gbit/s; may be repeated (default: {', '.join(DEFAULT_LINKS)})",
    )
    parser.add_argument(
        "--kv-dtype",
        action="append",
        metavar="T",
        help=f"the engine's --kv-cache-dtype; may be repeated (default: {', '.join(DEFAULT_PRECISIONS)})",
    )
    parser.add_argument("--tokens", type=int, default=8000, metavar="N", help="length of the prompt (default 8000)")
    parser.add_argument(
        "--setup-ms", type=float, default=0.0, metavar="T", help="what a load takes besides the link (default 0)"
    )
    speed = parser.add_argument_group("how fast prompts are computed")
    speed.add_argument("--prefill-tps", type=float, metavar="N", help="measured prompt tokens a second")
    speed.add_argument("--gpu", default="h100", metavar="NAME", help="or by arithmetic, on these (default h100)")
    speed.add_argument("--gpus", type=int, metavar="N", help="devices of a replica (default: the least that hold it)")
    speed.add_argument(
        "--parameters", type=float, metavar="N", help="billions that one token uses, of the model of a config.json"
    )
    parser.add_argument("--json", action="store_true", help="print the rows and where they are from as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the table.

    Raises:
        ConfigError: a flag, or a file that cannot be used.
    """
    _check(args)
    links = {
        name: msgspec.structs.replace(link_of("--link", name), setup=args.setup_ms / 1000)
        for name in args.link or DEFAULT_LINKS
    }
    sized = [_sized(name, args) for name in args.model or DEFAULT_MODELS]
    rows = [
        _row(each, precision, name, link, args.tokens)
        for each in sized
        for precision in args.kv_dtype or DEFAULT_PRECISIONS
        for name, link in links.items()
    ]
    if args.json:
        sys.stdout.write(_encoded(args, rows, links, sized).decode())
    else:
        print(_table(args, rows, links, sized))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.prefill_tps is not None:
        refuse_unused(
            args, ("gpu", "gpus", "parameters"), "--prefill-tps", "a speed that was measured is not worked out, too"
        )
    if args.parameters is not None and not any(map(_is_config, args.model or DEFAULT_MODELS)):
        raise ConfigError(
            "--parameters, --model: how many a token uses is known of each model that has a name; give --model config.json, or "
            "leave --parameters out"
        )
    if args.tokens < 1:
        raise ConfigError(f"--tokens: must be at least 1, got {args.tokens}")
    if not 0 <= args.setup_ms < math.inf:
        raise ConfigError(f"--setup-ms: must be a number of milliseconds, 0 or more, got {args.setup_ms}")
    for flag in ("prefill_tps", "parameters", "gpus"):
        value = getattr(args, flag)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"--{flag.replace('_', '-')}: must be a number above 0, got {value}")


def link_of(flag: str, name: str) -> Link:
    """A link by its name, or by its rate in Gbit/s; ``flag`` is where that was written.

    Raises:
        ConfigError: it is neither.
    """
    try:
        rate = float(name)
    except ValueError:
        return link_named(flag, name)
    if not 0 < rate < math.inf:
        raise ConfigError(f"{flag}: {name} is not a rate; give a number of Gbit/s above 0")
    return network(rate)


# Models


def _sized(name: str, args: argparse.Namespace) -> Sized:
    if _is_config(name):
        return _sized_by_config(Path(name), args)
    model = model_named("--model", name)
    prefill, on, words = _speed(name, args)

    def shape(precision: str) -> CacheShape:
        return CacheShape.uniform(_kept(model, precision), model.source)

    return Sized(name.lower(), on, prefill, shape, f"{words}; {model.source}" if args.prefill_tps else words)


def _kept(model: Model, precision: str) -> float:
    """Bytes of a token of a named model."""
    precision = "bfloat16" if precision == "auto" else precision
    if model.latent:
        return model.layers * latent_bytes(precision, model.kv_elements)
    vectors = model.kv_elements // model.head_size  # a key and a value of each head
    return model.layers * vectors * vector_bytes(precision, model.head_size)


def _speed(name: str, args: argparse.Namespace) -> tuple[Prefill, str, str]:
    """How fast a named model is computed; on what; and what that rests on."""
    if args.prefill_tps:
        return Prefill.from_speed(args.prefill_tps), "measured", f"{name}: {args.prefill_tps:,.0f} tokens/s as given"
    device_named("--gpu", args.gpu)
    for count in (args.gpus,) if args.gpus else COUNTS:
        try:
            found = estimate(Hardware(name, args.gpu, count))
        except ConfigError:
            if count in (args.gpus, COUNTS[-1]):
                raise
            continue
        return prefill_of(found.latency), f"{count} x {args.gpu.lower()}", found.words
    raise AssertionError("the last one has raised")


def prefill_of(latency: LatencyModel) -> Prefill:
    """A prompt by itself, where steps cost this."""
    return Prefill(latency.overhead, latency.token, latency.pair, latency.weights)


def _is_config(name: str) -> bool:
    return name.endswith(".json") or "/" in name or Path(name).exists()


def _sized_by_config(path: Path, args: argparse.Namespace) -> Sized:
    config = read_config("--model", path)
    name = path.parent.resolve().name if path.name == "config.json" else path.stem
    if args.prefill_tps:
        prefill, on, words = (
            Prefill.from_speed(args.prefill_tps),
            "measured",
            f"{name}: {args.prefill_tps:,.0f} tokens/s as given",
        )
    elif args.parameters:
        gpu, count = device_named("--gpu", args.gpu), args.gpus or 1
        flops = gpu.tflops * 1e12 * COMPUTE_SHARE * count
        prefill = Prefill.from_flops(flops, args.parameters * 1e9)
        on = f"{count} x {args.gpu.lower()}"
        words = (
            f"{name} on {on}: {COMPUTE_SHARE:.0%} of {gpu.tflops:g} TFLOP/s, attention left out; {gpu.source}; {path}"
        )
    else:
        raise ConfigError(
            f"--model {path}: a config.json does not say how fast it is; give --prefill-tps, or --parameters with --gpu"
        )
    return Sized(name, on, prefill, lambda precision: cache_shape(config, precision, str(path)), words)


# What is shown


def _row(sized: Sized, precision: str, name: str, link: Link, tokens: int) -> Row:
    shape = sized.shape(precision)
    verdict: Verdict = judge(tokens, link, shape, sized.prefill)
    return Row(
        model=sized.name,
        on=sized.on,
        kv_dtype=precision,
        link=name,
        bytes_per_token=shape.bytes_per_token,
        bandwidth=link.bandwidth,
        fixed_seconds=link.fixed,
        size=verdict.size,
        move_seconds=verdict.move_seconds,
        compute_seconds=verdict.compute_seconds,
        verdict="move" if verdict.moves else "compute",
        break_even_tokens=verdict.break_even_tokens,
        break_even_bandwidth=verdict.break_even_bandwidth,
    )


HEAD: Final = (
    "model",
    "on",
    "computed",
    "cache",
    "KiB/token",
    "size",
    "link",
    "moved",
    "quicker",
    "moved from",
    "or from",
)
_LEFT: Final = {0, 1, 3, 6, 8}


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.model,
        row.on,
        duration(row.compute_seconds),
        row.kv_dtype,
        f"{row.bytes_per_token / 1024:.4g}",
        f"{row.size / 2**30:.2f} GiB",
        row.link,
        duration(row.move_seconds),
        row.verdict,
        "never" if row.break_even_tokens is None else f"{row.break_even_tokens:,} tokens",
        "never" if row.break_even_bandwidth is None else f"{row.break_even_bandwidth * 8e-9:.3g} Gbit/s",
    )


def _table(args: argparse.Namespace, rows: Sequence[Row], links: Mapping[str, Link], sized: Sequence[Sized]) -> str:
    cells: list[tuple[str, ...]] = [HEAD]
    above: tuple[str, ...] = ()
    for row in rows:
        full = _cells(row)
        said = full[:6]
        cells.append(("",) * 6 + full[6:] if said == above else full)
        above = said
    widths = [max(len(each[at]) for each in cells) for at in range(len(HEAD))]
    lines = [
        "  ".join(
            cell.ljust(width) if at in _LEFT else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(each, widths, strict=True))
        ).rstrip()
        for each in cells
    ]
    told = [
        f"A prompt of {args.tokens:,} tokens that the replica does not hold; its last token is computed either way.",
        "",
        *lines,
        "",
        *(f"{each.words}." for each in sized),
        *(f"{name}: {link.source}, {duration(link.fixed)} until the first byte." for name, link in links.items()),
    ]
    return "\n".join(told)


def _encoded(args: argparse.Namespace, rows: Sequence[Row], links: Mapping[str, Link], sized: Sequence[Sized]) -> bytes:
    document = {
        "kind": "kvlb economics",
        "schema": 1,
        "tokens": args.tokens,
        "rows": rows,
        "models": {each.name: each.words for each in sized},
        "links": {name: link.source for name, link in links.items()},
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


command = Command(
    "economics", "say whether a prompt's cache is moved or computed anew, by link and model", configure, run
)
