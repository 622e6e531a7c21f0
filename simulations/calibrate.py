"""``kvlb calibrate``: what a step costs on an engine that runs, for ``kvlb simulate`` and ``kvlb plan``.

Knows flags, what is asked in which order, and what is shown. The engine should have nothing else to do: whatever it does
besides is in the times. Never knows how a request is timed (``simulations.probing``) or fitted (``simulations.fitting``).
"""

import argparse
import asyncio
import math
import sys
from typing import Any, Final

import aiohttp
import msgspec

from balancer.commands import Command
from balancer.commands.asking import told_as_json
from balancer.commands.loop import run_loop
from balancer.errors import ConfigError
from balancer.settings import check_url
from balancer.words import counted, printable
from simulations.fitting import COSTS, Fit, Sample, combined, fit, predicted
from simulations.flags import once, refuse_unused
from simulations.latency import LatencyModel
from simulations.probing import Engine, Limits, Rates, read_rates

LENGTHS: Final = (16, 64, 256, 512, 1024, 2048, 3072, 4096, 8192)
BATCHES: Final = (1, 4, 8)
SHORT: Final = 32
"""Tokens of a prompt whose answer is decoded, where context is not to matter."""
LONG: Final = 2048
"""The same where it is."""
ASKING: Final = (
    "model", "vocabulary", "lengths", "batches", "decode_tokens", "pause", "repeats", "max_num_batched_tokens", "seed",
)  # fmt: skip
"""Flags that say what is sent, and how."""
PAUSE: Final = 0.5
"""Seconds. What is asked right after something else finds caches, clocks and threads awake, as few requests of a service do."""


def configure(parser: argparse.ArgumentParser) -> None:
    once(parser)
    add = parser.add_argument
    add("url", metavar="URL", help="a vLLM server that has nothing else to do, like http://10.0.0.1:8000")
    add("--metrics", action="store_true", help="send nothing: two figures of what the engine has computed so far")
    add("--model", metavar="NAME", help="what to ask for (default: the first model that it serves)")
    add("--api-key", metavar="KEY", help="bearer token, where the engine asks for one")
    add("--vocabulary", type=int, default=1000, metavar="N", help="token ids of prompts lie below this (default 1000)")
    add("--lengths", metavar="N,N", help="prompts of so many tokens (default: 16 to 8192, as far as they fit)")
    add("--batches", default=",".join(map(str, BATCHES)), metavar="N,N", help="answers at once (default %(default)s)")
    add("--decode-tokens", type=int, default=96, metavar="N", help="tokens of a timed answer (default 96)")
    add(
        "--pause",
        type=float,
        default=PAUSE,
        metavar="S",
        help="seconds that the engine rests before each, as between requests of a service (default %(default)s)",
    )
    add("--repeats", type=int, default=3, metavar="N", help="everything so many times; medians count (default 3)")
    add(
        "--max-num-batched-tokens",
        type=int,
        default=2048,
        metavar="N",
        help="the engine's flag: longer prompts take several steps (default 2048)",
    )
    add("--seed", type=int, default=1, metavar="N", help="of the prompts' tokens and their salts (default 1)")
    add("--timeout", type=float, default=120.0, metavar="S", help="how long one answer may take (default 120)")
    add("--json", action="store_true", help="print the coefficients and all samples as JSON")


class _Measured(msgspec.Struct, frozen=True):
    limits: Limits
    samples: list[Sample]
    fit: Fit
    requests: int
    notes: list[str]


def run(args: argparse.Namespace) -> int:
    """Measure, and print the coefficients.

    Raises:
        ConfigError: a flag, or something that the engine refuses.
        Unreachable: the engine.
    """
    with told_as_json(args.json):
        _check(args)
        if args.metrics:
            rates = run_loop(_read(args))
            shown = _rates_as_json(rates) if args.json else _rates_as_toml(args.url, rates)
        else:
            measured = run_loop(_measure(args))
            shown = _as_json(measured) if args.json else _as_toml(args.url, measured)
    print(shown)
    return 0


def _check(args: argparse.Namespace) -> None:
    check_url("URL", args.url)
    if args.metrics:
        refuse_unused(args, ASKING, "--metrics", "--metrics sends nothing to the engine")
    least = {"--vocabulary": 2, "--decode-tokens": 8, "--repeats": 1, "--max-num-batched-tokens": 1}
    for flag, at_least in least.items():
        if getattr(args, flag[2:].replace("-", "_")) < at_least:
            raise ConfigError(f"{flag}: must be at least {at_least}")
    if not 0 <= args.pause < math.inf:
        raise ConfigError(f"--pause: must be a number of seconds, 0 or more, got {args.pause:g}")
    if not 0 < args.timeout < math.inf:
        raise ConfigError(f"--timeout: must be a number of seconds above 0, got {args.timeout:g}")


def _numbers(flag: str, text: str) -> list[int]:
    try:
        found = sorted({int(each) for each in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise ConfigError(f"{flag}: '{text}' is not a list of whole numbers above 0, as in 16,256,1024")
    return found


def _session(args: argparse.Namespace) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=args.timeout), connector=aiohttp.TCPConnector(limit=0)
    )


def _engine(args: argparse.Namespace, session: aiohttp.ClientSession) -> Engine:
    return Engine(session, args.url.rstrip("/"), vocabulary=args.vocabulary, seed=args.seed, api_key=args.api_key)


async def _read(args: argparse.Namespace) -> Rates:
    async with _session(args) as session:
        return read_rates(await _engine(args, session).metrics())


async def _measure(args: argparse.Namespace) -> _Measured:
    batches = _numbers("--batches", args.batches)
    async with _session(args) as session:
        engine = _engine(args, session)
        limits = await engine.limits(args.model)
        lengths = _lengths(args.lengths, limits)
        shapes = _shapes(batches, args.decode_tokens, limits)
        await engine.prompt(
            limits.model, lengths[0], args.max_num_batched_tokens
        )  # connections, and what is made on first use
        samples: list[Sample] = []
        alone: set[tuple[int, int]] = set()
        for repeat in range(args.repeats):
            print(f"round {repeat + 1} of {args.repeats}", file=sys.stderr, flush=True)
            for tokens in lengths:
                await asyncio.sleep(args.pause)
                samples.append(await engine.prompt(limits.model, tokens, args.max_num_batched_tokens))
            for at, (batch, most) in enumerate(shapes):
                await asyncio.sleep(args.pause)
                sample, context = await engine.decoding(limits.model, batch, most, args.decode_tokens), most
                # Who does not tell the size of its cache, as a gateway does not, may have a small one.
                while sample is None and context > SHORT and (batch, SHORT) not in alone:
                    context //= 2
                    sample = await engine.decoding(limits.model, batch, context, args.decode_tokens)
                if sample is None:
                    alone.add((batch, context))
                else:
                    shapes[at] = (batch, context)
                    samples.append(sample)
        notes = [
            f"{batch} answers behind {context} tokens did not come side by side" for batch, context in sorted(alone)
        ]
        return _Measured(limits, samples, fit(samples), engine.requests - 1, notes)


def _lengths(asked: str | None, limits: Limits) -> list[int]:
    """Prompts that fit; those that were asked for must."""
    most = min(each for each in (limits.max_model_len, limits.cache_tokens, 1 << 30) if each is not None) - 1
    if asked is None:
        return [each for each in LENGTHS if each <= most] or [most]
    lengths = _numbers("--lengths", asked)
    if lengths[-1] > most:
        raise ConfigError(
            f"--lengths: {lengths[-1]} tokens and one of the answer are more than {limits.model} takes; {most} at most"
        )
    return lengths


def _shapes(batches: list[int], answer: int, limits: Limits) -> list[tuple[int, int]]:
    """(answers at once, tokens of each prompt): every batch behind short prompts, and behind long ones as far as they fit."""
    room = limits.cache_tokens or 1 << 30
    longest = (limits.max_model_len or 1 << 30) - answer - 1
    found: dict[tuple[int, int], None] = {}
    for batch in batches:
        for context in (SHORT, LONG):
            # Half of the cache: an engine that had to preempt would be timed at something else.
            fits = min(context, longest, room // (2 * batch) - answer)
            if fits >= 1:
                found[batch, fits] = None
    if not found:
        raise ConfigError(f"--decode-tokens: {answer} do not fit into the engine; give fewer, or smaller --batches")
    return list(found)


def _as_toml(url: str, measured: _Measured) -> str:
    found, times = measured.fit, combined(measured.samples)
    prompts = [
        sum(step.prefill_tokens + step.decode_requests for step in each.steps) for each in times if each.requests
    ]
    batches = sorted({each.steps[0].decode_requests for each in times if not each.requests})
    lines = [
        f"kvlb calibrate {url}: {measured.limits.model}",
        f"{counted(measured.requests, 'request')}: prompts of {prompts[0]} to {prompts[-1]} tokens to the answer's first byte, "
        f"and tokens of {', '.join(map(str, batches))} answers at once",
        f"{counted(found.samples, 'sample')} (medians of repeats); error of the fit: {found.mean_error:.1%} on average, "
        f"{found.worst_error:.1%} at most ({found.worst})",
        *measured.notes,
    ]
    return _toml(lines, found.latency)


def _rates_as_toml(url: str, rates: Rates) -> str:
    latency = rates.latency()
    lines = [
        f"kvlb calibrate {url} --metrics: what it has computed since it began",
        f"{rates.prompt_tokens:,.0f} prompt tokens in {rates.prefill_seconds:,.1f} s, "
        f"{rates.answer_tokens:,.0f} tokens of answers in {rates.between_seconds:,.1f} s",
        "time that several requests shared counts for each of them: of a busy engine, both are slower than it is",
    ]
    return _toml(lines, latency)


def _toml(comments: list[str], latency: LatencyModel) -> str:
    values = [f"{name} = {getattr(latency, name):.6g}" for name in COSTS]
    return "\n".join([*(f"# {printable(line)}" for line in comments), "[fleet.latency]", *values])


def _as_json(measured: _Measured) -> str:
    found = measured.fit
    told: dict[str, Any] = {
        "model": measured.limits.model,
        "latency": found.latency,
        "requests": measured.requests,
        "samples": [
            {"name": each.name, "seconds": each.seconds, "fitted": predicted(found.latency, each)}
            for each in combined(measured.samples)
        ],
        "mean_error": found.mean_error,
        "worst_error": found.worst_error,
        "notes": measured.notes,
    }
    return msgspec.json.encode(told).decode()


def _rates_as_json(rates: Rates) -> str:
    return msgspec.json.encode({"latency": rates.latency(), "rates": rates}).decode()


command = Command(
    name="calibrate",
    help="Measure what a step costs on a running engine, for kvlb simulate.",
    configure=configure,
    run=run,
)
