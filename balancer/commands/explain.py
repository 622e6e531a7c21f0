"""``kvlb explain``: which replica a prompt would go to, or a request went to, and why.

Knows flags and how a decision is written for people. Decides nothing: it asks a running gateway, where nothing is leased or
sent for it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import msgspec

from balancer.commands import Command
from balancer.commands.asking import add_gateway, ask, decoded, told_as_json
from balancer.commands.hash import parse_tokens
from balancer.commands.loop import run_loop
from balancer.core import Knowledge, Paper
from balancer.decisions import MAX_ID
from balancer.errors import ConfigError
from balancer.explain import Explanation, Plan, Seen
from balancer.words import counted, printable

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"

MAX_TOKEN: Final = 2**31 - 1

ATTEMPTS: Final = 20
"""Attempts of one request that are shown."""


class _Decisions(msgspec.Struct):
    decisions: list[Explanation]
    kept: int


def configure(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", metavar="TEXT", help="a completion's prompt")
    what.add_argument(
        "--messages", metavar="FILE", help="JSON: a list of chat messages, or a whole chat request; - is standard input"
    )
    what.add_argument(
        "--tokens", metavar="IDS", help="token ids: a JSON list, or integers separated by spaces or commas"
    )
    what.add_argument("--request-id", metavar="ID", help="a request of the past, by its x-request-id")
    parser.add_argument("--model", metavar="M", help="model or adapter (default: the only one that is served)")
    parser.add_argument("--salt", metavar="S", help="the request's cache_salt")
    parser.add_argument("--json", action="store_true", help="print what the gateway says")
    add_gateway(parser)


def run(args: argparse.Namespace) -> int:
    """Print each decision with its candidates.

    Raises:
        ConfigError: a flag, a file, an id that is not known, or a request that the gateway refuses.
        Unreachable: the gateway.
    """
    with told_as_json(args.json):
        found = run_loop(_ask(args))
    if args.json:
        print(msgspec.json.encode(found[0] if args.request_id is None else found).decode())
    else:
        print("\n\n".join(written(each) for each in found))
    return 0


async def _ask(args: argparse.Namespace) -> list[Explanation]:
    async with aiohttp.ClientSession() as session:
        if args.request_id is not None:
            path = f"/debug/decisions?limit={ATTEMPTS}&request_id={quote(args.request_id, safe='', errors='replace')}"
            answer = await ask(session, args.gateway, path, None, args.api_key)
            log: _Decisions = decoded(answer, _Decisions, args.gateway)
            if not log.decisions:
                raise ConfigError(
                    f"--request-id: {args.request_id[:MAX_ID]!r} is not among the last {log.kept} decisions of "
                    f"{args.gateway}; log.decisions_kept says how many are kept"
                )
            return log.decisions[::-1]
        path, body = request_of(args)
        answer = await ask(
            session, args.gateway, f"/debug/explain?path={path}", msgspec.json.encode(body), args.api_key
        )
        return [decoded(answer, Explanation, args.gateway)]


def request_of(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The path and the body of the request that the flags describe.

    Raises:
        ConfigError: what a flag says cannot be read.
    """
    if args.messages is not None:
        path, body = CHAT, _chat(_read(args.messages))
    elif args.tokens is not None:
        path, body = COMPLETIONS, {"prompt": _tokens(args.tokens)}
    else:
        path, body = COMPLETIONS, {"prompt": _text("--prompt", args.prompt)}
        if not args.prompt:
            raise ConfigError("--prompt: it is empty; give a text")
    if args.model is not None:
        body["model"] = _text("--model", args.model)
    if args.salt is not None:
        body["cache_salt"] = _text("--salt", args.salt)
    return path, body


def _tokens(flag: str) -> list[int]:
    try:
        tokens = parse_tokens(flag.encode(errors="replace"))
    except ConfigError as error:
        raise ConfigError(f"--{error}".replace("standard input", "it")) from None
    if not tokens:
        raise ConfigError("--tokens: the list is empty; give at least one token id")
    for at, token in enumerate(tokens):
        if not 0 <= token <= MAX_TOKEN:
            raise ConfigError(f"--tokens[{at}]: {token} is not a token id; give 0 to {MAX_TOKEN}")
    return tokens


def _text(flag: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{flag}: it is not valid UTF-8; give text") from None
    return value


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"--messages: cannot read '{name}': {error.strerror}") from None


def _chat(text: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(f"--messages: it is no JSON: {error}") from None
    if isinstance(found, list):
        found = {"messages": found}
    if isinstance(found, dict) and isinstance(messages := found.get("messages"), list):
        if not messages:
            raise ConfigError("--messages: the list is empty; give at least one message")
        for at, message in enumerate(messages):
            if not (isinstance(message, dict) and "role" in message):
                raise ConfigError(f"--messages[{at}]: give an object with role and content")
        return found
    raise ConfigError(
        '--messages: give a list such as [{"role": "user", "content": "..."}], or a request with "messages"'
    )


# What is printed


def written(told: Explanation) -> str:
    """One decision as lines for people."""
    count = counted(told.prompt_tokens, "prompt token") + (
        "" if told.knows_tokens else " (a guess: nobody tokenised it)"
    )
    lines = [f"{told.path}, model {told.model}: {count}; policy {told.policy}"]
    if told.request_id:
        lines[0] += f"; request {told.request_id}"
    shown = [
        at
        for at, name in enumerate(_HEAD)
        if (name != "by events" or not any(each.tiers is msgspec.UNSET for each in told.candidates))
        and (name != "could load" or any(each.loadable is not msgspec.UNSET for each in told.candidates))
    ]
    lines += _table([[row[at] for at in shown] for row in (_HEAD, *(_row(each, told) for each in told.candidates))])
    lines.append(f"{told.replica}: {told.why}")
    lines += [
        f"{each.replica} is known as {each.knowledge}: {each.reason}"
        for each in told.candidates
        if each.knowledge is not Knowledge.EXACT and each.reason
    ]
    lines += [f"not asked: {each.replica} ({each.status}; {_tiers(each.tiers)} by events)" for each in told.not_asked]
    if told.plan is not msgspec.UNSET:
        lines.append(_plan(told.plan))
    if told.shadow is not msgspec.UNSET:
        lines.append(_shadow(told, told.shadow))
    if told.outcome is not None:
        lines.append(_outcome(told))
    return "\n".join(map(printable, lines))


_HEAD: Final = (
    "",
    "replica",
    "cached",
    "queued",
    "in flight",
    "wait",
    "tokens/s",
    "cost",
    "knowledge",
    "by events",
    "could load",
)


def _tiers(held: dict[str, int]) -> str:
    return ", ".join(f"{tier} {count:,}" for tier, count in held.items()) or "nothing"


def _row(each: Seen, told: Explanation) -> tuple[str, ...]:
    return (
        "*" if each.replica == told.replica else "",
        each.replica,
        f"{each.cached_tokens:,}",
        f"{each.queued_tokens:,}",
        f"{each.in_flight:,}",
        f"{each.wait_seconds:,.3f} s",
        f"{each.tokens_per_second:,.0f}",
        "-" if each.cost is None else f"{each.cost:,.6g}",
        each.knowledge,
        "" if each.tiers is msgspec.UNSET else _tiers(each.tiers),
        "" if each.loadable is msgspec.UNSET else _tiers(each.loadable),
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they must be; figures at the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    left = {0, 1, 8, 9, 10}
    return [
        "  ".join(
            cell.ljust(widths[at]) if at in left else cell.rjust(widths[at]) for at, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def _plan(plan: Plan) -> str:
    loads = [f"{count:,} from {source}" for source, count in plan.loads.items()]
    loaded = f"{', '.join(loads)} in {plan.load_seconds:.3f} s" if loads else "nothing loaded"
    hint = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in plan.hint.items()]
    told = f"; its engine is told {', '.join(hint)}" if hint else ""
    computed = f"{plan.computed_tokens:,} computed in {plan.compute_seconds:.3f} s"
    return f"planned: {plan.hit_tokens:,} cached, {loaded}, {computed}{told}"


def _shadow(told: Explanation, paper: Paper) -> str:
    if paper.failure:
        return f"on paper, {paper.policy} could not choose: {paper.failure}"
    if paper.replica == told.replica:
        return f"on paper, {paper.policy} would have chosen it, too"
    return (
        f"on paper, {paper.policy} would have chosen {paper.replica}: {paper.cached_tokens:,} cached, "
        f"{paper.uncached_tokens:,} to compute, after {paper.wait:.3f} s; it is {told.cached_tokens:,} cached, "
        f"{told.prompt_tokens - told.cached_tokens:,} to compute, after {paper.acting_wait:.3f} s"
    )


def _outcome(told: Explanation) -> str:
    status = None if told.truth is None else told.truth.status
    if status is not None and status >= 400:
        return f"outcome: {told.outcome} {status}"
    cached = None if told.truth is None else told.truth.cached_tokens
    if cached is None:
        return f"outcome: {told.outcome}; the engine did not say what it had cached"
    predicted = told.cached_tokens
    if told.plan is not msgspec.UNSET:
        predicted = told.plan.hit_tokens + sum(told.plan.loads.values())
    return f"outcome: {told.outcome}; predicted {predicted:,} cached tokens, the engine says {cached:,}"


command = Command(
    name="explain",
    help="Say which replica a prompt would go to, or a request went to, and why.",
    configure=configure,
    run=run,
)
