"""``kvlb record``: the requests of a running gateway, written to a trace file until it is told to stop.

Knows flags, one long answer of the gateway and one file. Never sees a prompt: what comes are times, lengths and numbers that
say which prompts begin alike (``balancer.recording``).
"""

import argparse
import asyncio
import gzip
import math
import os
import sys
import time
from contextlib import ExitStack
from typing import BinaryIO, Final, cast

import aiohttp
import msgspec

from balancer.commands import Command
from balancer.commands.asking import add_gateway, refusal
from balancer.commands.loop import run_loop, stop_signal
from balancer.errors import ConfigError, Unreachable
from balancer.http.reasons import reason
from balancer.recording import PATH
from balancer.settings import check_url
from balancer.words import counted

SILENT_SECONDS: Final = 20.0
"""After which a gateway has gone that says nothing; it says something every five."""

STANDARD_OUTPUT: Final = "-"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes the requests of a running gateway to a trace file until Ctrl-C: when each came, how long it was, which ones "
        "begin alike, and what its replica had cached. No text, token or key is in it, and none can be found out from it alone."
    )
    parser.add_argument(
        "file", metavar="FILE", help="the trace; packed where its name ends with .gz; - is standard output"
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="stop after so long")
    parser.add_argument("--requests", type=int, metavar="N", help="stop after so many requests")
    parser.add_argument(
        "--max-bytes", type=int, metavar="N", default=1 << 30, help="stop at this size (default 1 GiB, before packing)"
    )
    parser.add_argument(
        "--block-size",
        type=int,
        metavar="N",
        default=64,
        help="tokens after which it is told what prompts have in common, rounded up to the engines' blocks (default 64)",
    )
    add_gateway(parser)


def run(args: argparse.Namespace) -> int:
    """Record until it is enough.

    Raises:
        ConfigError: a flag, or the file cannot be made.
        Unreachable: the gateway is not there, or has gone; what it had told is in the file.
    """
    _check(args)
    return run_loop(_record(args))


def _check(args: argparse.Namespace) -> None:
    if args.seconds is not None and not 0 < args.seconds < math.inf:
        raise ConfigError(f"--seconds: must be above 0, got {args.seconds}")
    for name in ("requests", "max_bytes", "block_size"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')}: must be 1 or more, got {value}")


class _Sink:
    """The file, with what has been written to it."""

    def __init__(self, file: BinaryIO, args: argparse.Namespace) -> None:
        self.requests = 0
        self.lost = 0
        self._file = file
        self._bytes = 0
        self._most = args.requests
        self._max_bytes = args.max_bytes
        self.is_full = False

    def write(self, line: bytes) -> None:
        """One line of the answer; those that are empty say only that the gateway is there."""
        if not line.strip() or self.is_full:
            return
        if self._bytes + len(line) > self._max_bytes:
            self.is_full = True
            return
        self._file.write(line)
        self._bytes += len(line)
        lost = msgspec.json.decode(line, type=_Lost).lost
        self.lost += lost
        self.requests += not lost
        self.is_full = self.requests == self._most

    def flush(self) -> None:
        self._file.flush()


class _Lost(msgspec.Struct):
    lost: int = 0


async def _record(args: argparse.Namespace) -> int:
    stop = stop_signal()
    check_url("--gateway", args.gateway)
    begun = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=SILENT_SECONDS)
    headers = {} if args.api_key is None else {"Authorization": f"Bearer {args.api_key}"}
    url = f"{args.gateway.rstrip('/')}{PATH}?block_size={args.block_size}"
    with ExitStack() as stack:
        sink: _Sink | None = None
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url, headers=headers) as response,
            ):
                if response.status != 200:
                    refusal(args.gateway, PATH, response.status, await response.read())
                sink = _Sink(_opened(args.file, stack), args)
                print(f"kvlb record: recording {args.gateway}; Ctrl-C ends it", file=sys.stderr)
                deadline = math.inf if args.seconds is None else begun + args.seconds
                is_ended = await _copy(response, sink, stop, deadline)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if isinstance(error, OSError) and not isinstance(error, aiohttp.ClientError | TimeoutError):
                raise
            if sink is None:
                raise Unreachable(f"no gateway at {args.gateway}: {reason(error)}; name it with --gateway") from None
            is_ended = False
        _tell(args, sink, time.monotonic() - begun)
    if not is_ended:
        raise Unreachable(f"{args.gateway} has gone; what it told until then is in '{args.file}'")
    return 0


async def _copy(response: aiohttp.ClientResponse, sink: _Sink, stop: asyncio.Event, deadline: float) -> bool:
    """Until it is enough; whether that is why it ended."""
    stopped = asyncio.create_task(stop.wait())
    try:
        parts: list[bytes] = []
        while not (stop.is_set() or sink.is_full or time.monotonic() >= deadline):
            coming = asyncio.create_task(response.content.readany())
            left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
            await asyncio.wait({coming, stopped}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
                return True
            if not coming.result():
                return False
            parts.append(coming.result())
            if b"\n" in parts[-1]:
                for line in _whole(parts):
                    sink.write(line)
                sink.flush()
        return True
    finally:
        stopped.cancel()


def _whole(parts: list[bytes]) -> list[bytes]:
    """The lines that are whole; what is left stays in ``parts``."""
    lines = b"".join(parts).splitlines(keepends=True)
    parts[:] = [lines.pop()] if lines and not lines[-1].endswith(b"\n") else []
    return lines


def _opened(name: str, stack: ExitStack) -> BinaryIO:
    if name == STANDARD_OUTPUT:
        return cast(BinaryIO, sys.stdout.buffer)
    try:
        file = os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except FileExistsError:
        raise ConfigError(f"'{name}' is there already; name another file, or move it away") from None
    except OSError as error:
        raise ConfigError(f"'{name}' cannot be made: {error.strerror}; name a file elsewhere") from None
    stack.enter_context(file)
    return (
        cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=file, mode="wb", filename="")))
        if name.endswith(".gz")
        else file
    )


def _tell(args: argparse.Namespace, sink: _Sink, seconds: float) -> None:
    lost = f"; {counted(sink.lost, 'more request')} came too fast to be written" if sink.lost else ""
    print(
        f"kvlb record: {counted(sink.requests, 'request')} in {seconds:.0f} s, in '{args.file}'{lost}", file=sys.stderr
    )


command = Command(
    name="record",
    help="write the requests of a running gateway to a trace file, without what they say",
    configure=configure,
    run=run,
)
