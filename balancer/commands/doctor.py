"""``kvlb doctor``: what is wrong with a gateway or a fleet, a line each, and what to do about it.

Knows flags, where to look, and exit codes: 0 all is well, 1 something works less well than it could, 2 something does not work,
3 wrong usage, or a gateway that cannot be reached.
"""

import argparse
import logging
import math
import sys
from typing import Final

import aiohttp
import msgspec

from balancer.checks import examine
from balancer.checks.facts import Facts
from balancer.checks.finding import Result, Verdict, worst
from balancer.commands import Command, serve
from balancer.commands.asking import DEFAULT_GATEWAY, add_gateway, ask, decoded, told_as_json
from balancer.commands.loop import run_loop
from balancer.doctor import diagnose, looking_at
from balancer.errors import ConfigError
from balancer.settings import Settings
from balancer.words import printable

EXIT_CODES: Final = {Verdict.SKIPPED: 0, Verdict.OK: 0, Verdict.DEGRADED: 1, Verdict.BROKEN: 2}
USAGE: Final = 3

FLEET: Final = ", or give --replica URL for engines without a gateway"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exit code: 0 ok, 1 degraded, 2 broken, 3 wrong usage or a gateway that cannot be reached."
    add_gateway(parser, default=None)
    parser.add_argument(
        "--replica",
        action="append",
        default=[],
        metavar="URL",
        help="look at a fleet without a gateway: a vLLM server, like http://10.0.0.1:8000; repeat it",
    )
    parser.add_argument("--config", metavar="FILE", help="look at the fleet of these settings, as kvlb serve would")
    parser.add_argument(
        "--probe", action="store_true", help="send two tiny requests to each replica, to prove what only traffic can"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="S",
        help="how long a fleet may take to connect and to replay (default 10)",
    )
    parser.add_argument("--json", action="store_true", help="print all results as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the results, the way it was asked for; the exit code is the worst of them.

    Raises:
        ConfigError: flags or settings.
        Unreachable: the gateway.
    """
    with told_as_json(args.json):
        return _examine(args)


def _examine(args: argparse.Namespace) -> int:
    if not 0 < args.timeout < math.inf:
        raise ConfigError(f"--timeout: {args.timeout:g} cannot be used; give a number of seconds above 0")
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.NullHandler())  # what a service would log is said by a check
    results = examine(run_loop(_find_out(args)))
    verdict = worst(results)
    print(_as_json(verdict, results) if args.json else "\n".join([*map(str, results), _summary(verdict, results)]))
    return EXIT_CODES[verdict]


async def _find_out(args: argparse.Namespace) -> Facts:
    if args.replica or args.config:
        if args.gateway is not None:
            raise ConfigError(
                "--gateway: looks at a running gateway, --replica and --config at a fleet without one; give either"
            )
        settings = _settings(args)
        key = args.api_key or settings.upstream.api_key
        async with looking_at(settings, args.timeout, _tell) as facts_of_fleet:
            return await diagnose(facts_of_fleet, api_key=key, probe=args.probe, ports=True)
    gateway = args.gateway or DEFAULT_GATEWAY
    async with aiohttp.ClientSession() as session:

        async def facts_of_gateway() -> Facts:
            found: Facts = decoded(
                await ask(session, gateway, "/debug/facts", None, args.api_key, FLEET), Facts, gateway
            )
            return found

        return await diagnose(facts_of_gateway, api_key=args.api_key, probe=args.probe, ports=False)


def _tell(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


def _settings(args: argparse.Namespace) -> Settings:
    """The settings that ``kvlb serve`` would have with the same flags."""
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    words = [f"--replica={url}" for url in args.replica] + ([f"--config={args.config}"] if args.config else [])
    settings = serve.read_settings(parser.parse_args(words))
    if args.api_key is None:
        return settings
    return msgspec.structs.replace(settings, upstream=msgspec.structs.replace(settings.upstream, api_key=args.api_key))


def _summary(verdict: Verdict, results: list[Result]) -> str:
    counts = [f"{n} {each}" for each in reversed(Verdict) if (n := sum(result.verdict is each for result in results))]
    return f"{verdict}: {', '.join(counts)}"


def _as_json(verdict: Verdict, results: list[Result]) -> str:
    return msgspec.json.encode({"verdict": verdict, "results": results}).decode()


command = Command(
    name="doctor",
    help="Say what is wrong with a running gateway, or with a fleet before there is one, and what to do about it.",
    configure=configure,
    run=run,
    usage_code=USAGE,
)
