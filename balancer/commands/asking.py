"""Questions of a command to a running gateway.

Knows one exchange at a time, its time limit and what can go wrong with it. A gateway's own errors become ours, in its words.
"""

import argparse
import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import aiohttp
import msgspec

from balancer.errors import BalancerError, ConfigError, Unreachable
from balancer.http.reasons import reason
from balancer.settings import check_url
from balancer.upstream import whole

DEFAULT_GATEWAY: Final = "http://127.0.0.1:8080"
TIMEOUT_SECONDS: Final = 30.0


def add_gateway(parser: argparse.ArgumentParser, default: str | None = DEFAULT_GATEWAY) -> None:
    """Declare ``--gateway`` and ``--api-key``."""
    told = f" (default {default})" if default else ""
    parser.add_argument("--gateway", metavar="URL", default=default, help=f"a running kvlb{told}")
    parser.add_argument(
        "--api-key", metavar="KEY", help="bearer token, where engines or a proxy before kvlb ask for one"
    )


async def ask(
    session: aiohttp.ClientSession,
    gateway: str,
    path: str,
    body: bytes | None = None,
    api_key: str | None = None,
    otherwise: str = "",
) -> bytes:
    """The body of a good answer to GET, or to POST with a body of JSON.

    ``otherwise`` is what else could be done where there is no gateway.

    Raises:
        ConfigError: the address is none, or the gateway refuses what it was asked (4xx), in its own words.
        Unreachable: it does not answer, cannot serve this now, or is no kvlb.
    """
    gateway = gateway.rstrip("/")
    check_url("--gateway", gateway)
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    try:
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            session.request("GET" if body is None else "POST", gateway + path, data=body, headers=headers) as response,
        ):
            answer = await whole(response)
    except TimeoutError:
        raise Unreachable(f"{gateway} has not answered within {TIMEOUT_SECONDS:g} s") from None
    except aiohttp.ClientPayloadError as error:
        raise Unreachable(f"{gateway} is no kvlb: {reason(error)}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        where = f"{gateway} (the default)" if gateway == DEFAULT_GATEWAY else gateway
        raise Unreachable(
            f"no gateway at {where}: {reason(error)}; start it with kvlb serve, or name it with --gateway{otherwise}"
        ) from error
    if response.status != 200:
        refusal(gateway, path, response.status, answer)
    return answer


def refusal(gateway: str, path: str, status: int, answer: bytes) -> NoReturn:
    """An answer that is none, as an error.

    Raises:
        ConfigError: the gateway refuses what it was asked (4xx), in its own words.
        Unreachable: it cannot serve this now, or is no kvlb.
    """
    message, code = _error(answer)
    if message is None or code == "unknown_path":
        raise Unreachable(f"{gateway} answers {path.partition('?')[0]} with {status}: it is no kvlb, or an older one")
    if 400 <= status < 500:
        raise ConfigError(message)
    raise Unreachable(message)


@contextlib.contextmanager
def told_as_json(is_wanted: bool) -> Iterator[None]:
    """What an error leaves on standard output for whoever reads JSON there; it goes on to be a line and an exit code."""
    try:
        yield
    except BalancerError as error:
        if is_wanted:
            verdict = "unreachable" if isinstance(error, Unreachable) else "refused"
            print(msgspec.json.encode({"verdict": verdict, "error": str(error)}).decode())
        raise


class _Error(msgspec.Struct):
    message: str
    code: str | None = None


class _Answer(msgspec.Struct):
    error: _Error


def _error(answer: bytes) -> tuple[str | None, str | None]:
    """(message, code) of an OpenAI error; nothing where it is none."""
    try:
        error = msgspec.json.decode(answer, type=_Answer).error
    except msgspec.MsgspecError:
        return None, None
    return error.message, error.code


def decoded(answer: bytes, kind: type[Any], gateway: str) -> Any:
    """The answer as a value of this type.

    Raises:
        Unreachable: it is something else.
    """
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.MsgspecError as error:
        raise Unreachable(f"{gateway} answers what no kvlb of this version would: {error}") from None
